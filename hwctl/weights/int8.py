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
from collections.abc import Iterator
from contextlib import contextmanager
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

PRODUCTS = 1 << 18
"""Elements at a time as fp32, which are gone over four times: so many stay in a core's L2 cache."""

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
    """Quantises blocks of rows in buffers that it uses again. One per thread."""

    def __init__(self) -> None:
        self._magnitudes, self._products = Scratch(), Scratch()

    def quantise(self, block: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor) -> None:
        """Quantise bf16 ``block`` [rows, k] into int8 ``codes`` [rows, k] and fp32 ``scales`` [rows].

        Only the last dimension of ``block`` has to be contiguous. Raises NotFinite at the first NaN or
        infinity; the outputs are then undefined.
        """
        import torch

        rows, columns = block.shape
        patterns = block.view(torch.int16)
        magnitudes = self._magnitudes.tensor(torch.int16, rows, columns)
        torch.bitwise_and(patterns, MAGNITUDE, out=magnitudes)
        peaks = magnitudes.amax(1)
        lowest, highest = int(peaks.min()), int(peaks.max())
        if highest >= NOT_FINITE:
            raise _first_not_finite(magnitudes, peaks)
        empty = None
        if lowest < FIRST_INDIFFERENT:
            block = _flushed(patterns, magnitudes)
            empty = peaks < FIRST_SCALED
            peaks.masked_fill_(empty, ONE)
        # A bf16 pattern is the upper half of the fp32 one.
        maxima = (peaks.to(torch.int32) << 16).view(torch.float32)
        torch.mul(maxima, ONE_127TH, out=scales)
        inverses = torch.div(torch.ones_like(scales), scales)
        if empty is not None:
            scales.masked_fill_(empty, 0.0)
            inverses.masked_fill_(empty, 0.0)
        step = max(1, PRODUCTS // columns)
        for first in range(0, rows, step):
            part, out = block[first : first + step], codes[first : first + step]
            products = self._products.tensor(torch.float32, *part.shape).copy_(part)
            out.copy_(products.mul_(inverses[first : first + step].unsqueeze(1)).round_())


def _flushed(patterns: torch.Tensor, magnitudes: torch.Tensor) -> torch.Tensor:
    """The block with its subnormals replaced by zero, in the memory of ``magnitudes``."""
    import torch

    subnormal = magnitudes < FIRST_NORMAL
    return magnitudes.copy_(patterns).masked_fill_(subnormal, 0).view(torch.bfloat16)


def _first_not_finite(magnitudes: torch.Tensor, peaks: torch.Tensor) -> NotFinite:
    row = int((peaks >= NOT_FINITE).nonzero()[0])
    column = int((magnitudes[row] >= NOT_FINITE).nonzero()[0])
    what = "infinity" if int(magnitudes[row, column]) == NOT_FINITE else "NaN"
    return NotFinite(row, column, what)
