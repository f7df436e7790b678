"""Two threads for each payload that is being written: both digests, and the writing between them.

Owns the concurrency of writing a payload and nothing of the format. A block is gone through by both threads,
slice by slice, one for the digest of the file and one for the digest of the tensor; who comes to a slice
first writes it. Writing brings a slice into the cache of the core that hashes it next, and a digest of what
lies in a cache is a fifth faster than one from memory; a thread of its own for writing took a core from the
digests, which are what bounds a publication. So both threads end together, whichever is ahead meanwhile.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hashlib import _Hash

# Two of them lie in a second-level cache, so that what was written is still there when it is hashed; large
# enough to make turns at the interpreter's lock rare, small enough to stop soon.
SLICE = 512 << 10

# Below this a hand-over costs more than the work.
INLINE = 1 << 15

_MAX_REREADERS = 8
_MAX_PAIRS = 8


@dataclass(frozen=True, slots=True)
class Ticket:
    """Work that is under way on a buffer; the buffer must not change before ``wait`` returns."""

    parts: tuple[Future[None], ...] = ()

    def wait(self) -> None:
        """Until every part is done; then raise what the first failed part met.

        Not before: whoever closes the file on an error must not do so under the other thread, which would
        go on writing to whatever file is opened next under that number.
        """
        failed: Exception | None = None
        for part in self.parts:
            try:
                part.result()
            except Exception as exc:
                failed = failed or exc
        if failed is not None:
            raise failed

    def done(self) -> bool:
        return all(part.done() for part in self.parts)


class Stopped(Exception):
    """The lanes were stopped while this piece of work was under way."""


Write = Callable[[memoryview, int], None]
"""Writes bytes at an offset of a file; from either thread."""


class Block:
    """Bytes on their way to ``offset`` of a file, and how far their writing has come."""

    __slots__ = ("_data", "_lock", "_offset", "_taken", "_write")

    def __init__(self, data: memoryview, offset: int, write: Write) -> None:
        self._data = data
        self._offset = offset
        self._write = write
        self._lock = threading.Lock()
        self._taken = 0

    def go_through(self, digest: _Hash | None, stop: threading.Event) -> None:
        """Every slice in turn: written, unless the other thread was here first, and fed to ``digest``."""
        for begin in range(0, len(self._data), SLICE):
            if stop.is_set():
                raise Stopped
            part = self._data[begin : begin + SLICE]
            if self._takes(begin):
                self._write(part, self._offset + begin)
            if digest is not None:
                digest.update(part)

    def _takes(self, begin: int) -> bool:
        with self._lock:
            if begin != self._taken:
                return False
            self._taken += SLICE
            return True


class Pair:
    """The two threads of a file. Each works in the order in which blocks are given to it, so a digest sees
    its bytes in order."""

    def __init__(self, stop: threading.Event) -> None:
        self.files = 0
        """How many open files it works for."""
        self._stop = stop
        self._threads = tuple(ThreadPoolExecutor(1, f"hwctl-{whose}-digest") for whose in ("file", "tensor"))

    def feed(self, block: Block, *digests: _Hash | None) -> Ticket:
        """Write a block and feed it to the digests of its file and of its tensor, where it is their turn."""
        return Ticket(
            tuple(
                thread.submit(block.go_through, digest, self._stop)
                for thread, digest in zip(self._threads, digests, strict=True)
            )
        )

    def shut_down(self) -> None:
        for thread in self._threads:
            thread.shutdown(wait=True, cancel_futures=True)


class Lanes:
    """All threads of one writer: a pair for each file under way, one for syncing, some for reading again.

    ``stop`` ends them within one slice; no thread outlives the writer that made the lanes.
    """

    def __init__(self, jobs: int) -> None:
        """``jobs`` cores may be kept busy; a file takes two, however few there are."""
        self._stop = threading.Event()
        self.beside = min(max(1, jobs // 2), _MAX_PAIRS)
        """How many files can be written beside each other."""
        self._pairs = [Pair(self._stop) for _ in range(self.beside)]
        self._choosing = threading.Lock()
        self._sync = ThreadPoolExecutor(1, "hwctl-sync")
        self._reread = ThreadPoolExecutor(min(_MAX_REREADERS, os.cpu_count() or 1), "hwctl-reread")

    def pair(self) -> Pair:
        """The threads for another file: the least busy, and of several those longest unchosen."""
        with self._choosing:
            pair = min(self._pairs, key=lambda pair: pair.files)
            self._pairs.remove(pair)
            self._pairs.append(pair)
            pair.files += 1
            return pair

    def give_back(self, pair: Pair) -> None:
        """A file is closed; what it handed over is still finished."""
        with self._choosing:
            pair.files -= 1

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
            if self._stop.is_set():
                raise Stopped
            count = os.preadv(fd, [buffer[: min(SLICE, end - begin)]], begin)
            if count == 0:
                raise OSError(errno.EIO, "a payload became shorter while it was written")
            digest.update(buffer[:count])
            begin += count

    def stop(self) -> None:
        """End all work, finished or not, and wait for the threads."""
        self._stop.set()
        for pair in self._pairs:
            pair.shut_down()
        for pool in (self._reread, self._sync):
            pool.shutdown(wait=True, cancel_futures=True)
