"""Reading a file one piece ahead of whoever works on it, so that copying and hashing share two cores.

Owns the second thread and its buffers. How a piece is read is the caller's function, what is done with it
the caller's loop.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

ReadInto = Callable[[memoryview, int], int]
"""Fills a buffer from an offset; the count of bytes, 0 where the file ends."""


@contextmanager
def pieces_ahead(read_into: ReadInto, size: int, piece: int) -> Iterator[Iterator[memoryview]]:
    """The first ``size`` bytes in order, each piece valid until the next is asked for; an empty one ends it.

    Whatever a read raises is raised where its piece would have come. The thread is gone when the block ends.
    """
    free: queue.SimpleQueue[memoryview | None] = queue.SimpleQueue()
    full: queue.SimpleQueue[tuple[memoryview, int] | BaseException] = queue.SimpleQueue()
    for _ in range(2):
        free.put(memoryview(bytearray(piece)))

    def work() -> None:
        offset = 0
        while offset < size and (buffer := free.get()) is not None:
            try:
                count = read_into(buffer[: size - offset], offset)
            except BaseException as exc:  # raised again by the consumer, who would wait for ever
                full.put(exc)
                return
            full.put((buffer, count))
            offset += count
            if count == 0:
                return

    reader = threading.Thread(target=work, name="read-ahead", daemon=True)
    reader.start()
    try:
        yield _pieces(free, full, size)
    finally:
        free.put(None)
        reader.join()


def _pieces(
    free: queue.SimpleQueue[memoryview | None],
    full: queue.SimpleQueue[tuple[memoryview, int] | BaseException],
    size: int,
) -> Iterator[memoryview]:
    done = 0
    while done < size:
        item = full.get()
        if isinstance(item, BaseException):
            raise item
        buffer, count = item
        yield buffer[:count]
        if count == 0:
            return
        done += count
        free.put(buffer)
