"""Reading a file through without changing what the page cache holds.

A nightly check of hundreds of gigabytes must not push out the pages that a server reads from (PER-02): what
was in memory before stays there, what was not is gone again. Owns the ways to do that and choosing one.
"""

from __future__ import annotations

import enum
import errno
import functools
import mmap
import os
from collections import deque
from collections.abc import Callable

from hwctl.fs.mounts import MEMORY, mount_of_fd

# linux/fs.h, since 6.14: pages that this very read brought in are dropped once it is done with them.
RWF_DONTCACHE = 0x80

_NOT_KNOWN_HERE = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)


class Way(enum.Enum):
    """How to read. PLAIN leaves pages alone, for a tmpfs, whose pages are the file itself."""

    PLAIN = enum.auto()
    UNCACHED = enum.auto()
    DROP = enum.auto()


class Ways:
    """Remembers for each device which way works there; one object serves all threads of one run."""

    def __init__(self) -> None:
        self._known: dict[int, Way] = {}

    def of(self, fd: int) -> Way:
        device = os.fstat(fd).st_dev
        way = self._known.get(device)
        if way is None:
            way = Way.PLAIN if mount_of_fd(fd).fs_type in MEMORY else Way.UNCACHED
            self._known[device] = way
        return way

    def fall_back(self, fd: int) -> None:
        """This device's file system does not know RWF_DONTCACHE."""
        self._known[os.fstat(fd).st_dev] = Way.DROP


class QuietFile:
    """One open file that is read front to back. Use as a context manager; the descriptor stays open."""

    def __init__(self, fd: int, size: int, ways: Ways) -> None:
        self._fd = fd
        self._size = size
        self._ways = ways
        self._way = ways.of(fd)
        self._cold: ColdPages | None = ColdPages(fd, size) if self._way is Way.DROP else None

    def read_into(self, buffer: memoryview, offset: int) -> int:
        """Fill ``buffer`` from ``offset`` as far as one read goes; 0 means the file ends there."""
        if self._way is Way.UNCACHED:
            try:
                return os.preadv(self._fd, [buffer], offset, RWF_DONTCACHE)
            except OSError as exc:
                if exc.errno not in _NOT_KNOWN_HERE:
                    raise
            self._ways.fall_back(self._fd)
            self._way = Way.DROP
            self._cold = ColdPages(self._fd, self._size)
        if self._cold is None:
            return os.preadv(self._fd, [buffer], offset)
        self._cold.note(offset + len(buffer))
        count = os.preadv(self._fd, [buffer], offset)
        self._cold.drop(offset + count)
        return count

    def __enter__(self) -> QuietFile:
        return self

    def __exit__(self, *_exc: object) -> None:
        if self._cold is not None:
            self._cold.close()
            self._cold = None


# How much of a file is asked about at once, and how far ahead of the reading at least: further than the
# kernel reads ahead, since pages that came in so would pass for warm ones.
_WINDOW = 64 << 20
_AHEAD = 32 << 20
_DROP_AT_ONCE = 8 << 20


class ColdPages:
    """The stretches of a file that were not in memory before it was read, and dropping them again.

    The kernel tells only those who own the file or may write it what is resident; to others all of it
    seems to be, and then nothing is dropped.
    """

    def __init__(self, fd: int, size: int) -> None:
        self._fd = fd
        self._size = size
        self._asked = 0
        self._dropped = 0
        self._runs: deque[tuple[int, int]] = deque()

    def note(self, reading_to: int) -> None:
        """Find out what is cold well beyond ``reading_to``, before the kernel reads ahead there."""
        while self._asked < min(self._size, reading_to + _AHEAD):
            begin = self._asked
            length = min(_WINDOW, self._size - begin)
            self._asked += length
            try:
                residency = resident(self._fd, begin, length)
            except OSError:
                continue  # a file system that maps nothing: what cannot be told is left alone
            for run in cold_runs(residency, begin):
                if self._runs and self._runs[-1][1] == run[0]:
                    self._runs[-1] = (self._runs[-1][0], run[1])
                else:
                    self._runs.append(run)

    def drop(self, read_to: int) -> None:
        """Let go of the cold pages before ``read_to``, in stretches worth a system call."""
        if read_to - self._dropped < _DROP_AT_ONCE:
            return
        for begin, end in self._runs:
            if begin >= read_to:
                break
            if end > self._dropped:
                begin, end = max(begin, self._dropped), min(end, read_to)
                os.posix_fadvise(self._fd, begin, end - begin, os.POSIX_FADV_DONTNEED)
        self._dropped = read_to

    def close(self) -> None:
        """Once more over all of it: a large folio across two stretches goes only when asked for whole."""
        for begin, end in self._runs:
            os.posix_fadvise(self._fd, begin, end - begin, os.POSIX_FADV_DONTNEED)
        self._runs.clear()


def cold_runs(residency: bytes, offset: int) -> list[tuple[int, int]]:
    """The byte ranges whose pages are not resident; ``residency`` has 0 or 1 per page from ``offset``."""
    runs: list[tuple[int, int]] = []
    position = residency.find(b"\0")
    while position >= 0:
        end = residency.find(b"\1", position)
        end = len(residency) if end < 0 else end
        runs.append((offset + position * mmap.PAGESIZE, offset + end * mmap.PAGESIZE))
        position = residency.find(b"\0", end)
    return runs


def resident(fd: int, offset: int, length: int) -> bytes:
    """0 or 1 for each page of a range of a file; mapped to ask, but never touched.

    ``offset`` must be a multiple of the page size.
    """
    vector = bytearray(-(-length // mmap.PAGESIZE))
    code = _mincore()(fd, offset, length, vector)
    if code:
        raise OSError(code, os.strerror(code))
    # Only the lowest bit of each byte means something.
    return bytes(vector.translate(_LOWEST_BIT))


_LOWEST_BIT = bytes(value & 1 for value in range(256))


@functools.cache
def _mincore() -> Callable[[int, int, int, bytearray], int]:
    """mmap, mincore and munmap of the C library as one function that returns an errno, 0 for success."""
    import ctypes  # loaded only where RWF_DONTCACHE does not work

    libc = ctypes.CDLL(None, use_errno=True)
    address, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    libc.mmap.restype = address
    libc.mmap.argtypes = [address, size, number, number, number, ctypes.c_longlong]
    libc.munmap.argtypes = [address, size]
    libc.mincore.argtypes = [address, size, address]
    failed = ctypes.c_void_p(-1).value

    def ask(fd: int, offset: int, length: int, vector: bytearray) -> int:
        mapped = libc.mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED, fd, offset)
        if mapped == failed:
            return ctypes.get_errno()
        try:
            into = (ctypes.c_char * len(vector)).from_buffer(vector)
            return 0 if libc.mincore(mapped, length, ctypes.addressof(into)) == 0 else ctypes.get_errno()
        finally:
            libc.munmap(mapped, length)

    return ask
