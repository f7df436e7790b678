"""Which file system a path lies on, and of which class it is.

Owns reading mountinfo. Whether a class is good enough for a store is for the stores to say; a reader that
must agree with an upstream's own rules finds the fields here and applies them itself.
"""

from __future__ import annotations

import functools
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

LOCAL_DISK = frozenset(
    {
        "aufs",
        "bcachefs",
        "btrfs",
        "erofs",
        "ext2",
        "ext3",
        "ext4",
        "f2fs",
        "fuseblk",
        "jfs",
        "ntfs3",
        "overlay",
        "reiserfs",
        "rootfs",
        "xfs",
        "zfs",
    }
)
MEMORY = frozenset({"tmpfs", "ramfs"})
REMOTE = frozenset(
    {
        "9p",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "fuse.gcsfuse",
        "fuse.s3fs",
        "fuse.sshfs",
        "gcsfuse",
        "glusterfs",
        "gpfs",
        "lustre",
        "nfs",
        "nfs4",
        "orangefs",
        "panfs",
        "s3fs",
        "smb3",
        "sshfs",
        "virtiofs",
        "wekafs",
    }
)

# File systems whose files carry another device number than their mount does: btrfs subvolumes, and overlay
# files that come from a layer below. What the kernel lists by device has to be found by inode number there.
OTHER_DEVICES = frozenset({"btrfs", "overlay"})

_OCTAL = re.compile(rb"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of mountinfo. Bytes, since neither mount points nor sources need be UTF-8.

    ``device`` is (major, minor); on btrfs and overlay a file's own st_dev is another number. ``root`` is the
    folder of the file system that is mounted here, ``number`` the mount id that fdinfo shows.
    """

    point: bytes
    fs_type: str
    device: tuple[int, int]
    source: bytes
    root: bytes = b"/"
    number: int = -1
    options: bytes = b""


_MOUNTINFO = "/proc/self/mountinfo"
_READ = 1 << 16


def mounts() -> tuple[Mount, ...]:
    """All mounts of the caller's namespace in the kernel's order."""
    return parse_mountinfo(_bytes_of(_MOUNTINFO))


@functools.lru_cache(maxsize=4)
def parse_mountinfo(raw: bytes) -> tuple[Mount, ...]:
    """The mounts in the bytes of /proc/PID/mountinfo, parsed once: a run asks for each of 10,000 files."""
    parsed = (_parse(line) for line in raw.split(b"\n"))
    return tuple(mount for mount in parsed if mount is not None)


def _parse(line: bytes) -> Mount | None:
    # 36 35 98:0 /root /point rw,noatime master:1 - ext4 /dev/root rw,errors=continue
    left, separator, right = line.partition(b" - ")
    fields, rest = left.split(b" "), right.split(b" ")
    if not separator or len(fields) < 6 or len(rest) < 2:
        return None
    major, _, minor = fields[2].partition(b":")
    return Mount(
        point=_unescape(fields[4]),
        fs_type=rest[0].decode("ascii", "surrogateescape"),
        device=(int(major), int(minor)),
        source=_unescape(rest[1]),
        root=_unescape(fields[3]),
        number=int(fields[0]),
        options=rest[2] if len(rest) > 2 else b"",
    )


def _unescape(field: bytes) -> bytes:
    """The kernel writes space, tab, newline and backslash as octal."""
    return _OCTAL.sub(lambda match: bytes([int(match.group(1), 8)]), field)


def _bytes_of(path: str) -> bytes:
    """A file of /proc, which a deletion asks several times for each file; pathlib takes twice as long."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return b"".join(iter(lambda: os.read(fd, _READ), b""))
    finally:
        os.close(fd)


def plain_devices() -> frozenset[int]:
    """The st_dev of every mounted file system whose files all carry just that number."""
    return _plain_devices(_bytes_of(_MOUNTINFO))


@functools.lru_cache(maxsize=4)
def _plain_devices(raw: bytes) -> frozenset[int]:
    table = parse_mountinfo(raw)
    return frozenset(os.makedev(*mount.device) for mount in table if mount.fs_type not in OTHER_DEVICES)


def mounted_in(dir_fd: int) -> frozenset[str]:
    """The names directly in an open folder that are mount points; none where there is no /proc to tell."""
    try:
        return _mounted_in(os.readlink(b"/proc/self/fd/%d" % dir_fd), _bytes_of(_MOUNTINFO))
    except FileNotFoundError:
        return frozenset()


@functools.lru_cache(maxsize=4)
def _mounted_in(folder: bytes, raw: bytes) -> frozenset[str]:
    points = (os.path.split(mount.point) for mount in parse_mountinfo(raw))
    return frozenset(os.fsdecode(name) for parent, name in points if parent == folder and name)


def mount_of(path: Path) -> Mount:
    """The mount that a path lies on; for one that does not exist yet, its nearest existing parent.

    The kernel is asked for the mount's id, which is right for stacked and covered mounts, bind mounts and
    btrfs alike. Where /proc does not tell, the longest mount point wins, the last of equals, since a later
    mount covers an earlier one; st_dev has a say before the length does.
    """
    existing = Path(os.path.realpath(path))  # resolve() raises RuntimeError on a circle of links
    while True:
        try:
            fd = os.open(existing, os.O_PATH | os.O_CLOEXEC)
            break
        except FileNotFoundError:
            existing = existing.parent
    try:
        return mount_of_fd(fd)
    finally:
        os.close(fd)


def mount_of_fd(fd: int) -> Mount:
    """``mount_of`` for what is open already."""
    table = mounts()
    number = mount_id(fd)
    for mount in table:
        if mount.number == number:
            return mount
    path = os.fsencode(os.readlink(f"/proc/self/fd/{fd}"))
    return covering(table, path, os.fstat(fd).st_dev)


def mount_id(fd: int) -> int | None:
    """The id of the mount that an open descriptor came through, None where the kernel does not say."""
    try:
        raw = _bytes_of(f"/proc/self/fdinfo/{fd}")
    except OSError:
        return None
    for line in raw.splitlines():
        if line.startswith(b"mnt_id:"):
            return int(line.split()[1])
    return None


def covering(table: tuple[Mount, ...], path: bytes, st_dev: int | None = None) -> Mount:
    """The mount of ``table`` that shows at a resolved absolute path. LookupError if none covers it."""
    found = [mount for mount in table if _is_prefix(mount.point, path)]
    if not found:
        raise LookupError("no mount covers the path")
    if st_dev is not None:
        device = (os.major(st_dev), os.minor(st_dev))
        found = [mount for mount in found if mount.device == device] or found
    longest = max(len(mount.point) for mount in found)
    return [mount for mount in found if len(mount.point) == longest][-1]


def _is_prefix(point: bytes, path: bytes) -> bool:
    return point == b"/" or path == point or path.startswith(point + b"/")


def storage_class(fs_type: str) -> Literal["disk", "tmpfs", "remote", "unknown"]:
    """The class of a file-system type; anything not listed is unknown, never guessed."""
    if fs_type in MEMORY:
        return "tmpfs"
    if fs_type in LOCAL_DISK:
        return "disk"
    return "remote" if fs_type in REMOTE else "unknown"
