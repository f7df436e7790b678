"""Reading an artifact once: the header, the digest and the finiteness all come from the same bytes.

Owns the pass over the file. A check streams through a few reused blocks and keeps nothing; a hit reads
straight into private memory. Nothing is mapped, since a truncation by somebody else would then kill the
process. What the facts mean, and in which order findings stand, is for ``checks``.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from hwctl.errors import Finding
from hwctl.fs.pagecache import QuietFile, Ways
from hwctl.stores.base import Content, silent
from hwctl.stores.pageweights.content import FiniteTest, finite_test
from hwctl.stores.pageweights.geometry import IDS, IDS_DTYPE, LOADABLE, WEIGHTS
from hwctl.stores.pageweights.hashing import Digester
from hwctl.stores.pageweights.memory import BLOCK, PrivateMemory, Ring
from hwctl.weights.safetensors_file import Header, parse_header
from hwctl.weights.tensor_layout import TensorEntry

HEADER_BYTES = 8 << 20
"""Header that is read at most. A page's is below 2 KiB; the container's own bound would cost 100 MB."""

_PREFIX = 8
_INT64 = struct.Struct("<q")

ReadInto = Callable[[memoryview, int], int]
"""Fills a block from an offset as far as one read goes, and says how far; 0 at the end of the file."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How a pass goes about it.

    ``on_block`` is told the length of every block that was read: progress, pace, and the place to give up.
    With ``ways`` the page cache is left as it was, which is right for a check and wrong for a use.
    """

    on_block: Callable[[int], None] = silent
    block: int = BLOCK
    ways: Ways | None = None


class ReadEnd(OSError):
    """The file ended before the size it had when it was opened."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What one pass found.

    ``page_id`` is the value in a well-formed ``page_ids_t``. ``sha256`` is None when the payload was not
    read. ``nonfinite`` names the weights with a NaN or an infinity, ``content`` says whether they were
    looked at. ``data`` is the data section in private memory, where that was asked for.
    """

    header: Header | tuple[Finding, ...]
    page_id: int | None = None
    sha256: str | None = None
    nonfinite: tuple[str, ...] = ()
    content: Content = Content.NOT_ASKED
    bytes_read: int = 0
    data: memoryview | None = None


def read_structure(fd: int, size: int) -> Reading:
    """The header and the page id, without the payload."""
    plain = partial(_read_plainly, fd)
    raw = _read_head(plain, size)
    header = _parse(raw, size)
    ids = header.by_name.get(IDS) if isinstance(header, Header) else None
    if not isinstance(header, Header) or ids is None or not _well_formed(ids):
        return Reading(header, bytes_read=len(raw))
    block = memoryview(bytearray(ids.nbytes))
    _fill(plain, block, header.data_start + ids.begin)
    return Reading(header, _INT64.unpack(block)[0], bytes_read=len(raw) + len(block))


def read_whole(fd: int, size: int, pace: Pace, *, keep: bool = False) -> Reading:
    """All ``size`` bytes in one pass; with ``keep`` the data section of a sound artifact stays in memory.

    Raises ReadEnd when the file has become shorter, OSError as met.
    """
    with _reader(fd, size, pace.ways) as read_into, Digester(size) as digester:
        raw = _read_head(read_into, size)
        header = _parse(raw, size)
        start = header.data_start if isinstance(header, Header) else len(raw)
        private = PrivateMemory(size - start) if keep and isinstance(header, Header) else None
        memory = private or Ring(size - start, pace.block)
        looks = _Looks()
        digester.feed(raw[:start])
        pace.on_block(start)
        for entry, begin, length in _segments(header, size - start, pace.block):
            block = memory.next(length)
            _fill(read_into, block, start + begin)
            # Fresh memory keeps the reading thread busy with page faults: then the other one looks as well.
            digester.feed(block, None if private is None else partial(looks.at, entry, block))
            if private is None:
                looks.at(entry, block)
            pace.on_block(length)
        sha256 = digester.hexdigest()
    data = None if private is None else private.view
    return Reading(header, looks.page_id, sha256, tuple(looks.nonfinite), looks.content, size, data)


@contextmanager
def _reader(fd: int, size: int, ways: Ways | None) -> Iterator[ReadInto]:
    if ways is None:
        yield partial(_read_plainly, fd)
    else:
        with QuietFile(fd, size, ways) as file:
            yield file.read_into


def _read_plainly(fd: int, block: memoryview, offset: int) -> int:
    return os.preadv(fd, [block], offset)


class _Looks:
    """What the values of the tensors showed, gathered block by block."""

    def __init__(self) -> None:
        self.page_id: int | None = None
        self.nonfinite: dict[str, None] = {}
        self.content = Content.CHECKED
        self._tests: dict[str, FiniteTest | None] = {}

    def at(self, entry: TensorEntry | None, block: memoryview) -> None:
        """Look at a block of a tensor; bytes that belong to none have nothing to show."""
        if entry is None:
            return
        if entry.name == IDS:
            self.page_id = _INT64.unpack(block)[0] if _well_formed(entry) else None
        elif entry.name in WEIGHTS and entry.dtype in LOADABLE and entry.name not in self.nonfinite:
            if entry.dtype not in self._tests:
                self._tests[entry.dtype] = finite_test(entry.dtype)
            test = self._tests[entry.dtype]
            if test is None:
                self.content = Content.NOT_CHECKED
            elif not test(block):
                self.nonfinite[entry.name] = None


def _well_formed(ids: TensorEntry) -> bool:
    return ids.dtype == IDS_DTYPE and ids.nbytes == _INT64.size


def _segments(
    header: Header | tuple[Finding, ...], data_bytes: int, block: int
) -> Iterator[tuple[TensorEntry | None, int, int]]:
    """Stretches of at most ``block`` bytes as (tensor, begin in the data, length), each of whole elements.

    Without a sound header there are no tensors to speak of, but the bytes are still to be hashed.
    """
    if not isinstance(header, Header):
        yield from ((None, begin, min(block, data_bytes - begin)) for begin in range(0, data_bytes, block))
        return
    for entry in header.tensors:
        for begin in range(entry.begin, entry.end, block):
            yield entry, begin, min(block, entry.end - begin)


def _read_head(read_into: ReadInto, size: int) -> bytes:
    """The length prefix and the header, or what of them is there and within HEADER_BYTES."""
    prefix = memoryview(bytearray(min(_PREFIX, size)))
    _fill(read_into, prefix, 0)
    length = int.from_bytes(prefix, "little")
    if len(prefix) < _PREFIX or length > HEADER_BYTES or _PREFIX + length > size:
        return bytes(prefix)
    raw = bytearray(_PREFIX + length)
    _fill(read_into, memoryview(raw), 0)
    return bytes(raw)


def _parse(raw: bytes, size: int) -> Header | tuple[Finding, ...]:
    length = int.from_bytes(raw[:_PREFIX], "little") if len(raw) >= _PREFIX else 0
    if HEADER_BYTES < length <= size - _PREFIX:
        message = f"its header of {length} bytes is over the limit of {HEADER_BYTES} for a page"
        return (Finding("header-too-large", message, expected=HEADER_BYTES, actual=length),)
    return parse_header(raw, size, strict=False)


def _fill(read_into: ReadInto, block: memoryview, offset: int) -> None:
    """Read until ``block`` is full, wherever the kernel stops in between."""
    done = 0
    while done < len(block):
        count = read_into(block[done:], offset + done)
        if count == 0:
            raise ReadEnd(f"the file ends at byte {offset + done}")
        done += count
