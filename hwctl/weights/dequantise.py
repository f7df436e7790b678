"""Back from the ``.kt`` files of an expert to plain matrices: each code times the scale of its row.

Owns the arithmetic and the putting together of parts. Where the files lie and what is written of the result
is the caller's business, who gives a way to read them and takes the rows as bytes, in order.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from hwctl.weights.amx import ROW_BLOCK, SCALE_BYTES, Geometry, Kind, Projection, unpack
from hwctl.weights.scratch import Scratch

if TYPE_CHECKING:
    import torch

BLOCK_ELEMENTS = 1 << 18

Read = Callable[[int, Kind, int, memoryview], object]
"""Fills the buffer from a part's quant or scale file of the matrix in hand: (part, kind, offset, buffer)."""


class Dtype(enum.StrEnum):
    """What the matrices become, as safetensors spells it."""

    BF16 = "BF16"
    F32 = "F32"

    @property
    def nbytes(self) -> int:
        return 2 if self is Dtype.BF16 else 4


def full_shape(geometry: Geometry, projection: Projection) -> tuple[int, int]:
    """(rows, columns) of a matrix with all its parts."""
    if projection is Projection.DOWN:
        return geometry.hidden, geometry.intermediate
    return geometry.intermediate, geometry.hidden


class Dequantiser:
    """Turns matrices of one geometry into ``dtype``, in buffers that it uses again. One per thread."""

    def __init__(self, geometry: Geometry, dtype: Dtype) -> None:
        self._geometry, self._dtype = geometry, dtype
        self._packed, self._codes, self._scales = Scratch(), Scratch(), Scratch()
        self._values, self._rows = Scratch(), Scratch()

    def rows(self, projection: Projection, read: Read) -> Iterator[memoryview]:
        """The bytes of ``full_shape`` in row order, little-endian, stretch by stretch.

        A stretch is valid until the next one. Nothing about the codes is checked. Raises what ``read`` does.
        """
        import torch

        n, k = self._geometry.shape(projection)
        rows, columns = full_shape(self._geometry, projection)
        slices = columns // k
        step = max(1, BLOCK_ELEMENTS // columns // ROW_BLOCK) * ROW_BLOCK
        dtype = torch.bfloat16 if self._dtype is Dtype.BF16 else torch.float32
        for top in range(0, rows, n):
            parts = range(top // n, top // n + slices)
            scales = self._scales.tensor(torch.float32, slices, n, 1)
            own = self._scales.bytes(slices * n * SCALE_BYTES)
            for index, part in enumerate(parts):
                read(part, Kind.SCALE, 0, own[index * n * SCALE_BYTES : (index + 1) * n * SCALE_BYTES])
            for row in range(0, n, step):
                count = min(step, n - row)
                out = self._rows.tensor(dtype, count, columns)
                for index, part in enumerate(parts):
                    packed = self._packed.bytes(count * k)
                    read(part, Kind.QUANT, row * k, packed)
                    target = out[:, index * k : (index + 1) * k]
                    self._block(count, k, scales[index, row : row + count], target)
                yield self._rows.bytes(count * columns * self._dtype.nbytes)

    def _block(self, rows: int, k: int, scales: torch.Tensor, out: torch.Tensor) -> None:
        import torch

        codes = self._codes.tensor(torch.int8, rows, k)
        unpack(self._packed.tensor(torch.int8, rows * k), codes)
        values = self._values.tensor(torch.float32, rows, k)
        values.copy_(codes).mul_(scales)
        out.copy_(values)
