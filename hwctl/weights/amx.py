"""The layout ``kt-int8-n32-k64-vnni-v1``: where every code of a matrix lies in its ``.kt`` file.

Owns the geometry (sizes, the shape rule, the offset of an element), packing and its inverse. How codes
come about is ``int8``, what a packed file must satisfy is ``amx_content``, and how the files of one
expert are made from a checkpoint is ``moe.convert``. Knows nothing of trees, manifests or names on disk.

Rows are cut into blocks of 64, columns into blocks of 3584; blocks follow each other row block first.
A whole row block therefore is one stretch of ``64 * k`` bytes, which is what lets a matrix be packed and
unpacked stretch by stretch with bounded memory.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hwctl.errors import Unsupported, Usage

if TYPE_CHECKING:
    import torch

LAYOUT = "kt-int8-n32-k64-vnni-v1"
ROW_BLOCK = 64
COLUMN_BLOCK = 3584
STRIP_ROWS = 32
TILE_COLUMNS = 64
TILE_BYTES = STRIP_ROWS * TILE_COLUMNS
PANEL_ROWS = 16
GROUP_COLUMNS = 4
SCALE_BYTES = 4


class Projection(enum.StrEnum):
    """One matrix of an expert, as the file names spell it."""

    GATE = "gate"
    UP = "up"
    DOWN = "down"


class Kind(enum.StrEnum):
    """Which of a matrix's two files."""

    QUANT = "quant"
    SCALE = "scale"


@dataclass(frozen=True, slots=True)
class Geometry:
    """The shape of a model's experts as a tree of ``parts`` slices stores them. Sizes in elements."""

    hidden: int
    intermediate: int
    experts: int
    parts: int

    @property
    def part_intermediate(self) -> int:
        return self.intermediate // self.parts

    def shape(self, projection: Projection) -> tuple[int, int]:
        """(rows n, columns k) of one part's matrix as stored."""
        if projection is Projection.DOWN:
            return self.hidden, self.part_intermediate
        return self.part_intermediate, self.hidden

    def file_bytes(self, projection: Projection, kind: Kind) -> int:
        n, k = self.shape(projection)
        return n * k if kind is Kind.QUANT else n * SCALE_BYTES

    @property
    def expert_bytes(self) -> int:
        """Bytes of the six files of one expert in one part."""
        return sum(self.file_bytes(projection, kind) for projection in Projection for kind in Kind)

    @property
    def layer_bytes(self) -> int:
        return self.parts * self.experts * self.expert_bytes

    @property
    def layer_files(self) -> int:
        return 6 * self.experts * self.parts


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of one ``.kt`` file of the expert in hand, ready to be written and hashed.

    Pieces of one file come in ascending ``offset`` without gaps, so a digest may be fed as they come;
    pieces of different files of the same expert (its parts) may alternate. ``data`` lies in a reused
    buffer: it is valid until the next piece is asked for.
    """

    part: int
    projection: Projection
    kind: Kind
    offset: int
    data: memoryview


def allowed_parts(intermediate: int) -> tuple[int, ...]:
    """Every part count the shape rule allows for this intermediate size, ascending."""
    whole, rest = divmod(intermediate, ROW_BLOCK)
    return () if rest else tuple(parts for parts in range(1, whole + 1) if whole % parts == 0)


def require_shape(geometry: Geometry) -> None:
    """Refuse what the kernels cannot hold: H % 64, I % parts and (I / parts) % 64 must be zero.

    Raises Unsupported for a model no part count can serve, Usage where another part count would do.
    """
    for name, size in (("hidden_size", geometry.hidden), ("intermediate size", geometry.intermediate)):
        if size % ROW_BLOCK:
            raise Unsupported(f"{name} {size} is not a multiple of {ROW_BLOCK}, which {LAYOUT} needs")
    if geometry.parts < 1 or geometry.intermediate % (geometry.parts * ROW_BLOCK):
        choices = " ".join(map(str, allowed_parts(geometry.intermediate)))
        raise Usage(
            f"an intermediate size of {geometry.intermediate} cannot be cut into {geometry.parts} parts"
            f" of whole {ROW_BLOCK}-row blocks; possible are {choices}"
        )


def offset(row: int, column: int, n: int, k: int) -> int:
    """Where the code of element (row, column) of an [n, k] matrix lies in the quant file."""
    row_block = row // ROW_BLOCK * ROW_BLOCK
    rows = min(ROW_BLOCK, n - row_block)
    column_block = column // COLUMN_BLOCK * COLUMN_BLOCK
    columns = min(COLUMN_BLOCK, k - column_block)
    r, c = row - row_block, column - column_block
    return (
        row_block * k
        + column_block * rows
        + r // STRIP_ROWS * STRIP_ROWS * columns
        + c // TILE_COLUMNS * TILE_BYTES
        + r % STRIP_ROWS // PANEL_ROWS * PANEL_ROWS * TILE_COLUMNS
        + c % TILE_COLUMNS // GROUP_COLUMNS * PANEL_ROWS * GROUP_COLUMNS
        + r % PANEL_ROWS * GROUP_COLUMNS
        + c % GROUP_COLUMNS
    )


def column_blocks(k: int) -> Iterator[tuple[int, int]]:
    """(first column, columns) of every column block of a row."""
    for begin in range(0, k, COLUMN_BLOCK):
        yield begin, min(COLUMN_BLOCK, k - begin)


class Packing:
    """int8 codes [rows, k] and their packed stretch, int8 [rows * k], as views that match each other.

    ``rows`` and ``k`` are multiples of 64. Worth keeping for buffers that are used again: making the views
    takes about as long as copying does.
    """

    def __init__(self, matrix: torch.Tensor, packed: torch.Tensor) -> None:
        self._pairs = tuple(_matched(matrix, packed))

    def pack(self) -> None:
        """Write the codes into the stretch, in packed order."""
        for plain, tiled in self._pairs:
            tiled.copy_(plain)

    def unpack(self) -> None:
        """The inverse of ``pack``."""
        for plain, tiled in self._pairs:
            plain.copy_(tiled)


def _matched(matrix: torch.Tensor, packed: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """One five-dimensional transpose of 4-byte groups per column block: both sides of it."""
    import torch

    rows, k = matrix.shape
    blocks = rows // ROW_BLOCK
    lanes = matrix.view(torch.int32).view(blocks, 2, 2, PANEL_ROWS, k // GROUP_COLUMNS)
    stretch = packed.view(torch.int32).view(blocks, ROW_BLOCK * k // GROUP_COLUMNS)
    for begin, columns in column_blocks(k):
        tiles = columns // TILE_COLUMNS
        groups = TILE_COLUMNS // GROUP_COLUMNS
        plain = lanes[..., begin // GROUP_COLUMNS : (begin + columns) // GROUP_COLUMNS]
        plain = plain.view(blocks, 2, 2, PANEL_ROWS, tiles, groups).permute(0, 1, 4, 2, 5, 3)
        first = begin * ROW_BLOCK // GROUP_COLUMNS
        tiled = stretch[:, first : first + ROW_BLOCK * columns // GROUP_COLUMNS]
        yield plain, tiled.view(blocks, 2, tiles, 2, groups, PANEL_ROWS)
