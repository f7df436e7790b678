"""How far the writing and the hashing of a payload have come. Pure bookkeeping, no I/O."""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hashlib import _Hash


class Coverage:
    """Which bytes of one tensor were written: each exactly once, in whatever order."""

    __slots__ = ("_begins", "_ends", "_size")

    def __init__(self, size: int) -> None:
        self._size = size
        self._begins: list[int] = []
        self._ends: list[int] = []

    def add(self, begin: int, end: int) -> None:
        """Note [begin, end); ValueError when it leaves the tensor or was written before."""
        if begin < 0 or end > self._size:
            raise ValueError(f"bytes {begin} to {end} leave the tensor's {self._size}")
        if begin == end:
            return
        at = bisect_left(self._begins, begin)
        if (at > 0 and self._ends[at - 1] > begin) or (at < len(self._begins) and self._begins[at] < end):
            raise ValueError(f"bytes {begin} to {end} were written before")
        # Neighbours are merged, so that a tensor written row by row costs one entry, not one a row.
        joins_left = at > 0 and self._ends[at - 1] == begin
        joins_right = at < len(self._begins) and self._begins[at] == end
        if joins_left and joins_right:
            self._ends[at - 1] = self._ends.pop(at)
            self._begins.pop(at)
        elif joins_left:
            self._ends[at - 1] = end
        elif joins_right:
            self._begins[at] = begin
        else:
            self._begins.insert(at, begin)
            self._ends.insert(at, end)

    def complete(self) -> bool:
        return self._size == 0 or (self._begins == [0] and self._ends == [self._size])


class Stream:
    """A digest over a range of the file, and how far it has come without a gap."""

    __slots__ = ("cursor", "digest", "end")

    def __init__(self, begin: int, end: int, digest: _Hash | None = None) -> None:
        self.cursor = begin
        self.end = end
        self.digest = hashlib.sha256() if digest is None else digest

    def takes(self, begin: int, size: int) -> _Hash | None:
        """The digest to feed when these bytes are the next ones, and the cursor moved past them."""
        if begin != self.cursor:
            return None
        self.cursor += size
        return self.digest
