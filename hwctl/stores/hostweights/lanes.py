"""Threads that work on the same block at the same time: digest of the file, digest of the tensor, write.

Owns the concurrency of writing a payload and nothing of the format. The two digests are what bounds a
publication; run one after the other they cost twice the time, and a block that is hashed twice while it is
in the cache is read from memory once.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hwctl.fs.atomic import write_all

if TYPE_CHECKING:
    from hashlib import _Hash

# Large enough to make the hand-over between threads cheap, small enough to stop soon and stay in a cache.
SLICE = 1 << 20

# Below this a hand-over costs more than the work.
INLINE = 1 << 15

_MAX_REREADERS = 8


@dataclass(frozen=True, slots=True)
class Ticket:
    """Work that is under way on a buffer; the buffer must not change before ``wait`` returns."""

    parts: tuple[Future[None], ...] = ()

    def wait(self) -> None:
        """Until every part is done, or raise what the first failed part met."""
        for part in self.parts:
            part.result()

    def done(self) -> bool:
        return all(part.done() for part in self.parts)


class Stopped(Exception):
    """The lanes were stopped while this piece of work was under way."""


class Lanes:
    """One thread each for writing, for file digests, for tensor digests and for syncing.

    Each lane works in the order in which work is given to it, so a digest sees its bytes in order.
    ``stop`` ends them within one slice; no thread outlives the writer that made the lanes.
    """

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._write = ThreadPoolExecutor(1, "hwctl-write")
        self._file = ThreadPoolExecutor(1, "hwctl-file-digest")
        self._tensor = ThreadPoolExecutor(1, "hwctl-tensor-digest")
        self._sync = ThreadPoolExecutor(1, "hwctl-sync")
        self._reread = ThreadPoolExecutor(min(_MAX_REREADERS, os.cpu_count() or 1), "hwctl-reread")

    def feed(
        self,
        data: memoryview,
        *,
        fd: int,
        offset: int,
        file_digest: _Hash | None,
        tensor_digest: _Hash | None,
    ) -> Ticket:
        """Write ``data`` at ``offset`` and feed it to the digests that are given, all at once."""
        parts = [self._write.submit(self._write_slices, fd, data, offset)]
        if file_digest is not None:
            parts.append(self._file.submit(self._hash_slices, file_digest, data))
        if tensor_digest is not None:
            parts.append(self._tensor.submit(self._hash_slices, tensor_digest, data))
        return Ticket(tuple(parts))

    def sync(self, step: Callable[[], None]) -> Future[None]:
        """Run ``step`` (an fsync) behind the caller's back, after the ones given before."""
        return self._sync.submit(step)

    def reread(self, step: Callable[[], None]) -> Future[None]:
        """Run ``step`` (digests of what was written out of order) beside others of its kind."""
        return self._reread.submit(step)

    def hash_range(self, fd: int, begin: int, end: int, digest: _Hash) -> None:
        """Feed the bytes [begin, end) of a file to a digest, in slices. OSError passes through."""
        buffer = memoryview(bytearray(min(SLICE, max(end - begin, 1))))
        while begin < end:
            self._check()
            count = os.preadv(fd, [buffer[: min(SLICE, end - begin)]], begin)
            if count == 0:
                raise OSError(errno.EIO, "a payload became shorter while it was written")
            digest.update(buffer[:count])
            begin += count

    def stop(self) -> None:
        """End all work, finished or not, and wait for the threads."""
        self._stop.set()
        for pool in (self._write, self._file, self._tensor, self._reread, self._sync):
            pool.shutdown(wait=True, cancel_futures=True)

    def _write_slices(self, fd: int, data: memoryview, offset: int) -> None:
        for begin in range(0, len(data), SLICE):
            self._check()
            write_all(fd, data[begin : begin + SLICE], offset + begin)

    def _hash_slices(self, digest: _Hash, data: memoryview) -> None:
        for begin in range(0, len(data), SLICE):
            self._check()
            digest.update(data[begin : begin + SLICE])

    def _check(self) -> None:
        if self._stop.is_set():
            raise Stopped
