"""One expert's matrix, as a place inside a tensor of the checkpoint. A value, without any I/O."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Matrix:
    """An expert's matrix [rows, columns] (row = output feature), lying in the tensor called ``tensor``.

    ``slab`` is the [slab rows, slab columns] that the tensor holds for one expert; ``expert`` says which of
    its slabs, None where every expert has a tensor of its own. The matrix begins at ``origin`` in the slab
    and lies there as [columns, rows] when ``transposed``. ``dtype`` is the container's code. ``scales`` names
    the tensor of scales of an e4m3 matrix, one for each ``block`` of the slab, the last ones partial.
    """

    tensor: str
    dtype: str
    slab: tuple[int, int]
    rows: int
    columns: int
    expert: int | None = None
    origin: tuple[int, int] = (0, 0)
    transposed: bool = False
    scales: str | None = None
    block: tuple[int, int] = (1, 1)

    @property
    def scale_shape(self) -> tuple[int, int]:
        """Blocks that the slab is cut into, down and across."""
        return -(-self.slab[0] // self.block[0]), -(-self.slab[1] // self.block[1])

    def position(self, row: int, column: int) -> str:
        """An element of the matrix as an index into the tensor, for messages."""
        down, across = (column, row) if self.transposed else (row, column)
        index = [self.origin[0] + down, self.origin[1] + across]
        return str(index if self.expert is None else [self.expert, *index])
