"""What counts against a cache's budget: one look at the directory, and the one way of counting a name.

Counted as the cache's own program counts, by ``st_size`` and links by their target, but without dying of a
name that leads nowhere. What is evicted, and in which order, is ``eviction``'s.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hwctl.errors import from_os_error
from hwctl.fs.walk import Inode, allocated, inode_of
from hwctl.stores.pageweights.layout import Kind, parse_name
from hwctl.stores.pageweights.place import Place

SUFFIX = ".safetensors"


@dataclass(frozen=True, slots=True)
class Listing:
    """``resident`` is the sum in bytes over every name that counts, strangers among them; ``allocated`` is
    what the disk gave for those names themselves, each inode once.

    ``clocks`` holds (mtime ns, prefix) of every locator, ``artifacts`` the sizes of the cache's own artifacts
    by prefix and then by key, ``names`` by prefix all names that carry one, but for locks.
    """

    resident: int
    allocated: int
    clocks: tuple[tuple[int, str], ...]
    artifacts: Mapping[str, Mapping[str, int]]
    names: Mapping[str, Sequence[str]]


def one_pass(place: Place) -> Listing:
    """Look at the directory once. What vanishes meanwhile counts nothing, and its own program dies of it."""
    resident = 0
    blocks: dict[Inode, int] = {}
    clocks: list[tuple[int, str]] = []
    artifacts: dict[str, dict[str, int]] = {}
    names: dict[str, list[str]] = {}
    try:
        with os.scandir(place.dir_fd) as entries:
            for entry in entries:
                counts = entry.name.endswith(SUFFIX)
                name = parse_name(entry.name)
                if name.prefix is not None and name.kind is not Kind.LOCK:
                    names.setdefault(name.prefix, []).append(entry.name)
                if not counts and name.kind is not Kind.LOCATOR:
                    continue
                try:
                    st = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                if not counts:
                    assert name.prefix is not None  # a locator's name has one
                    clocks.append((st.st_mtime_ns, name.prefix))
                    continue
                size = counted(place.dir_fd, entry.name, st)
                resident += size
                blocks[inode_of(st)] = allocated(st)
                if name.prefix is not None and name.key is not None:
                    artifacts.setdefault(name.prefix, {})[name.key] = size
    except OSError as exc:
        raise from_os_error(exc, "cannot list the cache") from exc
    return Listing(resident, sum(blocks.values()), tuple(clocks), artifacts, names)


def counted(dir_fd: int, name: str, st: os.stat_result) -> int:
    """What a name whose own stat is ``st`` counts; a link that leads nowhere, or where nobody may look, 0."""
    if not stat.S_ISLNK(st.st_mode):
        return st.st_size
    try:
        return os.stat(name, dir_fd=dir_fd).st_size
    except OSError:
        return 0


def counted_now(dir_fd: int, name: str) -> int:
    """The same for a name as it is now, 0 when it has gone."""
    try:
        return counted(dir_fd, name, os.stat(name, dir_fd=dir_fd, follow_symlinks=False))
    except FileNotFoundError:
        return 0
