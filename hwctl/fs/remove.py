"""Deleting a tree by descriptors alone, and measuring what that gave back.

Owns unlinking safely: no link is followed, no mount is entered, nothing is found by path. Whether the tree
may be deleted, and under which lock, was decided before.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass

from hwctl.errors import Refused
from hwctl.fs.mounts import mount_id, mounts
from hwctl.fs.openfiles import OpenFiles
from hwctl.fs.walk import Descent, Inode, inode_of

_BLOCK = 512
_OWNER_ALL = stat.S_IRWXU


@dataclass(frozen=True, slots=True)
class Deleted:
    """What a removal did. ``files`` are names that were no folders, ``size`` the st_size of regular ones.

    ``bytes_freed`` is st_blocks * 512 of every inode whose last link went, folders too, each once;
    ``still_mapped`` the part that is not free yet, since somebody has it open or mapped (EVI-03). It is
    looked for only when the caller hands in an ``OpenFiles``.
    """

    files: int = 0
    bytes_freed: int = 0
    still_mapped: int = 0
    size: int = 0


class _Count:
    """The running count of one removal."""

    def __init__(self, open_files: OpenFiles | None) -> None:
        self.files = 0
        self.freed = 0
        self.mapped = 0
        self.size = 0
        self._open_files = open_files

    def gone(self, st: os.stat_result) -> None:
        """A name was unlinked whose stat, taken just before, is ``st``."""
        folder = stat.S_ISDIR(st.st_mode)
        if stat.S_ISREG(st.st_mode):
            self.size += st.st_size
        if st.st_nlink > 1 and not folder:
            return
        size = st.st_blocks * _BLOCK
        # A folder that somebody stands in, or another removal looks at, is no data that is still in use.
        if not folder and self._open_files is not None and self._open_files.holds(inode_of(st)):
            self.mapped += size
        else:
            self.freed += size

    def result(self) -> Deleted:
        return Deleted(self.files, self.freed, self.mapped, self.size)


def remove_file(dir_fd: int, name: str, *, open_files: OpenFiles | None = None) -> Deleted:
    """Unlink one name that is no folder; a link itself, not its target. Already gone is success."""
    count = _Count(open_files)
    _unlink(dir_fd, name, count)
    return count.result()


def remove_tree(
    dir_fd: int,
    name: str,
    *,
    inode: Inode | None = None,
    make_writable: bool = True,
    open_files: OpenFiles | None = None,
    last: Collection[str] = (),
) -> Deleted:
    """Delete ``name`` and everything below it, bottom up; what another process removes first is success.

    ``inode`` is what was looked at when the removal was decided: if something else stands there now, that
    is Refused and untouched (EVI-05). A mount anywhere below is Refused before anything is deleted.
    ``make_writable`` gives folders the owner's rights where they are missing, as in published 0555 ones.
    Files named in ``last`` that lie directly in the tree outlive the rest, so that what a killed removal
    leaves still says what it is. Other OSErrors are raised as they are; a later call goes on where this one
    stopped.
    """
    try:
        top = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    except FileNotFoundError:
        return Deleted()
    if inode is not None and inode_of(top) != inode:
        raise Refused(f"{name}: something else stands there now; nothing was deleted")
    if not stat.S_ISDIR(top.st_mode):
        return remove_file(dir_fd, name, open_files=open_files)
    count = _Count(open_files)
    try:
        descent = _open_top(dir_fd, name, make_writable)
    except FileNotFoundError:
        return Deleted()
    with descent:
        opened = os.fstat(descent.fd)
        if inode_of(opened) != inode_of(top):
            raise Refused(f"{name}: was replaced while it was opened; nothing was deleted")
        _empty(descent, _Border(dir_fd, descent.fd, name), make_writable, count, last)
    _rmdir(dir_fd, name, top, count)
    return count.result()


class _Border:
    """The edge of the file system that the tree lies on: its device and its mount."""

    def __init__(self, parent_fd: int, top_fd: int, name: str) -> None:
        self._name = name
        self._device = os.fstat(parent_fd).st_dev
        self._mount = mount_id(parent_fd)
        self.check(top_fd, os.fstat(top_fd))
        require_no_mounts(top_fd, name)

    def check(self, fd: int, st: os.stat_result) -> None:
        """A bind mount of the same file system has the same device, hence the mount's id too."""
        if st.st_dev != self._device or mount_id(fd) != self._mount:
            raise _crossing(self._name, os.readlink(f"/proc/self/fd/{fd}"))


def require_no_mounts(fd: int, name: str) -> None:
    """Refuse when something is mounted below the folder ``fd``, called ``name``.

    Asked of the table before the first unlink, so that a refusal leaves the tree as it was.
    """
    path = os.readlink(b"/proc/self/fd/%d" % fd) + b"/"
    for mount in mounts():
        if mount.point.startswith(path):
            raise _crossing(name, os.fsdecode(mount.point))


def _crossing(name: str, where: str) -> Refused:
    return Refused(f"{name}: {where} is a mount point; a removal does not cross mounts", path=where)


def _open_top(dir_fd: int, name: str, make_writable: bool) -> Descent:
    try:
        return Descent(dir_fd, name)
    except PermissionError:
        if not make_writable:
            raise
    _make_readable(dir_fd, name)
    return Descent(dir_fd, name)


def _make_readable(dir_fd: int, name: str) -> None:
    """Give the owner's rights to a folder that cannot be opened; through O_PATH, which needs none."""
    fd = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dir_fd)
    try:
        os.chmod(f"/proc/self/fd/{fd}", _OWNER_ALL)
    finally:
        os.close(fd)


def _empty(
    descent: Descent, border: _Border, make_writable: bool, count: _Count, last: Collection[str]
) -> None:
    """Delete everything below the folder that ``descent`` stands in."""
    trail: list[tuple[str, os.stat_result]] = []
    pending = [_clear_files(descent, border, make_writable, count, sparing=last)]
    while True:
        if pending[-1]:
            name = pending[-1].pop()
            if _enter(descent, name, make_writable):
                trail.append((name, os.fstat(descent.fd)))
                pending.append(_clear_files(descent, border, make_writable, count))
            continue
        pending.pop()
        if not pending:
            for name in last:
                _unlink(descent.fd, name, count)
            return
        descent.up()
        name, st = trail.pop()
        _rmdir(descent.fd, name, st, count)


def _enter(descent: Descent, name: str, make_writable: bool) -> bool:
    try:
        try:
            descent.down(name)
        except PermissionError:
            if not make_writable:
                raise
            _make_readable(descent.fd, name)
            descent.down(name)
    except FileNotFoundError:
        return False
    return True


def _clear_files(
    descent: Descent, border: _Border, make_writable: bool, count: _Count, sparing: Collection[str] = ()
) -> list[str]:
    """Unlink what is no folder in the current folder; the names of the folders in it."""
    fd = descent.fd
    st = os.fstat(fd)
    border.check(fd, st)
    if make_writable and st.st_mode & _OWNER_ALL != _OWNER_ALL:
        os.fchmod(fd, _OWNER_ALL)
    folders: list[str] = []
    files: list[str] = []
    # Listed whole before the first unlink: POSIX leaves open what a listing shows while names go.
    with suppress(FileNotFoundError), os.scandir(fd) as entries:
        for entry in entries:
            (folders if entry.is_dir(follow_symlinks=False) else files).append(entry.name)
    for name in files:
        if name not in sparing:
            _unlink(fd, name, count)
    return folders


def _unlink(dir_fd: int, name: str, count: _Count) -> None:
    try:
        st = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
        os.unlink(name, dir_fd=dir_fd)
    except FileNotFoundError:
        return
    except OSError as exc:
        if exc.errno == errno.EBUSY:
            raise Refused(f"{name}: is a mount point; a removal does not cross mounts") from exc
        raise
    count.files += 1
    count.gone(st)


def _rmdir(dir_fd: int, name: str, st: os.stat_result, count: _Count) -> None:
    try:
        os.rmdir(name, dir_fd=dir_fd)
    except FileNotFoundError:
        return
    except OSError as exc:
        if exc.errno == errno.EBUSY:
            raise Refused(f"{name}: is a mount point; a removal does not cross mounts") from exc
        raise
    count.gone(st)
