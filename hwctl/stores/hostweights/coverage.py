"""How far the writing and the hashing of a payload have come. Bookkeeping, no I/O."""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Mapping
from typing import TYPE_CHECKING

from hwctl.stores.hostweights.tensors import Extent

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


class Written:
    """What was written of the tensors of a file.

    Of one that was written in one go (None), and there can be 200,000, nothing more is kept.
    """

    __slots__ = ("_tensors",)

    def __init__(self) -> None:
        self._tensors: dict[str, Coverage | None] = {}

    def add(self, extent: Extent, begin: int, end: int) -> None:
        """Note bytes of a tensor; ValueError as Coverage.add raises it."""
        name = extent.spec.name
        if name not in self._tensors:
            if begin == 0 and end == extent.size:
                self._tensors[name] = None
                return
            self._tensors[name] = Coverage(extent.size)
        coverage = self._tensors[name]
        if coverage is not None:
            coverage.add(begin, end)
        elif begin != end:
            raise ValueError(f"bytes {begin} to {end} were written before")

    def missing(self, extents: Mapping[str, Extent]) -> list[str]:
        """The tensors that are not complete; an empty one is before anything is written of it."""
        return [name for name, extent in extents.items() if not self._is_whole(name, extent)]

    def _is_whole(self, name: str, extent: Extent) -> bool:
        if name not in self._tensors:
            return extent.size == 0
        coverage = self._tensors[name]
        return coverage is None or coverage.complete()


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


class Digests:
    """The digest of a whole payload file and those of its tensors, each as far as it has come."""

    __slots__ = ("_done", "_file", "_tensors")

    def __init__(self, header: bytes, size: int) -> None:
        """``size`` is that of the whole file, which ``header`` begins."""
        self._file = Stream(len(header), size, hashlib.sha256(header))
        self._tensors: dict[str, Stream] = {}
        self._done: dict[str, str] = {}

    def whole(self, extent: Extent, data: memoryview) -> None:
        """Hash a tensor that is there in one piece."""
        digest = self._file.takes(extent.begin, data.nbytes)
        if digest is not None:
            digest.update(data)
        self._done[extent.spec.name] = hashlib.sha256(data).hexdigest()

    def takes(self, extent: Extent, at: int, size: int) -> tuple[_Hash | None, _Hash | None]:
        """The digests, of file and tensor, that these bytes are the next for."""
        name = extent.spec.name
        stream = self._tensors.get(name)
        if stream is None:
            stream = self._tensors[name] = Stream(extent.begin, extent.begin + extent.size)
        return self._file.takes(at, size), stream.takes(at, size)

    def behind(self) -> list[list[Stream]]:
        """What came out of order and has to be read again: of the file, and of its tensors."""
        groups = ([self._file], list(self._tensors.values()))
        behind = [[stream for stream in group if stream.cursor < stream.end] for group in groups]
        return [group for group in behind if group]

    def file(self) -> str:
        """In hex, once nothing is behind."""
        return self._file.digest.hexdigest()

    def tensors(self, extents: Mapping[str, Extent]) -> dict[str, str]:
        """In hex and by name; empty ones too."""
        found = self._done | {name: stream.digest.hexdigest() for name, stream in self._tensors.items()}
        empty = hashlib.sha256().hexdigest()
        return {name: found.get(name, empty) for name in extents}
