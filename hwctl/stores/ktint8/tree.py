"""What lies in a kt-int8 root, entry by entry, judged against what should.

Owns walking a root by descriptors without following anything, and the exactness of section 10: every entry
known, regular files with one link, one owner, right sizes. The judging functions are pure: they take names
and stat facts. What a tree should hold is told by the caller as a ``Plan``; what the bytes say is
``content``. Folders are listed one at a time, so memory does not grow with the tree.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from hwctl.errors import Finding
from hwctl.fs.paths import kind_of, opened_dir
from hwctl.stores.ktint8 import layout
from hwctl.weights.amx import Geometry

GROUP_OR_WORLD_WRITE = stat.S_IWGRP | stat.S_IWOTH

Entries = Mapping[str, os.stat_result]


@dataclass(frozen=True, slots=True)
class Plan:
    """What a root should hold.

    ``whole`` layers must be there exactly, of ``partial`` ones any subset of their files may be left
    (a consumption stopped in the middle), and nothing else but ``documents``. ``private`` asks for the
    ephemeral rules for folders: the root's owner, and nobody else may write in them.
    """

    geometry: Geometry
    whole: tuple[int, ...]
    partial: tuple[int, ...] = ()
    documents: frozenset[str] = field(default_factory=frozenset)
    private: bool = True


def list_dir(dir_fd: int) -> dict[str, os.stat_result]:
    """Every entry of an open folder with its own stat; one that vanishes meanwhile is left out."""
    found: dict[str, os.stat_result] = {}
    with os.scandir(dir_fd) as entries:
        for entry in entries:
            try:
                found[entry.name] = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
    return found


def own_temporaries(root_fd: int) -> frozenset[str]:
    """What a killed process of ours left half written in a root; the caller holds its lock."""
    return frozenset(name for name in os.listdir(root_fd) if layout.is_own_temporary(name))


def drop(root_fd: int, names: Iterable[str]) -> None:
    """Unlink files of a root."""
    for name in names:
        os.unlink(name, dir_fd=root_fd)


def judge_root(st: os.stat_result, uid: int | None) -> list[Finding]:
    """The rules for the root itself. ``uid`` is who must own it, None for a store anybody may share."""
    if not stat.S_ISDIR(st.st_mode):
        return [Finding("root-type", f"the root is a {kind_of(st.st_mode)}, not a directory")]
    if uid is None:
        return []
    found = []
    if st.st_uid != uid:
        found.append(Finding("owner", f"the root belongs to uid {st.st_uid}", None, uid, st.st_uid))
    if st.st_mode & GROUP_OR_WORLD_WRITE:
        found.append(_writable("the root", None, st))
    return found


def judge_tree(root_fd: int, plan: Plan) -> Iterator[Finding]:
    """Every difference between the tree below ``root_fd`` and the plan, sorted by path within a folder."""
    owner = os.fstat(root_fd).st_uid
    entries = list_dir(root_fd)
    yield from judge_top(entries, plan, owner)
    for layer in sorted((*plan.whole, *plan.partial)):
        name = layout.layer_dir(layer)
        if name in entries and stat.S_ISDIR(entries[name].st_mode):
            yield from judge_layer(root_fd, layer, plan)


def judge_layer(root_fd: int, layer: int, plan: Plan) -> Iterator[Finding]:
    """The same for one layer's folder, which must be there."""
    owner, exact = os.fstat(root_fd).st_uid, layer in plan.whole
    parts = {layout.part_dir(part) for part in range(plan.geometry.parts)}
    files = {name: file.size for name, file in layout.part_files(plan.geometry).items()}
    folder = layout.layer_dir(layer)
    with opened_dir(folder, dir_fd=root_fd) as layer_fd:
        entries = list_dir(layer_fd)
        needed = parts if exact else set()
        private = owner if plan.private else None
        yield from judge_folders(entries, needed, f"{folder}/", private, allowed=parts)
        for name in sorted(parts & entries.keys(), key=_part_number):
            if stat.S_ISDIR(entries[name].st_mode):
                with opened_dir(name, dir_fd=layer_fd) as part_fd:
                    yield from judge_files(list_dir(part_fd), files, f"{folder}/{name}/", owner, exact=exact)


def _part_number(name: str) -> int:
    return layout.parse_part_dir(name) or 0


def judge_top(entries: Entries, plan: Plan, owner: int) -> Iterator[Finding]:
    """The root's own entries: documents and layer folders, nothing else."""
    whole = {layout.layer_dir(layer) for layer in plan.whole}
    partial = {layout.layer_dir(layer) for layer in plan.partial}
    for name in sorted(plan.documents & entries.keys()):
        yield from _judge_file(name, entries[name], owner)
    folders = {name: st for name, st in entries.items() if name not in plan.documents}
    private = owner if plan.private else None
    yield from judge_folders(folders, whole, "", private, allowed=whole | partial)


def judge_folders(
    entries: Entries, needed: set[str], prefix: str, owner: int | None, *, allowed: set[str]
) -> Iterator[Finding]:
    """Entries that must all be folders: the ``needed`` ones there, none but the ``allowed`` ones.

    ``owner`` is None where anybody may own and write them.
    """
    for name in sorted(entries):
        st = entries[name]
        path = f"{prefix}{name}"
        if name not in allowed:
            yield _unknown(path, st)
        elif not stat.S_ISDIR(st.st_mode):
            yield Finding("entry-type", f"is a {kind_of(st.st_mode)}, not a directory", path)
        elif owner is not None:
            if st.st_uid != owner:
                yield _owner(path, st, owner)
            if st.st_mode & GROUP_OR_WORLD_WRITE:
                yield _writable("the directory", path, st)
    for name in sorted(needed - entries.keys()):
        yield Finding("missing-directory", "the directory is missing", f"{prefix}{name}")


def judge_files(
    entries: Entries, sizes: Mapping[str, int], prefix: str, owner: int, *, exact: bool
) -> Iterator[Finding]:
    """A part folder: exactly the files of ``sizes``, or some of them when not ``exact``."""
    if exact and (missing := sizes.keys() - entries.keys()):
        for name in (name for name in sizes if name in missing):
            yield Finding("missing-file", "the file is missing", f"{prefix}{name}")
    for name in sorted(entries):
        st = entries[name]
        size = sizes.get(name)
        if size is None:
            yield _unknown(f"{prefix}{name}", st)
        elif st.st_size != size or st.st_nlink != 1 or st.st_uid != owner or not stat.S_ISREG(st.st_mode):
            yield from _judge_file(f"{prefix}{name}", st, owner, size)


def _judge_file(path: str, st: os.stat_result, owner: int, size: int | None = None) -> Iterator[Finding]:
    if not stat.S_ISREG(st.st_mode):
        yield Finding("entry-type", f"is a {kind_of(st.st_mode)}, not a regular file", path)
        return
    if size is not None and st.st_size != size:
        yield Finding("file-size", f"has {st.st_size} bytes where {size} belong", path, size, st.st_size)
    if st.st_nlink != 1:
        yield Finding("hard-link", f"has {st.st_nlink} hard links", path, 1, st.st_nlink)
    if st.st_uid != owner:
        yield _owner(path, st, owner)


def _unknown(path: str, st: os.stat_result) -> Finding:
    name = path.rpartition("/")[2]
    pid = layout.temporary_pid(name)
    if pid is not None:
        return Finding("leftover-temporary", f"is a temporary that process {pid} left", path)
    if layout.parse_partial_layer_dir(path) is not None:
        return Finding("layer-unfinished", "the layer was never finished", path)
    return Finding("extra-entry", f"is a {kind_of(st.st_mode)} that does not belong here", path)


def _owner(path: str, st: os.stat_result, owner: int) -> Finding:
    return Finding("owner", f"belongs to uid {st.st_uid}, the root to {owner}", path, owner, st.st_uid)


def _writable(what: str, path: str | None, st: os.stat_result) -> Finding:
    mode = f"{stat.S_IMODE(st.st_mode):04o}"
    return Finding("mode", f"{what} may be written by group or others (mode {mode})", path, None, mode)
