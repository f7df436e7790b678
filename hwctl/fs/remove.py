"""Deleting a tree by descriptors alone, and measuring what that gave back.

Owns unlinking safely: no link is followed, no mount is entered, nothing is found by path. Whether the tree
may be deleted, and under which lock, was decided before.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass

from hwctl.errors import Refused
from hwctl.fs.mounts import mount_id, mounted_in, mounts
from hwctl.fs.openfiles import OpenFiles
from hwctl.fs.walk import Descent, Inode, allocated, inode_of

_OWNER_ALL = stat.S_IRWXU


@dataclass(frozen=True, slots=True)
class Removed:
    """What a removal did. ``files`` are names that were no folders, ``size`` the st_size of regular ones.

    ``bytes_freed`` is st_blocks * 512 of every inode whose last link went, folders too, each once;
    ``still_mapped`` the part that is not free yet, since somebody has it open or mapped (EVI-03). It is
    looked for only when the caller hands in an ``OpenFiles``. ``left`` says what is in the way where it is
    still there after all.
    """

    files: int = 0
    bytes_freed: int = 0
    still_mapped: int = 0
    size: int = 0
    left: str | None = None

    def __add__(self, other: Removed) -> Removed:
        return Removed(
            self.files + other.files,
            self.bytes_freed + other.bytes_freed,
            self.still_mapped + other.still_mapped,
            self.size + other.size,
            self.left or other.left,
        )


class Removal:
    """One removal under way: names go one by one, what that gave back is counted."""

    def __init__(self, open_files: OpenFiles | None = None) -> None:
        self._open_files = open_files
        # Of 180,000 files none may be in use, and to look each of them up takes half as long as its stat.
        uses = {} if open_files is None else open_files.uses
        self._suspects = frozenset(number for _device, number in uses)
        self._files = self._freed = self._mapped = self._size = 0

    def unlink(
        self, dir_fd: int, name: str, st: os.stat_result | None = None, *, regular: bool = False
    ) -> None:
        """Unlink a name that is no folder; if ``regular``, nothing but a regular file. ``st`` is its stat
        where the caller has just looked. Already gone is success."""
        try:
            st = st or os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
            if regular and not stat.S_ISREG(st.st_mode):
                return
            os.unlink(name, dir_fd=dir_fd)
        except FileNotFoundError:
            return
        except OSError as exc:
            raise _mount_or(exc, name) from exc
        self._files += 1
        self._gone(st)

    def rmdir(self, dir_fd: int, name: str, st: os.stat_result | None = None) -> None:
        """Remove an empty folder; ``st`` is its stat from before it was emptied. Already gone is success."""
        try:
            st = st or os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
            os.rmdir(name, dir_fd=dir_fd)
        except FileNotFoundError:
            return
        except OSError as exc:
            raise _mount_or(exc, name) from exc
        self._gone(st)

    def _gone(self, st: os.stat_result) -> None:
        kind = stat.S_IFMT(st.st_mode)
        if kind == stat.S_IFREG:
            self._size += st.st_size
        if st.st_nlink > 1 and kind != stat.S_IFDIR:
            return
        # A folder that somebody stands in, or another removal looks at, is no data that is still in use.
        if st.st_ino in self._suspects and kind != stat.S_IFDIR and self._is_held(inode_of(st)):
            self._mapped += allocated(st)
        else:
            self._freed += allocated(st)

    def _is_held(self, inode: Inode) -> bool:
        return self._open_files is not None and self._open_files.holds(inode)

    def result(self) -> Removed:
        return Removed(self._files, self._freed, self._mapped, self._size)


def _mount_or(exc: OSError, name: str) -> Exception:
    """What EBUSY means of a name that is to go, any other error as it is."""
    if exc.errno == errno.EBUSY:
        return Refused(f"{name}: is a mount point; a removal does not cross mounts")
    return exc


def remove_file(dir_fd: int, name: str, *, open_files: OpenFiles | None = None) -> Removed:
    """Unlink one name that is no folder; a link itself, not its target. Already gone is success."""
    removal = Removal(open_files)
    removal.unlink(dir_fd, name)
    return removal.result()


def remove_tree(
    dir_fd: int,
    name: str,
    *,
    inode: Inode | None = None,
    open_files: OpenFiles | None = None,
    last: Collection[str] = (),
) -> Removed:
    """Delete ``name`` and everything below it, bottom up; what another process removes first is success.

    ``inode`` is what was looked at when the removal was decided: if something else stands there now, that
    is Refused and untouched (EVI-05). A mount anywhere below is Refused before anything is deleted. Folders
    are given the owner's rights where they are missing, as in published 0555 ones. Files named in ``last``
    that lie directly in the tree outlive the rest, so that what a killed removal leaves still says what it
    is. Other OSErrors are raised as they are; a later call goes on where this one stopped.
    """
    try:
        top = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    except FileNotFoundError:
        return Removed()
    if inode is not None and inode_of(top) != inode:
        raise Refused(f"{name}: something else stands there now; nothing was deleted")
    if not stat.S_ISDIR(top.st_mode):
        return remove_file(dir_fd, name, open_files=open_files)
    removal = Removal(open_files)
    try:
        descent = _open_top(dir_fd, name)
    except FileNotFoundError:
        return Removed()
    with descent:
        opened = os.fstat(descent.fd)
        if inode_of(opened) != inode_of(top):
            raise Refused(f"{name}: was replaced while it was opened; nothing was deleted")
        _empty(descent, _Border(dir_fd, descent.fd, name), removal, last)
    removal.rmdir(dir_fd, name, top)
    return removal.result()


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


def require_same_mount(parent_fd: int, child_fd: int, name: str) -> None:
    """Refuse when the folder ``child_fd``, called ``name``, is where another mount begins."""
    if mount_id(parent_fd) != mount_id(child_fd):
        raise _crossing(name, os.readlink(f"/proc/self/fd/{child_fd}"))


def require_no_mounts(fd: int, name: str) -> None:
    """Refuse when something is mounted below the folder ``fd``, called ``name``.

    Asked of the table before the first unlink, so that a refusal leaves the tree as it was.
    """
    path = os.readlink(b"/proc/self/fd/%d" % fd) + b"/"
    for mount in mounts():
        if mount.point.startswith(path):
            raise _crossing(name, os.fsdecode(mount.point))


def require_none_mounted(dir_fd: int, names: Iterable[str], mounted: frozenset[str] | None = None) -> None:
    """Refuse when a file of these names in ``dir_fd`` is a mount point, before the first of them has gone.

    ``mounted`` is ``mounted_in`` for a caller with thousands of such questions.
    """
    there = mounted_in(dir_fd) if mounted is None else mounted
    for name in there.intersection(names):
        raise _crossing(name, os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), name))


def _crossing(name: str, where: str) -> Refused:
    return Refused(f"{name}: {where} is a mount point; a removal does not cross mounts", path=where)


def _open_top(dir_fd: int, name: str) -> Descent:
    try:
        return Descent(dir_fd, name)
    except PermissionError:
        _make_readable(dir_fd, name)
        return Descent(dir_fd, name)


def _make_readable(dir_fd: int, name: str) -> None:
    """Give the owner's rights to a folder that cannot be opened; through O_PATH, which needs none."""
    fd = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dir_fd)
    try:
        os.chmod(f"/proc/self/fd/{fd}", _OWNER_ALL)
    finally:
        os.close(fd)


def _empty(descent: Descent, border: _Border, removal: Removal, last: Collection[str]) -> None:
    """Delete everything below the folder that ``descent`` stands in."""
    trail: list[tuple[str, os.stat_result]] = []
    pending = [_clear_files(descent, border, removal, sparing=last)]
    while True:
        if pending[-1]:
            name = pending[-1].pop()
            if _enter(descent, name):
                trail.append((name, os.fstat(descent.fd)))
                pending.append(_clear_files(descent, border, removal))
            continue
        pending.pop()
        if not pending:
            for name in last:
                removal.unlink(descent.fd, name)
            return
        descent.up()
        name, st = trail.pop()
        removal.rmdir(descent.fd, name, st)


def _enter(descent: Descent, name: str) -> bool:
    try:
        try:
            descent.down(name)
        except PermissionError:
            _make_readable(descent.fd, name)
            descent.down(name)
    except FileNotFoundError:
        return False
    return True


def _clear_files(
    descent: Descent, border: _Border, removal: Removal, sparing: Collection[str] = ()
) -> list[str]:
    """Unlink what is no folder in the current folder; the names of the folders in it."""
    fd = descent.fd
    st = os.fstat(fd)
    border.check(fd, st)
    if st.st_mode & _OWNER_ALL != _OWNER_ALL:
        os.fchmod(fd, _OWNER_ALL)
    folders: list[str] = []
    files: list[str] = []
    # Listed whole before the first unlink: POSIX leaves open what a listing shows while names go.
    with suppress(FileNotFoundError), os.scandir(fd) as entries:
        for entry in entries:
            (folders if entry.is_dir(follow_symlinks=False) else files).append(entry.name)
    for name in files:
        if name not in sparing:
            removal.unlink(fd, name)
    return folders
