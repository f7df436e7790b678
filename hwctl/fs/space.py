"""Room: how much there is, asking for it early, taking it for good, and what a tree really uses.

Owns measuring and reserving. Budgets and policies over whole stores are the families' business.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hwctl.errors import NoRoom
from hwctl.fs.cgroup import memory_limit
from hwctl.fs.mounts import MEMORY, Mount, mount_of, mount_of_fd
from hwctl.fs.walk import Inode, allocated, inode_of, walk_stats

CGROUP = "cgroup limit"
"""What binds the room of a process whose memory is limited below the size of the file system."""


@dataclass(frozen=True, slots=True)
class Room:
    """What can still be written. ``binding`` names what sets the bound: "file system" or "cgroup limit".

    ``free_bytes`` is what is left for users without privileges; ``free_inodes`` is None where the file
    system makes inodes as needed.
    """

    free_bytes: int
    total_bytes: int
    free_inodes: int | None
    binding: str


@dataclass(frozen=True, slots=True)
class Usage:
    """What a tree takes: apparent ``bytes`` of its regular files, and ``allocated`` bytes of everything in
    it, folders too, each inode once. ``files`` counts names that are no folders; ``newest_ns`` is the latest
    mtime or ctime of anything in it, ``written_ns`` the latest mtime; 0 for a tree that is not there.
    """

    bytes: int
    allocated: int
    files: int
    newest_ns: int
    written_ns: int


def room(path_or_fd: int | str | Path) -> Room:
    """The room where a path lies, or will lie once it is made."""
    if isinstance(path_or_fd, int):
        mount, facts = mount_of_fd(path_or_fd), os.fstatvfs(path_or_fd)
    else:
        existing = _existing(Path(path_or_fd))
        mount, facts = mount_of(existing), os.statvfs(existing)
    free, total = facts.f_bavail * facts.f_frsize, facts.f_blocks * facts.f_frsize
    inodes = facts.f_favail if facts.f_files else None
    limit = memory_limit() if mount.fs_type in MEMORY else None
    if mount.fs_type == "ramfs" or (mount.fs_type == "tmpfs" and not facts.f_blocks):
        # ramfs, and a tmpfs of size=0, have no bound of their own and report zero blocks.
        free = total = _memory_available()
    if limit is not None and limit.available < free:
        return Room(limit.available, min(total, limit.limit), inodes, CGROUP)
    return Room(free, total, inodes, "file system")


def used(paths: Iterable[Path]) -> int:
    """Bytes in use on the file systems that these paths lie on, each counted once; one that does not answer
    counts nothing."""
    found: dict[int, int] = {}
    for path in paths:
        with suppress(OSError):
            existing = _existing(path)
            facts = os.statvfs(existing)
            found[os.stat(existing).st_dev] = (facts.f_blocks - facts.f_bfree) * facts.f_frsize
    return sum(found.values())


def _existing(path: Path) -> Path:
    path = path.absolute()
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def _memory_available() -> int:
    for line in Path("/proc/meminfo").read_bytes().splitlines():
        if line.startswith(b"MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def require(
    path_or_fd: int | str | Path, need_bytes: int, need_inodes: int, *, keep_free: int = 0, what: str
) -> None:
    """Raise NoRoom unless ``need_bytes`` and ``need_inodes`` fit and ``keep_free`` bytes stay free.

    The message names need, available, mount point and the knob that helps (PUB-03). A passed check is no
    promise, since others write too and quotas do not show here: writing must still expect ENOSPC and EDQUOT.
    """
    there = room(path_or_fd)
    mount = mount_of_fd(path_or_fd) if isinstance(path_or_fd, int) else mount_of(Path(path_or_fd))
    where = f"{os.fsdecode(mount.point)} ({mount.fs_type}, bound by the {there.binding})"
    details: dict[str, object] = {
        "need_bytes": need_bytes,
        "available_bytes": there.free_bytes,
        "keep_free_bytes": keep_free,
        "need_inodes": need_inodes,
        "available_inodes": there.free_inodes,
        "mount": os.fsdecode(mount.point),
        "fs_type": mount.fs_type,
        "binding": there.binding,
    }
    path = None if isinstance(path_or_fd, int) else path_or_fd
    if need_bytes + keep_free > there.free_bytes:
        kept = f" and {_size(keep_free)} kept free" if keep_free else ""
        raise NoRoom(
            f"{what}: needs {_size(need_bytes)}{kept}, available are {_size(there.free_bytes)} "
            f"on {where}{_knob(mount, there)}",
            path=path,
            retryable=True,
            details=details,
        )
    if there.free_inodes is not None and need_inodes > there.free_inodes:
        knob = "; a remount with a larger nr_inodes= helps" if mount.fs_type == "tmpfs" else ""
        raise NoRoom(
            f"{what}: needs {need_inodes} inodes, available are {there.free_inodes} on {where}{knob}",
            path=path,
            retryable=True,
            details=details,
        )


def ran_out(path: Path, need_bytes: int, exc: OSError, *, what: str) -> NoRoom:
    """The failure that ENOSPC or EDQUOT stands for, met while ``need_bytes`` were written below ``path``.

    Asked for once what was written is removed, so that the room is what there was. It may seem enough then: a
    quota shows nowhere, and others write and delete as well.
    """
    if exc.errno == errno.ENOSPC:
        try:
            require(path, need_bytes, 0, what=what)
        except NoRoom as shortage:
            return shortage
    there, mount = room(path), mount_of(path)
    where = f"{os.fsdecode(mount.point)} ({mount.fs_type})"
    why = f"the disk quota of uid {os.geteuid()} is used up" if exc.errno == errno.EDQUOT else "it was full"
    return NoRoom(
        f"{what}: needs {_size(need_bytes)}; {why} on {where}, where {_size(there.free_bytes)} are free now"
        f"{_knob(mount, there)}",
        path=path,
        retryable=True,
        details={
            "errno": errno.errorcode.get(exc.errno or 0),
            "need_bytes": need_bytes,
            "available_bytes": there.free_bytes,
            "mount": os.fsdecode(mount.point),
            "fs_type": mount.fs_type,
        },
    )


def _knob(mount: Mount, there: Room) -> str:
    if there.binding == "cgroup limit":
        return "; raise the memory limit of the container or job"
    if mount.fs_type == "tmpfs":
        return "; raise the size of the tmpfs (--shm-size, emptyDir sizeLimit, or remount with size=)"
    return ""


def _size(count: int) -> str:
    """A size for people, with the exact bytes behind it."""
    scaled, unit = float(count), "bytes"
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB"):
        if scaled < 1024 or unit == "TiB":
            break
        scaled /= 1024
    return f"{count} bytes" if unit == "bytes" else f"{scaled:.1f} {unit} ({count} bytes)"


def reserve(fd: int, size: int) -> None:
    """Give a new file its size and its blocks now, so that no later store through a map dies of SIGBUS.

    Where the file system cannot reserve, the size alone is set and writing has to expect ENOSPC. ENOSPC and
    EDQUOT are raised as they are.
    """
    if size > 0:
        try:
            os.posix_fallocate(fd, 0, size)
            return
        except OSError as exc:
            if exc.errno not in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
                raise
    os.ftruncate(fd, size)


def usage(dir_fd: int, name: str) -> Usage:
    """Measure a file or tree without following links; what vanishes meanwhile is not counted."""
    apparent = taken = files = newest = written = 0
    linked: set[Inode] = set()
    for st in walk_stats(dir_fd, name):
        # A tree may hold hundreds of thousands of files: compared, not max(), which costs as much as a stat.
        if st.st_mtime_ns > written:
            written = st.st_mtime_ns
        if st.st_ctime_ns > newest:
            newest = st.st_ctime_ns
        if not stat.S_ISDIR(st.st_mode):
            files += 1
            apparent += st.st_size if stat.S_ISREG(st.st_mode) else 0
            if st.st_nlink > 1:
                if inode_of(st) in linked:
                    continue
                linked.add(inode_of(st))
        taken += allocated(st)
    return Usage(apparent, taken, files, max(newest, written), written)
