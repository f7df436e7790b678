"""Expert matrices read block by block as bf16, whatever they are stored as and whichever way round.

Owns the reading and its buffers; what is read was judged by ``plan``, and how a dtype becomes bf16 is
``bfloat16``. A matrix stored output feature first is read in whole rows. One stored the other way round is
gathered in stripes: all of its slab is read in order, and the columns of the stripe are kept, transposed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from hwctl.weights.amx import ROW_BLOCK
from hwctl.weights.bfloat16 import dequantise_blocks, from_fp16
from hwctl.weights.dtypes import DTYPE_BITS
from hwctl.weights.moe.matrix import Matrix
from hwctl.weights.scratch import Scratch
from hwctl.weights.tensor_reader import TensorReader

if TYPE_CHECKING:
    import torch

STRIPE_ELEMENTS = 1 << 22
"""What is kept of a slab in one reading; the slab is read again for every stripe."""
READ_ROWS = 128


class RowReader:
    """Reads matrices through one TensorReader. Blocks lie in reused buffers; one reader per thread."""

    def __init__(self, tensors: TensorReader, block: int) -> None:
        """``block`` is the most elements of a block, unless 64 rows are more."""
        self._tensors = tensors
        self._block = block
        self._raw, self._plain, self._wide = Scratch(), Scratch(), Scratch()
        self._stripe, self._kept, self._turned = Scratch(), Scratch(), Scratch()
        self._scales: tuple[str, int, torch.Tensor] | None = None

    @property
    def memory(self) -> int:
        """Bytes of all buffers, as they are by now."""
        buffers = (self._raw, self._plain, self._wide, self._stripe, self._kept, self._turned)
        return sum(buffer.size for buffer in buffers)

    def blocks(self, matrix: Matrix, cut: int) -> Iterator[tuple[int, torch.Tensor]]:
        """(first row, bf16 [rows, columns]) over the whole matrix in order.

        No block reaches over a multiple of ``cut``, itself a multiple of 64. A block is valid until the next
        one. Raises Refused when a file changed, IoFailed for its disk.
        """
        step = max(1, self._block // matrix.columns // ROW_BLOCK) * ROW_BLOCK
        if not matrix.transposed:
            for row, count in _spans(0, matrix.rows, step, cut):
                yield row, self._slab_rows(matrix, matrix.origin[0] + row, count)
            return
        width = max(1, STRIPE_ELEMENTS // matrix.columns // ROW_BLOCK) * ROW_BLOCK
        for first, rows in _spans(0, matrix.rows, width, matrix.rows):
            stripe = self._gathered(matrix, first, rows)
            for row, count in _spans(first, first + rows, step, cut):
                yield row, stripe[row - first : row - first + count]

    def _gathered(self, matrix: Matrix, first: int, rows: int) -> torch.Tensor:
        """Some rows of a matrix that lies transposed: columns of its slab, all of which is read in order."""
        import torch

        stripe = self._stripe.tensor(torch.bfloat16, rows, matrix.columns)
        kept = slice(matrix.origin[1] + first, matrix.origin[1] + first + rows)
        for down, count in _spans(0, matrix.columns, READ_ROWS, READ_ROWS):
            slab = self._slab_rows(matrix, down, count)
            # torch turns a whole matrix twice as fast as a cut-out of one.
            whole = self._kept.tensor(torch.bfloat16, count, rows).copy_(slab[:, kept])
            turned = self._turned.tensor(torch.bfloat16, rows, count).copy_(whole.t())
            stripe[:, down : down + count].copy_(turned)
        return stripe

    def _slab_rows(self, matrix: Matrix, first: int, count: int) -> torch.Tensor:
        """``count`` whole rows of the matrix's slab as bf16 [count, slab columns]."""
        import torch

        down, across = matrix.slab
        row_bytes = across * DTYPE_BITS[matrix.dtype] // 8
        begin = ((matrix.expert or 0) * down + first) * row_bytes
        buffer = self._raw.bytes(count * row_bytes)
        self._tensors.read_range(matrix.tensor, begin, begin + count * row_bytes, buffer)
        stored = self._raw.tensor(_torch_dtype(matrix.dtype), count, across)
        if matrix.dtype == "BF16":
            return stored
        plain = self._plain.tensor(torch.bfloat16, count, across)
        if matrix.dtype == "F32":
            return plain.copy_(stored)
        wide = self._wide.tensor(torch.float32, count, across)
        if matrix.scales is None:
            from_fp16(stored, plain, wide)
        else:
            dequantise_blocks(stored, self._slab_scales(matrix), matrix.block, (first, 0), plain, wide)
        return plain

    def _slab_scales(self, matrix: Matrix) -> torch.Tensor:
        """The scales of the matrix's slab, [blocks down, blocks across]; the last ones read are kept."""
        import torch

        assert matrix.scales is not None
        slab = matrix.expert or 0
        if self._scales is None or self._scales[:2] != (matrix.scales, slab):
            shape = matrix.scale_shape
            dtype = _torch_dtype(self._tensors.entry(matrix.scales).dtype)
            size = shape[0] * shape[1] * dtype.itemsize
            memory = bytearray(size)
            self._tensors.read_range(matrix.scales, slab * size, (slab + 1) * size, memoryview(memory))
            self._scales = matrix.scales, slab, torch.frombuffer(memory, dtype=dtype).view(shape)
        return self._scales[2]


def _spans(begin: int, end: int, step: int, cut: int) -> Iterator[tuple[int, int]]:
    """(first, count) from ``begin`` to ``end``, at most ``step`` at a time and never over a multiple of
    ``cut``."""
    while begin < end:
        count = min(step, end - begin, cut - begin % cut)
        yield begin, count
        begin += count


def _torch_dtype(code: str) -> torch.dtype:
    import torch

    return {
        "BF16": torch.bfloat16,
        "F16": torch.float16,
        "F32": torch.float32,
        "F8_E4M3": torch.float8_e4m3fn,
    }[code]
