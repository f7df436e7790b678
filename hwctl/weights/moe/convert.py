"""Makes the ``.kt`` files of one expert: rows are read, quantised, packed and handed on piece by piece.

Owns the order of the pieces and the buffers of one worker. Where pieces go (files, digests) is the caller's
business, and so are threads: an expert is the unit of work, and a Converter belongs to one thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from hwctl.errors import Damaged, Finding
from hwctl.weights.amx import SCALE_BYTES, Kind, Packing, Piece, Projection
from hwctl.weights.int8 import NotFinite, Quantiser
from hwctl.weights.moe.matrix import Matrix
from hwctl.weights.moe.plan import MoePlan
from hwctl.weights.moe.rows import RowReader
from hwctl.weights.scratch import Scratch
from hwctl.weights.tensor_reader import TensorReader

if TYPE_CHECKING:
    import torch


class Converter:
    """Converts experts of one plan, in buffers made once and used again.

    One per thread; ``tensors`` may be shared. ``block`` is the elements it takes at a time, as a ``Crew``
    has it. Run it inside ``int8.one_thread()``.
    """

    def __init__(self, plan: MoePlan, tensors: TensorReader, block: int) -> None:
        self._plan = plan
        self._rows = RowReader(tensors, block)
        self._quantiser = Quantiser()
        self._codes, self._packed, self._scales = Scratch(), Scratch(), Scratch()
        self._packings: dict[tuple[int, int], Packing] = {}
        self._viewed = 0

    @property
    def memory(self) -> int:
        """Bytes of all buffers, as they are by now; ``crew.worker_bytes`` says what they come to at most."""
        own = (self._codes, self._packed, self._scales)
        return self._rows.memory + self._quantiser.memory + sum(buffer.size for buffer in own)

    def expert(self, layer: int, expert: int) -> Iterator[Piece]:
        """Every piece of the six files that each part has for this expert, projection by projection."""
        for projection in Projection:
            yield from self.matrix(layer, expert, projection)

    def matrix(self, layer: int, expert: int, projection: Projection) -> Iterator[Piece]:
        """Every piece of both files that each part has for this matrix: the smallest unit of work.

        Raises Damaged for a NaN or an infinity, naming tensor and position; Refused when the source
        changed; IoFailed for its disk. Pieces given out before that belong to files not to be kept.
        """
        found = self._plan.matrix(layer, expert, projection)
        try:
            yield from self._matrix(found, projection)
        except NotFinite as exc:
            raise self._not_finite(found, exc) from exc

    def _matrix(self, matrix: Matrix, projection: Projection) -> Iterator[Piece]:
        """Both files of one matrix in every part: gate and up are cut by rows, down is cut by columns."""
        import torch

        n, k = self._plan.geometry.shape(projection)
        slices = matrix.columns // k
        scales = self._scales.tensor(torch.float32, slices, n)
        for row, block in self._rows.blocks(matrix, cut=n):
            first, at = divmod(row, n)
            for index in range(slices):
                data = self._quantised(block, row, index * k, k, scales[index, at:])
                yield Piece(first + index, projection, Kind.QUANT, at * k, data)
            if at + block.shape[0] == n:
                data = self._scales.bytes(slices * n * SCALE_BYTES)
                for index in range(slices):
                    own = data[index * n * SCALE_BYTES : (index + 1) * n * SCALE_BYTES]
                    yield Piece(first + index, projection, Kind.SCALE, 0, own)

    def _quantised(
        self, block: torch.Tensor, row: int, column: int, columns: int, scales: torch.Tensor
    ) -> memoryview:
        """Packed codes of some columns of a block; their rows' scales go into the first of ``scales``."""

        import torch

        rows = block.shape[0]
        codes = self._codes.tensor(torch.int8, rows, columns)
        packed = self._packed.tensor(torch.int8, rows * columns)
        if self.memory != self._viewed:
            # A view of a buffer that was given up for a larger one would keep its memory.
            self._viewed = self.memory
            self._quantiser.forget()
            self._packings.clear()
        packing = self._packings.get((rows, columns))
        if packing is None:
            packing = self._packings[rows, columns] = Packing(codes, packed)
        try:
            self._quantiser.quantise(block[:, column : column + columns], codes, scales[:rows])
        except NotFinite as exc:
            raise NotFinite(row + exc.row, column + exc.column, exc.what) from None
        packing.pack()
        return self._packed.bytes(rows * columns)

    def _not_finite(self, matrix: Matrix, exc: NotFinite) -> Damaged:
        where = f"{matrix.tensor}{matrix.position(exc.row, exc.column)}"
        message = f"{where}: {exc.what} among the weights"
        file = self._plan.checkpoint.weight_map[matrix.tensor]
        return Damaged(message, [Finding("not-finite", message, file)], path=self._plan.checkpoint.path)
