"""Moving an entry between two folders of a store so that no crash leaves something usable by mistake.

Owns the modes on the way: the sticky bit is set and on the disk before the entry has two possible places,
and goes only when both folders are on the disk. The exclusive artifact lock is the caller's.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress

from hwctl.errors import Refused
from hwctl.fs.atomic import rename_noreplace, sync_dir
from hwctl.fs.mounts import mount_id
from hwctl.fs.paths import open_dir
from hwctl.stores.hostweights.layout import STICKY, WRITE_BITS

_OWNER_WRITE = 0o200


def mark_invalid(parent_fd: int, name: str) -> tuple[int, int]:
    """Set the sticky bit on a directory, durably; needs no space. Its (device, inode)."""
    fd = open_dir(name, dir_fd=parent_fd)
    try:
        st = os.fstat(fd)
        _chmod(fd, st.st_mode & ~WRITE_BITS | STICKY)
        return (st.st_dev, st.st_ino)
    finally:
        os.close(fd)


def clear_marks(parent_fd: int, name: str) -> bool:
    """Take write and sticky bits off a directory, durably; False when it had none or is none."""
    try:
        fd = open_dir(name, dir_fd=parent_fd)
    except (NotADirectoryError, FileNotFoundError):
        return False
    try:
        mode = os.fstat(fd).st_mode
        if not mode & (WRITE_BITS | STICKY):
            return False
        _chmod(fd, mode & ~(WRITE_BITS | STICKY))
        return True
    finally:
        os.close(fd)


def move(
    src_fd: int, src: str, dst_fd: int, dst: str, *, keep_mark: bool = False, hold: bool = False
) -> None:
    """Move an entry; a directory is invalid from before the rename until both folders are synced.

    Fails with FileExistsError rather than replace anything, and with Refused on a mount point. A failure
    before the rename puts the old read-only mode back, unless ``keep_mark`` says that a known-bad entry must
    stay denied. ``hold`` leaves the mark on after the move, for a caller who has something to do before the
    entry may be used.
    """
    try:
        fd = open_dir(src, dir_fd=src_fd)
    except NotADirectoryError:
        # A file or a link in place of an artifact: nobody can take it for one.
        rename_noreplace(src_fd, src, dst_fd, dst)
        sync_dir(src_fd)
        sync_dir(dst_fd)
        return
    try:
        if mount_id(fd) != mount_id(src_fd):
            # It could not be renamed, and its modes are those of whatever was mounted there.
            raise Refused(f"{src} is a mount point, which cannot be moved", path=src)
        _move_directory(fd, src_fd, src, dst_fd, dst, keep_mark=keep_mark, hold=hold)
    finally:
        os.close(fd)


def _move_directory(
    fd: int, src_fd: int, src: str, dst_fd: int, dst: str, *, keep_mark: bool, hold: bool
) -> None:
    read_only = stat.S_IMODE(os.fstat(fd).st_mode) & ~(WRITE_BITS | STICKY)
    marked = read_only | STICKY
    _chmod(fd, marked)
    try:
        # overlayfs and tmpfs refuse to rename a directory that its owner may not write.
        os.fchmod(fd, marked | _OWNER_WRITE)
        rename_noreplace(src_fd, src, dst_fd, dst)
    except BaseException:
        with suppress(OSError):
            _chmod(fd, marked if keep_mark else read_only)
        raise
    _chmod(fd, marked)
    sync_dir(src_fd)
    sync_dir(dst_fd)
    if not hold:
        _chmod(fd, read_only)


def _chmod(fd: int, mode: int) -> None:
    os.fchmod(fd, stat.S_IMODE(mode))
    os.fsync(fd)
