"""Memory that an artifact's bytes are read into: a few reused blocks, or a private copy of the page.

Owns sizes and reuse. Who may still be reading a block when its turn comes again is settled with
``hashing``.
"""

from __future__ import annotations

import mmap
from contextlib import suppress

BLOCK = 2 << 20
"""Bytes that are worked through together: a few such blocks stay in the processor's cache."""

CHECKED_BLOCK = 4 << 20
"""The same where nothing is written or kept, and the two threads only have to wait for each other less."""

RING = 4
"""Blocks in rotation: a block may be overwritten once RING - 1 further ones were fed."""

# linux/mman.h: one call faults a stretch of memory in, a fifth cheaper than fault by fault.
_MADV_POPULATE_WRITE = 23
_POPULATE_BYTES = 64 << 10


class Ring:
    """RING reused blocks, handed out in turn."""

    def __init__(self, size: int, block: int) -> None:
        """``size`` is how much will pass through, so that small pages take little."""
        self._block = min(block, size)
        self._memory = memoryview(bytearray(self._block * RING))
        self._turn = 0

    def next(self, length: int) -> memoryview:
        """The first ``length`` bytes of the next block; ``length`` is at most ``block``."""
        start = self._block * self._turn
        self._turn = (self._turn + 1) % RING
        return self._memory[start : start + length]


class PrivateMemory:
    """Fresh memory that no forked child will share, handed out from front to back.

    Its page faults cost about as much as the reading. Asking for huge pages was tried: the kernel then stops
    to make room for them, and a hit took twice as long on a node whose memory had been in use.
    """

    def __init__(self, size: int) -> None:
        self._memory = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.view = memoryview(self._memory)[:size]
        self._at = 0

    def next(self, length: int) -> memoryview:
        """The next ``length`` bytes."""
        start, self._at = self._at, self._at + length
        if length >= _POPULATE_BYTES:
            page_start = start - start % mmap.PAGESIZE
            with suppress(OSError):  # kernels before 5.14 fault the pages in one by one
                self._memory.madvise(_MADV_POPULATE_WRITE, page_start, self._at - page_start)
        return self.view[start : self._at]
