"""Durable writing: a document is whole or absent, old or new, whenever the machine stops.

Everything that is written and must survive goes through here. What is written, and where the caller's
staging lies, is decided elsewhere; so is the choice of names, but for temporaries.
"""

from __future__ import annotations

import errno
import functools
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

# linux/fs.h; the flag makes a publication fail instead of replacing what is there.
_RENAME_NOREPLACE = 1


def write_all(fd: int, data: ReadableBuffer, offset: int) -> None:
    """Write all of ``data`` at ``offset``; the file position is neither used nor moved.

    A write that takes nothing without an error is EIO: looping on it would hang.
    """
    with memoryview(data) as whole, whole.cast("B") as rest:
        done = 0
        while done < rest.nbytes:
            written = os.pwrite(fd, rest[done:], offset + done)
            if written <= 0:
                raise OSError(errno.EIO, "a write took no bytes")
            done += written


def create_document(dir_fd: int, name: str, data: bytes, mode: int) -> None:
    """Create ``name`` with these bytes and this mode, durable in itself; FileExistsError if it is taken.

    The bytes reach the disk before the mode that may declare them final. The folder's own entry is left to
    ``sync_dir``, so that several documents cost one. On any failure, ENOSPC too, nothing stays behind.
    """
    fd = os.open(name, _NEW_FILE, 0o600, dir_fd=dir_fd)
    with _gone_on_failure(dir_fd, name):
        try:
            write_all(fd, data, 0)
            os.fsync(fd)
            os.fchmod(fd, mode)
            os.fsync(fd)
        finally:
            os.close(fd)


def replace_document(
    dir_fd: int, name: str, data: bytes, *, mode: int = 0o600, temporary: str | None = None
) -> None:
    """Put these bytes under ``name``, replacing what is there: readers see the old or the new file whole.

    The temporary lies in the same folder, since a rename must not cross file systems; readers that have the
    old file open or mapped keep its bytes (PUB-01).
    """
    temporary = temporary or _temporary(name)
    create_document(dir_fd, temporary, data, mode)
    with _gone_on_failure(dir_fd, temporary):
        os.rename(temporary, name, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
    sync_dir(dir_fd)


@contextmanager
def replacing(dir_fd: int, name: str) -> Iterator[tuple[int, str]]:
    """A new file that takes the name when the block ends well, durably, and is gone when it does not.

    Yields its descriptor, for writing, and the name that it has until then. For what is too large to be held
    in memory; like ``replace_document`` in all else.
    """
    temporary = _temporary(name)
    fd = os.open(temporary, _NEW_FILE, 0o666, dir_fd=dir_fd)
    with _gone_on_failure(dir_fd, temporary):
        try:
            yield fd, temporary
            os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(temporary, name, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
    sync_dir(dir_fd)


@contextmanager
def _gone_on_failure(dir_fd: int, name: str) -> Iterator[None]:
    """Take a file that was made here away again when the block does not end well."""
    try:
        yield
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=dir_fd)
        raise


def _temporary(name: str) -> str:
    return f".{name}.{os.getpid()}.{secrets.token_hex(16)}.tmp"


def rename_noreplace(src_dir: int, src: str, dst_dir: int, dst: str) -> None:
    """Rename, but never over anything: FileExistsError if ``dst`` is taken, be it an empty folder.

    This is what publishes. A file system without RENAME_NOREPLACE answers EINVAL, and there is no safe
    substitute: a check followed by a rename would replace what came in between.
    """
    if "\0" in src or "\0" in dst:
        raise ValueError("embedded null byte")
    code = _renameat2()(src_dir, os.fsencode(src), dst_dir, os.fsencode(dst), _RENAME_NOREPLACE)
    if code:
        raise OSError(code, os.strerror(code), src, None, dst)


def load() -> None:
    """Load what ``rename_noreplace`` needs while this process can: once it has become another user, the
    folder that its modules lie in may be closed to it."""
    _renameat2()


@functools.cache
def _renameat2() -> Callable[[int, bytes, int, bytes, int], int]:
    """The C library's renameat2 as a function that returns an errno, 0 for success."""
    import ctypes  # loaded only by those who publish

    libc = ctypes.CDLL(None, use_errno=True)
    call = libc.renameat2
    call.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
    call.restype = ctypes.c_int

    def renameat2(src_dir: int, src: bytes, dst_dir: int, dst: bytes, flags: int) -> int:
        if call(src_dir, src, dst_dir, dst, flags) == 0:
            return 0
        return ctypes.get_errno() or errno.EIO

    return renameat2


def sync_dir(dir_fd: int) -> None:
    """Make the entries of an open directory durable: names made, renamed and removed in it."""
    os.fsync(dir_fd)
