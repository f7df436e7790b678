"""Which base of kt-int8 trees, and which tree in it, a path means: by names and marker files only."""

from __future__ import annotations

from pathlib import Path

from hwctl.errors import from_os_error
from hwctl.stores.base import Family, Match
from hwctl.stores.ktint8 import roots
from hwctl.stores.ktint8.roots import Root


def recognise(path: Path) -> Match | None:
    """The base or tree that an absolute path means, None when it is neither; IoFailed."""
    found = located(path)
    if found is None:
        return None
    base, root = found
    return Match(Family.KTINT8, base, path, None if root is None else root.key)


def located(path: Path) -> tuple[Path, Root | None] | None:
    """``roots.locate``, whose OSErrors are IoFailed here."""
    try:
        return roots.locate(path)
    except OSError as exc:
        raise from_os_error(exc, f"cannot look at {path}", path) from exc


def recognise_idle(path: Path) -> Match | None:
    """The base that an empty folder is to whoever says that it belongs to this family."""
    try:
        return Match(Family.KTINT8, path, path) if roots.is_idle(path) else None
    except OSError as exc:
        raise from_os_error(exc, f"cannot look at {path}", path) from exc
