"""Per-row symmetric INT8 quantisation, bit for bit as kt-kernel's own writer does it.

Owns the arithmetic only: bf16 rows in, codes and fp32 scales out. Where the rows come from is ``moe``,
any other dtype becomes bf16 in ``bfloat16``, and how codes are laid out in a file is ``amx``.

The writer is built with ``-ffast-math``: its division by 127 became a multiplication, and subnormals are
flushed to zero. Both are part of the format. The flushes are decided on the bit patterns, and arithmetic
is only done on values that stay normal, so that the floating-point mode of the calling thread (which
importing kt_kernel changes) makes no difference.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hwctl.weights.scratch import Scratch

if TYPE_CHECKING:
    import torch

MAGNITUDE = 0x7FFF
NOT_FINITE = 0x7F80
ONE = 0x3F80
FIRST_NORMAL = 0x0080
FIRST_SCALED = 0x03FE
"""Smallest row maximum (127 * 2^-126) whose scale is a normal number; below it the row becomes zero."""
FIRST_INDIFFERENT = 0x0480
"""From this row maximum on (2^-118) a subnormal element rounds to code 0 anyway, flushed or not."""

STRETCH = 1 << 18
"""Elements gone over in one go, several times: so many stay in a core's L2 cache."""
_MOST_BLOCKS = 256
"""Places of blocks that are remembered: a large matrix has a few dozen, and a model two shapes of them."""

(ONE_127TH,) = struct.unpack("<f", struct.pack("<I", 0x3C010204))


class NotFinite(ValueError):
    """A NaN or an infinity among the weights. ``row`` and ``column`` count within the block given."""

    def __init__(self, row: int, column: int, what: str) -> None:
        self.row, self.column, self.what = row, column, what
        super().__init__(f"{what} at row {row}, column {column}")


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep torch at one thread, also in threads started inside: the workers here are one per core."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Quantiser:
    """Quantises blocks of rows in buffers that it uses again. One per thread.

    Callers use their buffers again too, and so the views of a block are kept: every call into torch, even for
    a view, gives Python's lock away, and with a hundred of them two workers took longer than one.
    """

    def __init__(self) -> None:
        self._magnitudes, self._products = Scratch(), Scratch()
        self._known: dict[tuple[object, ...], _Block] = {}

    @property
    def memory(self) -> int:
        """Bytes of all buffers, as they are by now."""
        return self._magnitudes.size + self._products.size

    def forget(self) -> None:
        """Keep no view of the callers' buffers: they have others now."""
        self._known.clear()

    def quantise(self, block: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor) -> None:
        """Quantise bf16 ``block`` [rows, k] into int8 ``codes`` [rows, k] and fp32 ``scales`` [rows].

        Only the last dimension of ``block`` has to be contiguous. Raises NotFinite at the first NaN or
        infinity; the outputs are then undefined.
        """
        place = (block.data_ptr(), block.shape, block.stride(), codes.data_ptr(), scales.data_ptr())
        known = self._known.get(place)
        if known is None:
            if len(self._known) == _MOST_BLOCKS:
                self._known.clear()
            stretches = list(self._stretches(block, codes))
            known = self._known[place] = _Block(stretches, scales)
        known.quantise()

    def _stretches(self, block: torch.Tensor, codes: torch.Tensor) -> Iterator[_Stretch]:
        import torch

        rows, columns = block.shape
        step = max(1, STRETCH // columns)
        for first in range(0, rows, step):
            stored = block[first : first + step]
            yield _Stretch(
                stored,
                stored.view(torch.int16),
                self._magnitudes.tensor(torch.int16, *stored.shape),
                self._products.tensor(torch.float32, *stored.shape),
                codes[first : first + step],
            )


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Some rows of a block, few enough for a core's cache: as stored, as patterns, and what becomes of them.

    The memory of ``magnitudes`` and ``products`` is shared by all stretches.
    """

    stored: torch.Tensor
    patterns: torch.Tensor
    magnitudes: torch.Tensor
    products: torch.Tensor
    codes: torch.Tensor

    def peaks_into(self, peaks: torch.Tensor) -> None:
        """The largest magnitude of each row, as a bf16 pattern without its sign."""
        import torch

        torch.bitwise_and(self.patterns, MAGNITUDE, out=self.magnitudes)
        torch.amax(self.magnitudes, 1, out=peaks)

    def codes_by(self, inverses: torch.Tensor, *, flush: bool) -> None:
        """The codes of every row; ``flush`` takes subnormal elements for zero."""
        import torch

        stored = self.stored
        if flush:
            torch.bitwise_and(self.patterns, MAGNITUDE, out=self.magnitudes)
            subnormal = self.magnitudes < FIRST_NORMAL
            stored = self.magnitudes.copy_(self.patterns).masked_fill_(subnormal, 0).view(torch.bfloat16)
        self.codes.copy_(self.products.copy_(stored).mul_(inverses).round_())


class _Block:
    """The views of one block, and of one number a row."""

    def __init__(self, stretches: Sequence[_Stretch], scales: torch.Tensor) -> None:
        import torch

        rows = len(scales)
        self._scales = scales
        self._peaks = torch.empty(rows, dtype=torch.int16)
        self._wide = torch.empty(rows, dtype=torch.int32)
        self._maxima = self._wide.view(torch.float32)
        self._ones, self._inverses = torch.ones(rows), torch.empty(rows)
        column, step = self._inverses.unsqueeze(1), len(stretches[0].stored)
        own = [slice(first, first + step) for first in range(0, rows, step)]
        self._stretches = tuple(
            (stretch, self._peaks[rows_], column[rows_])
            for stretch, rows_ in zip(stretches, own, strict=True)
        )

    def quantise(self) -> None:
        import torch

        peaks = self._peaks
        for stretch, own, _ in self._stretches:
            stretch.peaks_into(own)
        lowest, highest = map(int, torch.aminmax(peaks))
        if highest >= NOT_FINITE:
            raise self._first_not_finite()
        flush = lowest < FIRST_INDIFFERENT
        empty = peaks < FIRST_SCALED if flush else None
        if empty is not None:
            peaks.masked_fill_(empty, ONE)
        # A bf16 pattern is the upper half of the fp32 one.
        self._wide.copy_(peaks).bitwise_left_shift_(16)
        torch.mul(self._maxima, ONE_127TH, out=self._scales)
        torch.div(self._ones, self._scales, out=self._inverses)
        if empty is not None:
            self._scales.masked_fill_(empty, 0.0)
            self._inverses.masked_fill_(empty, 0.0)
        for stretch, _, inverses in self._stretches:
            stretch.codes_by(inverses, flush=flush)

    def _first_not_finite(self) -> NotFinite:
        row = 0
        for stretch, peaks, _ in self._stretches:
            if int(peaks.max()) >= NOT_FINITE:
                within = int((peaks >= NOT_FINITE).nonzero()[0])
                magnitudes = stretch.patterns[within] & MAGNITUDE
                column = int((magnitudes >= NOT_FINITE).nonzero()[0])
                what = "infinity" if int(magnitudes[column]) == NOT_FINITE else "NaN"
                return NotFinite(row + within, column, what)
            row += len(peaks)
        raise AssertionError("one of the rows has such a peak")
