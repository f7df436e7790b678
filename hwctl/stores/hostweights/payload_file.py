"""One payload file while it is being written: coverage, order, and digests that keep up with the writing.

Owns the state of a single file. Which files an artifact has, and when it is done, is the ``writer``'s
business; the threads are the ``lanes``'.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING

from hwctl.fs.atomic import write_all
from hwctl.fs.paths import open_regular
from hwctl.stores.base import Advance
from hwctl.stores.hostweights.coverage import Digests, Stream, Written
from hwctl.stores.hostweights.lanes import INLINE, Block, Lanes, Ticket
from hwctl.stores.hostweights.layout import FILE_MODE
from hwctl.stores.hostweights.tensors import Extent, PayloadPlan, refusal

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


_SYNC_EVERY = 64 << 20


@dataclass(frozen=True, slots=True)
class FileDigests:
    """SHA-256 of a whole payload file and of each of its tensors, in hex."""

    size: int
    file: str
    tensors: Mapping[str, str]


class PayloadFile:
    """A payload file open for writing. Every byte of every tensor has to be written once, then ``close``.

    Buffers are raw bytes as torch holds them (contiguous, little endian). With ``ordered`` every write has
    to continue where the last one ended, in name order; that is checked, never repaired. Without it any
    order is taken, and what was not hashed on the way is read again. Not to be shared between threads.

    As a context manager it closes on success; on an exception it stays unfinished, and so does the artifact.
    """

    def __init__(
        self,
        plan: PayloadPlan,
        dir_fd: int,
        fd: int,
        lanes: Lanes,
        *,
        ordered: bool,
        advance: Advance,
        closed: Callable[[PayloadFile], None],
    ) -> None:
        """Takes over ``fd``, a new file of the planned size."""
        self.plan = plan
        self._dir_fd = dir_fd
        self._fd = fd
        self._lanes = lanes
        self._pair = lanes.pair()
        self._ordered = ordered
        self._advance = advance
        self._on_close = closed
        self._next = len(plan.header)
        self._written = Written()
        self._digests = Digests(plan.header, plan.size)
        self._pending: deque[Ticket] = deque()
        self._unsynced = 0
        self._rereading: list[Future[None]] = []
        self._syncing: list[Future[None]] = []
        self._closed = False
        self._under_way = Ticket()
        self._write(plan.header, 0)
        advance(len(plan.header))

    def write_tensor(self, name: str, data: ReadableBuffer) -> None:
        """Write one whole tensor; scalars and empty tensors are no special case."""
        extent = self._extent(name)
        raw = _raw(data)
        if raw.nbytes != extent.size:
            raise refusal(f"tensor {name!r} has {extent.size} bytes, {raw.nbytes} were given")
        self._put(extent, 0, raw).wait()

    def write_rows(self, name: str, first_row: int, data: ReadableBuffer) -> None:
        """Write whole rows (slices of the first dimension) from ``first_row`` on."""
        extent = self._extent(name)
        row = self.row_bytes(name)
        raw = _raw(data)
        if raw.nbytes % row if row else raw.nbytes:
            raise refusal(f"tensor {name!r}: {raw.nbytes} bytes are no whole rows of {row} bytes")
        self._put(extent, first_row * row, raw).wait()

    def put(self, name: str, offset: int, data: memoryview) -> Ticket:
        """Begin writing bytes at ``offset`` of a tensor and return at once.

        ``data`` (format B) must stay as it is until the ticket's ``wait`` returns: a producer with two
        buffers reads the next block while this one is hashed.
        """
        return self._put(self._extent(name), offset, data)

    def row_bytes(self, name: str) -> int:
        """Bytes of one row of a tensor; a scalar is its own only row."""
        extent = self._extent(name)
        rows = extent.spec.shape[0] if extent.spec.shape else 1
        return extent.size // rows if rows else 0

    def _extent(self, name: str) -> Extent:
        if self._closed:
            raise refusal(f"{self.plan.file_name} is closed")
        extent = self.plan.extents.get(name)
        if extent is None:
            raise refusal(f"tensor {name!r} was not declared for {self.plan.file_name}")
        return extent

    def _put(self, extent: Extent, offset: int, data: memoryview) -> Ticket:
        name, size = extent.spec.name, data.nbytes
        at = extent.begin + offset
        if self._ordered and size and at != self._next:
            raise refusal(f"tensor {name!r}: byte {at} of the file was written where {self._next} comes next")
        try:
            self._written.add(extent, offset, offset + size)
        except ValueError as exc:
            raise refusal(f"tensor {name!r}: {exc}") from None
        if not size:
            return Ticket()
        self._next = at + size
        while self._pending and self._pending[0].done():
            self._pending.popleft().wait()
        self._advance(size)
        self._sync_early(size)
        if size > INLINE or self._pending:
            ticket = self._pair.feed(Block(data, at, self._write), *self._digests.takes(extent, at, size))
            self._pending.append(ticket)
            return ticket
        self._write(data, at)
        if size == extent.size:
            self._digests.whole(extent, data)
        else:
            for digest in self._digests.takes(extent, at, size):
                if digest is not None:
                    digest.update(data)
        return Ticket()

    def _write(self, data: ReadableBuffer, offset: int) -> None:
        """From either thread; whoever is told of a full disk is told of which file (PUB-05)."""
        try:
            write_all(self._fd, data, offset)
        except OSError as exc:
            exc.filename = self.plan.file_name
            raise

    def close(self) -> None:
        """Say that the file is complete; a second call does nothing.

        What is still under way is not waited for: the next file can begin. The file becomes read-only and
        goes to the disk behind that, and errors are told by ``wait_synced``.
        """
        if self._closed:
            return
        missing = self._written.missing(self.plan.extents)
        if missing:
            raise refusal(
                f"{self.plan.file_name}: {len(missing)} tensors are incomplete, first {missing[0]!r}"
            )
        self._closed = True
        self._under_way = Ticket(tuple(part for ticket in self._pending for part in ticket.parts))
        self._pending.clear()
        self._lanes.give_back(self._pair)
        self._begin_rereading()
        self._syncing.append(self._lanes.sync(self._finish))
        self._on_close(self)

    def _finish(self) -> None:
        """In the sync lane: from the last write to the disk."""
        try:
            self._under_way.wait()
            os.fchmod(self._fd, FILE_MODE)
            os.fsync(self._fd)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close the descriptor. Only after the lanes have stopped using it."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def wait_synced(self) -> None:
        """Until the closed file is on the disk, or raise the OSError met on the way.

        Every sync counts: the kernel tells a lost write to the first one only, not to the last.
        """
        for job in self._syncing:
            job.result()

    def digests(self) -> FileDigests:
        """All digests, waiting for what is still being hashed or read again. Only after ``close``."""
        self._under_way.wait()
        for job in self._rereading:
            job.result()
        return FileDigests(self.plan.size, self._digests.file(), self._digests.tensors(self.plan.extents))

    def _sync_early(self, size: int) -> None:
        """Let the disk work while the digests are computed, rather than all at once at the end."""
        self._unsynced += size
        if self._unsynced >= _SYNC_EVERY:
            fd, self._unsynced = self._fd, 0
            self._syncing.append(self._lanes.sync(lambda: os.fdatasync(fd)))

    def _begin_rereading(self) -> None:
        """Hash what came out of order from the page cache, the file and its tensors beside each other."""
        for streams in self._digests.behind():
            self._rereading.append(self._lanes.reread(partial(self._finish_streams, streams)))

    def _finish_streams(self, streams: Sequence[Stream]) -> None:
        self._under_way.wait()  # the lanes' part of the same digests comes first
        fd, _ = open_regular(self.plan.file_name, dir_fd=self._dir_fd)
        try:
            for stream in streams:
                self._lanes.hash_range(fd, stream.cursor, stream.end, stream.digest)
        finally:
            os.close(fd)

    def __enter__(self) -> PayloadFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _exc: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()


def _raw(data: ReadableBuffer) -> memoryview:
    """The buffer as plain bytes. Never released by hand: a lane may still look at it after an interrupt."""
    view = memoryview(data)
    return view.cast("B") if view.nbytes else memoryview(b"")
