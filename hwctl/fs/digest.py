"""SHA-256 of many files at once: in parallel, in bounded memory, with the page cache left as it was.

Owns reading and hashing. Which files, and what their digests should be, is for the families. A whole-file
SHA-256 is serial by nature, so one huge file takes as long as one core takes for it (PER-01).
"""

from __future__ import annotations

import errno
import hashlib
import os
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeAlias, TypeVar

from hwctl.fs.deadline import Deadline
from hwctl.fs.pace import Pacer, Watch
from hwctl.fs.pagecache import QuietFile, Ways
from hwctl.fs.read_ahead import pieces_ahead

T = TypeVar("T")

_Outcome: TypeAlias = str | BaseException

# One read. A page read with RWF_DONTCACHE goes when any read of its folio ends, so a read smaller than the
# largest folio fetches the rest of it from the disk again: 512 KiB at a time was half as fast, cold. Larger
# ones leave the processor's cache before they are hashed. It also keeps turns at the interpreter lock rare.
_PIECE = 2 << 20

# A file worth a second thread.
_LARGE = 16 << 20

# All buffers of one call together.
_MEMORY = 24 << 20


class ShortRead(OSError):
    """The file ended before the size it was opened with: it was truncated meanwhile."""

    def __init__(self, got: int, size: int) -> None:
        super().__init__(errno.EIO, f"the file ended after {got} of {size} bytes")
        self.got = got
        self.size = size


def _silent(_count: int) -> None:
    """Tells nobody."""


def sha256_fd(
    fd: int,
    size: int,
    *,
    advance: Callable[[int], None] = _silent,
    pacer: Pacer | None = None,
    deadline: Deadline | None = None,
    stop: threading.Event | None = None,
) -> str:
    """The SHA-256 of the first ``size`` bytes of an open file, as 64 lower-case hex digits.

    Raises ShortRead if there are fewer, any OSError of the reads, TimedOut after ``deadline`` and Stopped
    once ``stop`` is set. ``advance`` is told the bytes of every piece.
    """
    watch = Watch(pacer, deadline or Deadline.never(), () if stop is None else (stop,))
    return _hash(fd, size, memoryview(bytearray(min(size, _PIECE))), Ways(), watch, advance)


def sha256_files(
    jobs: Sequence[T],
    open: Callable[[T], tuple[int, int]],
    *,
    workers: int,
    size_of: Callable[[T], int] | None = None,
    advance: Callable[[int], None] = _silent,
    pacer: Pacer | None = None,
    deadline: Deadline | None = None,
    stop: threading.Event | None = None,
) -> Iterator[tuple[T, str | OSError]]:
    """Hash files in parallel; the results come in the order of ``jobs`` whatever ``workers`` is.

    ``open`` gives (descriptor, size) for a job; it is called in a worker and the descriptor is closed here.
    With ``size_of`` the largest files are begun first, so that no single one is left for the end. A job
    whose open or read failed yields its OSError; any other exception is raised when its turn comes.
    ``advance`` may be called from any thread, but never by two at once. Leaving the iterator early ends the
    workers.
    """
    order = list(range(len(jobs)))
    if size_of is not None:
        order.sort(key=lambda index: size_of(jobs[index]), reverse=True)
    abandoned = threading.Event()
    stops = (abandoned,) if stop is None else (abandoned, stop)
    run = _Run(jobs, open, Watch(pacer, deadline or Deadline.never(), stops), _serial(advance))
    count = min(workers, len(jobs))
    run.ahead = pacer is None and workers > count
    if count <= 1:
        buffer = memoryview(bytearray(_PIECE))
        for job in jobs:
            yield job, run.one(job, buffer)
        return
    piece = min(_PIECE, _MEMORY // count)
    todo, done = _filled(order), queue.SimpleQueue[tuple[int, _Outcome]]()
    # Made here, since a worker that cannot have its buffer would end without a word.
    buffers = [memoryview(bytearray(piece)) for _ in range(count)]
    threads = [
        threading.Thread(target=run.work, args=(todo, done, buffer), name=f"sha256-{number}", daemon=True)
        for number, buffer in enumerate(buffers)
    ]
    try:
        for thread in threads:
            thread.start()
        yield from _in_order(jobs, done)
    finally:
        abandoned.set()
        for thread in threads:
            if thread.ident is not None:
                thread.join()


def _filled(order: list[int]) -> queue.SimpleQueue[int]:
    todo = queue.SimpleQueue[int]()
    for index in order:
        todo.put(index)
    return todo


def _in_order(
    jobs: Sequence[T], done: queue.SimpleQueue[tuple[int, _Outcome]]
) -> Iterator[tuple[T, str | OSError]]:
    early: dict[int, _Outcome] = {}
    for index, job in enumerate(jobs):
        while index not in early:
            finished, outcome = done.get()
            early[finished] = outcome
        outcome = early.pop(index)
        if isinstance(outcome, BaseException) and not isinstance(outcome, OSError):
            raise outcome
        yield job, outcome


class _Run(Generic[T]):
    """What all workers of one call share."""

    def __init__(
        self,
        jobs: Sequence[T],
        open: Callable[[T], tuple[int, int]],
        watch: Watch,
        advance: Callable[[int], None],
    ) -> None:
        self._jobs = jobs
        self._open = open
        self._watch = watch
        self._advance = advance
        self._ways = Ways()
        self.ahead = False
        """Whether there is a core to spare for reading ahead: fewer files than workers."""

    def work(
        self, todo: queue.SimpleQueue[int], done: queue.SimpleQueue[tuple[int, _Outcome]], buffer: memoryview
    ) -> None:
        """A worker: take jobs until there are none, hand every outcome over."""
        while True:
            try:
                index = todo.get_nowait()
            except queue.Empty:
                return
            try:
                done.put((index, self.one(self._jobs[index], buffer)))
            except BaseException as exc:  # raised again by the thread that waits for this job
                done.put((index, exc))

    def one(self, job: T, buffer: memoryview) -> str | OSError:
        try:
            self._watch.check()
            fd, size = self._open(job)
            try:
                hash_ = _hash_ahead if self.ahead and size > _LARGE else _hash
                return hash_(fd, size, buffer, self._ways, self._watch, self._advance)
            finally:
                os.close(fd)
        except OSError as exc:
            return exc


def _hash(
    fd: int, size: int, buffer: memoryview, ways: Ways, watch: Watch, advance: Callable[[int], None]
) -> str:
    digest = hashlib.sha256()
    offset = 0
    with QuietFile(fd, size, ways) as file:
        while offset < size:
            count = file.read_into(buffer[: size - offset], offset)
            if count == 0:
                raise ShortRead(offset, size)
            digest.update(buffer[:count])
            offset += count
            advance(count)
            watch.passed(count)
    return digest.hexdigest()


def _hash_ahead(
    fd: int, size: int, buffer: memoryview, ways: Ways, watch: Watch, advance: Callable[[int], None]
) -> str:
    """The same with the reading in a thread of its own: a large file is as fast as its digest (PER-01)."""
    digest = hashlib.sha256()
    done = 0
    with QuietFile(fd, size, ways) as file, pieces_ahead(file.read_into, size, len(buffer)) as pieces:
        for piece in pieces:
            if not piece:
                raise ShortRead(done, size)
            digest.update(piece)
            done += len(piece)
            advance(len(piece))
            watch.passed(len(piece))
    return digest.hexdigest()


def _serial(advance: Callable[[int], None]) -> Callable[[int], None]:
    """The same callback for several threads, one at a time."""
    lock = threading.Lock()

    def told(count: int) -> None:
        with lock:
            advance(count)

    return told
