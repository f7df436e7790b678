"""Which store of host weights, and which entry of it, a path means: by names and marker files only."""

from __future__ import annotations

from pathlib import Path

from hwctl.errors import from_os_error
from hwctl.stores.base import Family, Match
from hwctl.stores.hostweights import places
from hwctl.stores.hostweights.layout import ARTIFACTS, is_key


def recognise(path: Path) -> Match | None:
    """The store or entry that an absolute path means, None when it is neither; IoFailed."""
    try:
        found = places.locate(path)
    except OSError as exc:
        raise from_os_error(exc, f"cannot look at {path}", path) from exc
    if found is None:
        return None
    root, spot = found
    return Match(Family.HOSTWEIGHTS, root, path, None if spot is None else spot.label)


def is_shaped(path: Path) -> bool:
    """Whether a path looks like that of an artifact, though its store is not there."""
    return path.parent.name == ARTIFACTS and is_key(path.name)
