"""Opening lock files: what they may be, whose they are, and whether the name still means the file.

Owns the file behind a lock. Locking it is in ``locks``.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from hwctl.errors import HwctlError, IoFailed, Refused, from_os_error
from hwctl.fs.paths import kind_of
from hwctl.fs.walk import inode_of


def shown_path(name: str | Path, dir_fd: int | None) -> str:
    """The path for messages and for ``Held.path``; nothing is opened by it."""
    text = os.fspath(name)
    if dir_fd is None:
        return text
    try:
        base = os.readlink(f"/proc/self/fd/{dir_fd}")
    except OSError:
        return text
    return base if text == "." else os.path.join(base, text)


def open_lock_file(
    name: str | Path, dir_fd: int | None, shown: str, *, create: bool, file_mode: int
) -> int | None:
    """A descriptor of the lock file, or None when it is absent and not to be created.

    Raises Refused for anything but a regular file, IoFailed or NoRoom when it cannot be opened.
    """
    flags = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
    if create:
        flags |= os.O_CREAT
    flags |= os.O_RDWR if create else os.O_RDONLY
    try:
        fd = os.open(name, flags, file_mode, dir_fd=dir_fd)
    except FileNotFoundError as exc:
        if not create:
            return None
        raise from_os_error(exc, f"{shown}: cannot create the lock file", shown) from exc
    except OSError as exc:
        raise _cannot_open(exc, name, dir_fd, shown) from exc
    try:
        st = os.fstat(fd)
        if not stat.S_ISREG(st.st_mode):
            raise Refused(f"{shown}: the lock file is a {kind_of(st.st_mode)}", path=shown)
    except BaseException as exc:
        os.close(fd)
        if isinstance(exc, OSError):
            raise from_os_error(exc, f"{shown}: cannot look at the lock file", shown) from exc
        raise
    return fd


def _cannot_open(exc: OSError, name: str | Path, dir_fd: int | None, shown: str) -> HwctlError:
    try:
        st = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    except OSError:
        return from_os_error(exc, f"{shown}: cannot open the lock file", shown)
    if not stat.S_ISREG(st.st_mode):
        return Refused(f"{shown}: the lock file is a {kind_of(st.st_mode)}", path=shown)
    if isinstance(exc, PermissionError):
        # LEA-04: a bare "permission denied" on a lock file tells nobody whose store it is.
        return IoFailed(
            f"{shown}: the lock file belongs to uid {st.st_uid} and uid {os.geteuid()} may not open it",
            path=shown,
            details={"errno": errno.errorcode.get(exc.errno or 0), "owner_uid": st.st_uid},
        )
    return from_os_error(exc, f"{shown}: cannot open the lock file", shown)


def still_named(fd: int, name: str | Path, dir_fd: int | None) -> bool:
    """Whether the name still stands for the open file, and not for nothing or for another one."""
    try:
        named = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return inode_of(named) == inode_of(os.fstat(fd))
