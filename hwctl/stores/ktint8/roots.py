"""Which root is what: by its place and name first, by the marker files in it second.

Owns recognising. A name of the exact grammar makes an ephemeral root even when it is damaged or absent; any
other folder is a persistent tree when it holds a manifest. Nothing is parsed and nothing judged here.
"""

from __future__ import annotations

import enum
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hwctl.stores.ktint8 import layout

SHARED_MEMORY = Path("/dev/shm")
"""The base that upstream fixes; it is a base of trees even when none lies in it."""


class Kind(enum.StrEnum):
    """Which rules hold for an entry of a base."""

    STAGING = "staging"
    EPHEMERAL = "ephemeral"
    PERSISTENT = "persistent"
    QUARANTINED = "quarantined"
    FOREIGN = "foreign"


@dataclass(frozen=True, slots=True)
class Root:
    """An entry of a base: ``folder`` below the base ("" or the quarantine), ``name`` in it, its ``key``.

    ``key`` is the run id, or the folder's name where there is none; a quarantined entry keeps the key it had.
    """

    kind: Kind
    name: str
    key: str
    folder: str = ""

    def path(self, base: Path) -> Path:
        return base / self.folder / self.name


def named(name: str) -> Root | None:
    """What a name in a base stands for, whatever lies there; None for names that are not ours."""
    root = layout.parse_root_name(name)
    if root is not None:
        return Root(Kind.STAGING if root.staging else Kind.EPHEMERAL, name, root.run_id)
    return Root(Kind.FOREIGN, name, name) if name.startswith(layout.ROOT_PREFIX) else None


def quarantined(name: str) -> Root:
    """What a name in the quarantine folder stands for."""
    origin = layout.parse_quarantine_name(name)
    if origin is None:
        return Root(Kind.FOREIGN, name, name, layout.QUARANTINE)
    inner = named(origin)
    return Root(Kind.QUARANTINED, name, origin if inner is None else inner.key, layout.QUARANTINE)


def find(base: Path, name: str) -> Root | None:
    """What an entry of a base is, by its name and then by the markers in it."""
    root = named(name)
    if root is not None and root.kind is not Kind.EPHEMERAL:
        return root
    markers = markers_in(base / name)
    if root is not None:
        # A schema-2 store may bear any name, a run's too.
        return Root(Kind.PERSISTENT, name, name) if markers == {layout.PERSISTENT_MANIFEST} else root
    return Root(Kind.PERSISTENT, name, name) if markers else None


def markers_in(path: Path) -> set[str]:
    """Which manifests stand in a folder, as names of any kind; empty for a link, for no folder at all and for
    one that cannot be looked at, such as another user's FUSE mount in /dev/shm."""
    try:
        if path.is_symlink():
            return set()
    except OSError:
        return set()
    names = (layout.EPHEMERAL_MANIFEST, layout.PERSISTENT_MANIFEST)
    return {name for name in names if os.path.lexists(path / name)}


def list_base(base: Path) -> Iterator[Root]:
    """Every entry of a base that is ours or bears a name like ours, sorted by key and path.

    Raises OSError when the base, or a quarantine that is there, cannot be listed.
    """
    found: list[Root] = []
    with os.scandir(base) as entries:
        for entry in entries:
            if entry.name == layout.QUARANTINE:
                found += _list_quarantine(base)
            elif entry.name.startswith(layout.ROOT_PREFIX) or entry.is_dir(follow_symlinks=False):
                root = find(base, entry.name)
                if root is not None:
                    found.append(root)
    yield from sorted(found, key=lambda root: (root.key, root.folder, root.name))


def _list_quarantine(base: Path) -> list[Root]:
    path = base / layout.QUARANTINE
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        return []
    try:
        return [quarantined(name) for name in os.listdir(path)]
    except PermissionError:
        # Another user's, in a base that many share: a row that says so, and the rest goes on (INS-03).
        return [Root(Kind.QUARANTINED, layout.QUARANTINE, layout.QUARANTINE)]


def locate(path: Path) -> tuple[Path, Root | None] | None:
    """The base and the entry that a path means, (base, None) for a base itself, None if it is neither.

    ``path`` is absolute and its parents are resolved; its last component may be anything or absent.
    """
    if path.name == layout.QUARANTINE:
        return None
    if path.parent.name == layout.QUARANTINE:
        return path.parent.parent, quarantined(path.name)
    root = find(path.parent, path.name)
    if root is not None:
        return path.parent, root
    return (path, None) if _is_base(path) else None


def is_idle(path: Path) -> bool:
    """Whether a folder holds nothing, or nothing but what a killed hwctl left: a base once its last tree was
    consumed looks so, and so does any empty folder. A base with a quarantine is recognised by that."""
    if path.is_symlink() or not path.is_dir():
        return False
    return all(layout.is_own_temporary(name) for name in os.listdir(path))


def _is_base(path: Path) -> bool:
    if path == SHARED_MEMORY:
        return path.is_dir()
    if path.is_symlink() or not path.is_dir():
        return False
    with os.scandir(path) as entries:
        for entry in entries:
            root = named(entry.name)
            if entry.name == layout.QUARANTINE or (root is not None and root.kind is not Kind.FOREIGN):
                return True
            if entry.is_dir(follow_symlinks=False) and markers_in(path / entry.name):
                return True
    return False
