"""Finding out, before the first data byte, whether a folder's file system can do what publishing needs.

An object-store mount accepts gigabytes and then fails at the rename (PUB-02). There is no fall back to
writing in place: that is what destroys the old file when the disk is full.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from hwctl.errors import Refused, from_os_error
from hwctl.fs.atomic import rename_noreplace, sync_dir, write_all
from hwctl.fs.mounts import mount_of_fd
from hwctl.fs.paths import opened_dir

# What file systems answer that do not have an operation. EPERM is how some FUSE servers say so; the caller
# has just made the files, so that it cannot be about ownership.
_CANNOT = frozenset(
    {
        errno.ENOSYS,
        errno.EOPNOTSUPP,
        errno.EPERM,
        errno.EINVAL,
        errno.ENOLCK,
        errno.ENOTEMPTY,
        errno.EXDEV,
        errno.ENOTTY,
    }
)


def probe(dir_fd: int) -> None:
    """Try rename, chmod, flock and fsync in this folder; Refused, with the mount type, if one is missing.

    Everything happens inside one temporary folder, which is gone afterwards. Other failures (no room, no
    permission, I/O) are raised as what they are.
    """
    name = f".hwctl-probe.{os.getpid()}.{secrets.token_hex(16)}"
    try:
        with _step(dir_fd, "make a directory"):
            os.mkdir(name, 0o700, dir_fd=dir_fd)
        with opened_dir(name, dir_fd=dir_fd) as inside:
            _try_all(dir_fd, inside)
    finally:
        _clean(dir_fd, name)


def _try_all(dir_fd: int, inside: int) -> None:
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with _step(dir_fd, "make a file"):
        fd = os.open("file", flags, 0o600, dir_fd=inside)
    try:
        steps: tuple[tuple[str, Callable[[], object]], ...] = (
            ("write a file", lambda: write_all(fd, b"probe", 0)),
            ("lock a file", lambda: fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)),
            ("change a mode", lambda: os.fchmod(fd, 0o400)),
            ("sync a file", lambda: os.fsync(fd)),
            ("rename a file", lambda: os.rename("file", "named", src_dir_fd=inside, dst_dir_fd=inside)),
            ("make a directory", lambda: os.mkdir("folder", 0o700, dir_fd=inside)),
            ("rename without replacing", lambda: rename_noreplace(inside, "folder", inside, "placed")),
            ("lock a directory", lambda: fcntl.flock(inside, fcntl.LOCK_EX | fcntl.LOCK_NB)),
            ("sync a directory", lambda: sync_dir(inside)),
        )
        for doing, step in steps:
            with _step(dir_fd, doing):
                step()
    finally:
        os.close(fd)


@contextmanager
def _step(dir_fd: int, doing: str) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        if exc.errno not in _CANNOT:
            raise from_os_error(exc, f"the store's file system cannot {doing}") from exc
        mount = mount_of_fd(dir_fd)
        where = os.fsdecode(mount.point)
        raise Refused(
            f"the file system at {where} ({mount.fs_type}) cannot {doing}: {exc.strerror}",
            path=where,
            details={"fs_type": mount.fs_type, "operation": doing, "errno": errno.errorcode.get(exc.errno)},
        ) from exc


def _clean(dir_fd: int, name: str) -> None:
    with suppress(FileNotFoundError), opened_dir(name, dir_fd=dir_fd) as inside:
        for left in ("file", "named"):
            with suppress(FileNotFoundError):
                os.unlink(left, dir_fd=inside)
        for left in ("folder", "placed"):
            with suppress(FileNotFoundError):
                os.rmdir(left, dir_fd=inside)
    with suppress(FileNotFoundError):
        os.rmdir(name, dir_fd=dir_fd)
