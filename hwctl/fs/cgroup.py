"""How much memory the caller's control groups leave, which bounds what a tmpfs can take.

Owns reading the memory controller, v2 and v1. Pages of a tmpfs are charged to the group that writes them, so
a tmpfs larger than the group's limit ends in the OOM killer and not in ENOSPC (EVI-07).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from hwctl.fs.mounts import Mount, mounts

# v1 writes "no limit" as the largest page-aligned number; nobody has an exbibyte.
_NO_LIMIT = 1 << 60


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """The tightest limit on the way up: its size and how much of it is left, cache that can go included."""

    limit: int
    available: int


@dataclass(frozen=True, slots=True)
class _Files:
    limit: str
    usage: str
    cache: tuple[bytes, ...]


_V2 = _Files("memory.max", "memory.current", (b"inactive_file", b"active_file"))
_V1 = _Files("memory.limit_in_bytes", "memory.usage_in_bytes", (b"total_inactive_file", b"total_active_file"))


def memory_limit() -> MemoryLimit | None:
    """The limit with the least left among the caller's group and those above it, None without any.

    What cannot be read does not bind.
    """
    try:
        raw, table = Path("/proc/self/cgroup").read_bytes(), mounts()
    except OSError:
        return None
    return limit_of(raw, table)


def limit_of(cgroups: bytes, table: tuple[Mount, ...]) -> MemoryLimit | None:
    """The same for the groups in the bytes of /proc/PID/cgroup, read below the mounts of ``table``."""
    return min(_limits(cgroups, table), key=lambda limit: limit.available, default=None)


def _limits(cgroups: bytes, table: tuple[Mount, ...]) -> Iterator[MemoryLimit]:
    for line in cgroups.splitlines():
        number, _, rest = line.partition(b":")
        controllers, _, group = rest.partition(b":")
        if number == b"0" and not controllers:
            kind, files = "cgroup2", _V2
        elif b"memory" in controllers.split(b","):
            kind, files = "cgroup", _V1
        else:
            continue
        for mount in table:
            if mount.fs_type == kind and (files is _V2 or b"memory" in mount.options.split(b",")):
                yield from _upwards(Path(os.fsdecode(mount.point)), _below(mount.root, group), files)


def _below(root: bytes, group: bytes) -> PurePosixPath:
    """The group's path below the mount point.

    A container often has its own group mounted as the top while /proc/self/cgroup still tells the whole
    path, or tells one that lies outside: then the mount's own top is the nearest that can be seen.
    """
    inside, top = PurePosixPath(os.fsdecode(group)), PurePosixPath(os.fsdecode(root))
    if ".." in inside.parts or not inside.is_relative_to(top):
        return PurePosixPath(".")
    return inside.relative_to(top)


def _upwards(point: Path, below: PurePosixPath, files: _Files) -> Iterator[MemoryLimit]:
    for level in (below, *below.parents):
        limit = _limit_of(point / level, files)
        if limit is not None:
            yield limit


def _limit_of(folder: Path, files: _Files) -> MemoryLimit | None:
    limit, usage = _number(folder / files.limit), _number(folder / files.usage)
    if limit is None or usage is None or limit >= _NO_LIMIT:
        return None
    # File pages that are not shared memory can be dropped to make room; shmem stands on the anon lists.
    cache = 0
    try:
        for line in (folder / "memory.stat").read_bytes().splitlines():
            name, _, value = line.partition(b" ")
            cache += int(value) if name in files.cache else 0
    except OSError:
        cache = 0
    return MemoryLimit(limit, max(0, limit - max(0, usage - cache)))


def _number(path: Path) -> int | None:
    """The number in a control file; None if there is no such file or it says "max"."""
    try:
        text = path.read_bytes().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
