"""Which root, and which entry of it, a path means: by names alone.

A folder is a root when it holds a name that only this cache makes. What lies inside a root, or inside its
quarantine, is that root's entry whatever it looks like itself.
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

from hwctl.fs.paths import identity, opened_dir
from hwctl.stores.base import Family, Match
from hwctl.stores.pageweights import layout
from hwctl.stores.pageweights.layout import EVICTION_LOCK, Kind, parse_name, quarantined_prefix


def recognise(path: Path) -> Match | None:
    """The cache or the entry that an absolute path with resolved parents means."""
    if path.parent.name == layout.QUARANTINE and _is_root(path.parent.parent):
        return _quarantined(path.parent.parent, path)
    if path.parent.parent.name == layout.QUARANTINE and _is_root(path.parent.parent.parent):
        return _quarantined(path.parent.parent.parent, path.parent)
    if _is_root(path.parent):
        return _entry(path.parent, path.name)
    return Match(Family.PAGEWEIGHTS, path, path) if _is_root(path) else None


def _is_root(path: Path) -> bool:
    """Whether a folder holds a cache's names. An empty one is nobody's, but for the default root."""
    try:
        with opened_dir(path) as fd:
            return path == layout.DEFAULT_ROOT or _holds_our_names(path, identity(os.fstat(fd)))
    except OSError:
        return False


@lru_cache(maxsize=16)
def _holds_our_names(path: Path, _as_it_is: tuple[int, ...]) -> bool:
    """Remembered as long as the folder does not change: in /dev/shm every neighbour asks for the same one."""
    with os.scandir(path) as entries:
        return any(_is_ours(entry.name) for entry in entries)


def _is_ours(name: str) -> bool:
    return name == EVICTION_LOCK or parse_name(name).prefix is not None


def _quarantined(root: Path, path: Path) -> Match:
    key = quarantined_prefix(path.name) or f"{layout.QUARANTINE}/{path.name}"
    return Match(Family.PAGEWEIGHTS, root, path, key)


def _entry(root: Path, text: str) -> Match:
    """A locator, its lock or a bare prefix mean the page; receipt and artifact whatever they belong to."""
    name = parse_name(text)
    prefix = text if layout.is_digest(text) else name.prefix
    if prefix is None or name.kind is Kind.TEMPORARY:
        return Match(Family.PAGEWEIGHTS, root, root / text, text)
    if name.key is not None:
        return Match(Family.PAGEWEIGHTS, root, root / text, f"{prefix}.{name.key}")
    return Match(Family.PAGEWEIGHTS, root, root / layout.locator_name(prefix), prefix)
