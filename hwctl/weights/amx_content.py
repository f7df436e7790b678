"""What every sound pair of ``.kt`` files satisfies, checked on the packed bytes without the source weights.

Codes lie in -127..127; a scale is +0.0 or a normal finite number; a row of scale 0 has only zero codes,
any other row at least one code of magnitude 127. Owns these rules and nothing else: sizes and digests
are the store's business. Made to run beside SHA-256 on the same stretch of bytes at a small part of its
cost: all that is kept per row is the largest magnitude.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hwctl.errors import Finding
from hwctl.weights.amx import (
    GROUP_COLUMNS,
    PANEL_ROWS,
    ROW_BLOCK,
    SCALE_BYTES,
    STRIP_ROWS,
    TILE_BYTES,
    TILE_COLUMNS,
    column_blocks,
)

if TYPE_CHECKING:
    import torch

STRETCH_BYTES = 1 << 19
FORBIDDEN = 128
FULL = 127
_MOST_SHAPES = 4
"""A tree has two shapes of files, which take turns."""
_FIRST_NORMAL = 0x00800000
_NOT_FINITE = 0x7F800000


@dataclass(frozen=True, slots=True)
class _Stretch:
    """One stretch of a file: all its magnitudes, the same by tile for every column block, and the place of
    their maxima."""

    magnitudes: torch.Tensor
    tiles: tuple[torch.Tensor, ...]
    tops: torch.Tensor


class _Shape:
    """Buffers and views for files of one shape. Making views costs as much as looking at the bytes does.

    ``stretches`` are what is fed one by one; ``folds`` are pairs of halves of all maxima, the first of which
    is to take the larger of both, and after which ``largest`` [panel, row] has one for each row.
    """

    def __init__(self, rows: int, columns: int) -> None:
        import torch

        self.rows = rows
        step = max(1, STRETCH_BYTES // (ROW_BLOCK * columns)) * ROW_BLOCK
        magnitudes = torch.empty(min(step, rows) * columns, dtype=torch.uint8)
        tops = torch.empty(rows // STRIP_ROWS, TILE_BYTES, dtype=torch.uint8)
        self.stretches = [
            _stretch(magnitudes, tops, first, min(step, rows - first), columns)
            for first in range(0, rows, step)
        ]
        self.folds: list[tuple[torch.Tensor, torch.Tensor]] = []
        groups = tops.view(rows // PANEL_ROWS, -1, PANEL_ROWS, GROUP_COLUMNS)
        while half := groups.shape[1] // 2:
            self.folds.append((groups[:, :half], groups[:, half:]))
            groups = groups[:, :half]
        by_row = groups[:, 0]
        self.folds += [(by_row[..., :2], by_row[..., 2:]), (by_row[..., 0], by_row[..., 1])]
        self.largest = by_row[..., 0]
        self.full = torch.full_like(self.largest, FULL)


def _stretch(magnitudes: torch.Tensor, tops: torch.Tensor, first: int, rows: int, columns: int) -> _Stretch:
    import torch

    blocks, strips = rows // ROW_BLOCK, ROW_BLOCK // STRIP_ROWS
    mine = magnitudes[: rows * columns]
    by_block = mine.view(blocks, ROW_BLOCK * columns)
    tiles = tuple(
        by_block[:, begin * ROW_BLOCK : (begin + width) * ROW_BLOCK].view(
            blocks, strips, width // TILE_COLUMNS, TILE_BYTES
        )
        for begin, width in column_blocks(columns)
    )
    own = tops[first // STRIP_ROWS : (first + rows) // STRIP_ROWS].view(blocks, strips, TILE_BYTES)
    return _Stretch(mine.view(torch.int8), tiles, own)


class ContentCheck:
    """Checks one pair of files after another: ``start``, ``feed`` every stretch, ``finish``. One per thread.

    Between the calls it keeps the largest magnitude at each of the 64 bytes of every panel's groups, which
    is 64 bytes a row; folding them to one a row is left to ``finish``.
    """

    def __init__(self) -> None:
        self._shapes: dict[tuple[int, int], _Shape] = {}
        self._shape: _Shape | None = None
        self._at = 0

    def start(self, rows: int, columns: int) -> int:
        """Begin a quant file of [rows, columns] codes; how many bytes ``feed`` wants (the last: the rest)."""
        shape = self._shapes.get((rows, columns))
        if shape is None:
            if len(self._shapes) == _MOST_SHAPES:
                self._shapes.clear()
            shape = self._shapes[rows, columns] = _Shape(rows, columns)
        self._shape, self._at = shape, 0
        return shape.stretches[0].magnitudes.numel()

    def feed(self, data: bytearray | memoryview) -> None:
        """Look at the next bytes of the quant file: whole row blocks, in a buffer that is never written."""
        import torch

        assert self._shape is not None
        stretch = self._shape.stretches[self._at]
        if len(data) != stretch.magnitudes.numel():
            raise ValueError(f"fed {len(data)} bytes where {stretch.magnitudes.numel()} come next")
        # |-128| wraps to -128, which read as unsigned is 128: one maximum finds both rules' answers.
        torch.abs(torch.frombuffer(data, dtype=torch.int8), out=stretch.magnitudes)
        torch.amax(stretch.tiles[0], 2, out=stretch.tops)
        for tiles in stretch.tiles[1:]:
            torch.maximum(stretch.tops, tiles.amax(2), out=stretch.tops)
        self._at += 1

    def finish(self, scales: bytes | bytearray | memoryview) -> tuple[Finding, ...]:
        """The findings of this pair, given the whole scale file; rows are counted from 0."""
        import torch

        shape = self._shape
        assert shape is not None
        if self._at != len(shape.stretches) or len(scales) != shape.rows * SCALE_BYTES:
            raise ValueError(f"{self._at} stretches and {len(scales)} bytes of scales for {shape.rows} rows")
        for larger, other in shape.folds:
            torch.maximum(larger, other, out=larger)
        patterns = torch.frombuffer(bytearray(scales), dtype=torch.int32)
        # As signed integers every negative number, -0.0 included, lies below the first normal one.
        sound = int(patterns.min()) >= _FIRST_NORMAL and int(patterns.max()) < _NOT_FINITE
        if sound and torch.equal(shape.largest, shape.full):
            return ()
        return _judged(shape.largest.reshape(-1), patterns)


def _judged(tops: torch.Tensor, patterns: torch.Tensor) -> tuple[Finding, ...]:
    """Every rule against every row, which only a file with zero or damaged rows comes to need."""
    zero = patterns == 0
    forbidden = tops == FORBIDDEN
    bad_scale = ~zero & ((patterns < _FIRST_NORMAL) | (patterns >= _NOT_FINITE))
    sound = ~bad_scale & ~forbidden
    rules = (
        (forbidden, "code-out-of-range", "a code of -128, which no sound writer makes"),
        (bad_scale, "scale-not-sound", "a scale that is neither +0.0 nor a normal finite number"),
        (sound & zero & (tops != 0), "row-not-zero", "scale 0, but codes other than 0"),
        (sound & ~zero & (tops != FULL), "row-not-full", "a scale, but no code of magnitude 127"),
    )
    return tuple(
        Finding(code, _worded(rows, what))
        for bad, code, what in rules
        if (rows := bad.nonzero().view(-1).tolist())
    )


def _worded(rows: list[int], what: str) -> str:
    others = f" and {len(rows) - 1} more" if len(rows) > 1 else ""
    return f"row {rows[0]}{others}: {what}"
