"""Opening by descriptor, never through a final link, never hanging on a pipe.

Owns how a file or folder is opened, how its path is made real, and how a small document is read whole. What
the bytes mean, and how a name is shown, is somebody else's business.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

_READ_CHUNK = 1 << 20

_TRIES = 20
_TRY_SECONDS = 0.002


class NotRegular(OSError):
    """The name stands for something that is no regular file; ``kind`` says what it is."""

    def __init__(self, kind: str, name: str | os.PathLike[str]) -> None:
        super().__init__(errno.EINVAL, f"is a {kind}, not a regular file", os.fspath(name))
        self.kind = kind


class TooLarge(OSError):
    """The file holds more than the caller is ready to read; ``size`` as far as known, and the ``limit``."""

    def __init__(self, size: int, limit: int, name: str | os.PathLike[str]) -> None:
        super().__init__(errno.EFBIG, f"is {size} bytes, over the limit of {limit} bytes", os.fspath(name))
        self.size = size
        self.limit = limit


@dataclass(frozen=True, slots=True)
class Document:
    """A file read whole, with the facts taken from its descriptor before the first byte."""

    data: bytes
    stat: os.stat_result


def kind_of(mode: int) -> str:
    """What an st_mode stands for, in a word or two fit for a message."""
    for test, word in (
        (stat.S_ISREG, "regular file"),
        (stat.S_ISDIR, "directory"),
        (stat.S_ISLNK, "symbolic link"),
        (stat.S_ISFIFO, "fifo"),
        (stat.S_ISSOCK, "socket"),
        (stat.S_ISCHR, "character device"),
        (stat.S_ISBLK, "block device"),
    ):
        if test(mode):
            return word
    return "file of unknown type"


def real(path: str | os.PathLike[str]) -> Path:
    """The path made absolute, with every link followed that leads somewhere; it need not exist.

    Never raises. ``Path.resolve`` does on a circle of links, a loop being RuntimeError for it; here the
    circle stays in the path, and whoever opens that gets ELOOP.
    """
    return Path(os.path.realpath(path))


def identity(st: os.stat_result) -> tuple[int, int, int, int, int]:
    """What changes when a file is written or replaced: (device, inode, size, mtime ns, ctime ns)."""
    return (st.st_dev, st.st_ino, st.st_size, st.st_mtime_ns, st.st_ctime_ns)


def open_dir(name: str | Path, *, dir_fd: int | None = None) -> int:
    """Open a directory for reading and as a base of other calls. A link is refused with ENOTDIR."""
    return os.open(name, DIRECTORY_FLAGS, dir_fd=dir_fd)


@contextmanager
def opened_dir(name: str | Path, *, dir_fd: int | None = None) -> Iterator[int]:
    """``open_dir`` for the length of a with-block."""
    fd = open_dir(name, dir_fd=dir_fd)
    try:
        yield fd
    finally:
        os.close(fd)


def open_regular(
    name: str | Path, *, dir_fd: int | None = None, flags: int = os.O_RDONLY
) -> tuple[int, os.stat_result]:
    """Open a regular file and return (descriptor, its stat).

    O_NONBLOCK keeps a fifo from hanging the caller, which a hostile name in a shared folder would; for
    regular files it means only that a lease of fcntl's is not waited for by the kernel, but here and for a
    moment. A link gives ELOOP, any other kind NotRegular.
    """
    extra = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
    try:
        fd = _open_in_spite_of_leases(name, flags | extra, dir_fd)
    except OSError as exc:
        # A socket and a fifo without a reader answer ENXIO, a directory opened for writing EISDIR.
        if exc.errno not in (errno.ENXIO, errno.EISDIR):
            raise
        st = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
        raise NotRegular(kind_of(st.st_mode), name) from exc
    try:
        st = os.fstat(fd)
        if not stat.S_ISREG(st.st_mode):
            raise NotRegular(kind_of(st.st_mode), name)
    except BaseException:
        os.close(fd)
        raise
    return fd, st


def _open_in_spite_of_leases(name: str | Path, flags: int, dir_fd: int | None) -> int:
    """``openers`` has a lease on a file for as long as it asks who else has it open."""
    for _ in range(_TRIES):
        try:
            return os.open(name, flags, dir_fd=dir_fd)
        except BlockingIOError:
            if not stat.S_ISREG(os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_mode):
                raise
            time.sleep(_TRY_SECONDS)
    return os.open(name, flags, dir_fd=dir_fd)


def stands(path: Path) -> bool:
    """Whether anything has this name, a link too; what cannot be looked at is there."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def make_parents(path: Path, mode: int) -> None:
    """Make the folders above ``path`` that are missing, each with ``mode`` whatever the umask takes away."""
    missing = []
    for folder in path.absolute().parents:
        if os.path.lexists(folder):
            break
        missing.append(folder)
    for folder in reversed(missing):
        with suppress(FileExistsError):
            os.mkdir(folder, mode)
            os.chmod(folder, mode)


def read_document(name: str | Path, *, dir_fd: int | None = None, limit: int) -> Document:
    """Read a regular file of at most ``limit`` bytes whole, or raise the OSError that was met.

    The size is asked first, so that a huge file is never begun; and the reading is bounded too, since a
    file can grow meanwhile.
    """
    fd, st = open_regular(name, dir_fd=dir_fd)
    try:
        if st.st_size > limit:
            raise TooLarge(st.st_size, limit, name)
        return Document(_read_bounded(fd, st.st_size, limit, name), st)
    finally:
        os.close(fd)


def _read_bounded(fd: int, expected: int, limit: int, name: str | Path) -> bytes:
    parts: list[bytes] = []
    total = 0
    while True:
        # One byte more than expected, so that the usual file ends in a single short read, and a manifest of
        # 64 MiB is never in memory twice. A file that grew meanwhile is read on in chunks.
        missing = expected - total
        part = os.read(fd, missing + 1 if missing >= 0 else _READ_CHUNK)
        if not part:
            return b"".join(parts)
        total += len(part)
        if total > limit:
            raise TooLarge(max(total, os.fstat(fd).st_size), limit, name)
        parts.append(part)
