"""What every sound pair of ``.kt`` files satisfies, checked on the packed bytes without the source weights.

Codes lie in -127..127; a scale is +0.0 or a normal finite number; a row of scale 0 has only zero codes,
any other row at least one code of magnitude 127. Owns these rules and nothing else: sizes and digests
are the store's business. Made to run beside SHA-256 on the same stretch of bytes at a small part of its
cost: all that is kept per row is the largest magnitude.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hwctl.errors import Finding
from hwctl.weights.amx import (
    GROUP_COLUMNS,
    PANEL_ROWS,
    ROW_BLOCK,
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
_FIRST_NORMAL = 0x00800000
_NOT_FINITE = 0x7F800000
_LANE = PANEL_ROWS * GROUP_COLUMNS


class ContentCheck:
    """Checks one pair of files after another: ``start``, ``feed`` every stretch, ``finish``. One per thread.

    Between the calls it keeps the largest magnitude at each of the 64 bytes of every panel's groups, which
    is 64 bytes a row; folding them to one a row is left to ``finish``.
    """

    def __init__(self) -> None:
        import torch

        self._magnitudes = torch.empty(0, dtype=torch.int8)
        self._tops = torch.empty(0, dtype=torch.uint8)
        self._columns = self._seen = self._rows = 0

    def start(self, rows: int, columns: int) -> int:
        """Begin a quant file of [rows, columns] codes; how many bytes ``feed`` wants (the last: the rest)."""
        import torch

        self._rows, self._columns, self._seen = rows, columns, 0
        block = ROW_BLOCK * columns
        stretch = min(rows // ROW_BLOCK, max(1, STRETCH_BYTES // block)) * block
        if self._magnitudes.numel() < stretch:
            self._magnitudes = torch.empty(stretch, dtype=torch.int8)
        if self._tops.numel() < rows * TILE_COLUMNS:
            self._tops = torch.empty(rows * TILE_COLUMNS, dtype=torch.uint8)
        return stretch

    def feed(self, stretch: bytearray | memoryview) -> None:
        """Look at the next bytes of the quant file: whole row blocks, in a buffer that is never written."""
        import torch

        packed = torch.frombuffer(stretch, dtype=torch.int8)
        magnitudes = self._magnitudes[: packed.numel()]
        # |-128| wraps to -128, which read as unsigned is 128: one maximum finds both rules' answers.
        torch.abs(packed, out=magnitudes)
        blocks = packed.numel() // (ROW_BLOCK * self._columns)
        strips = ROW_BLOCK // STRIP_ROWS
        tops = self._tops[self._seen : self._seen + blocks * ROW_BLOCK * TILE_COLUMNS]
        tops = tops.view(blocks, strips, TILE_BYTES)
        by_block = magnitudes.view(torch.uint8).view(blocks, ROW_BLOCK * self._columns)
        for begin, columns in column_blocks(self._columns):
            tiles = by_block[:, begin * ROW_BLOCK : (begin + columns) * ROW_BLOCK]
            tiles = tiles.view(blocks, strips, columns // TILE_COLUMNS, TILE_BYTES)
            if begin:
                torch.maximum(tops, tiles.amax(2), out=tops)
            else:
                torch.amax(tiles, 2, out=tops)
        self._seen += tops.numel()

    def _largest(self) -> torch.Tensor:
        """The largest magnitude of every row, uint8 [rows], as read from |code| taken for unsigned."""
        import torch

        tops = self._tops[: self._rows * TILE_COLUMNS].view(self._rows // PANEL_ROWS, -1, _LANE)
        while half := tops.shape[1] // 2:
            tops = torch.maximum(tops[:, :half], tops[:, half:])
        by_row = tops.view(self._rows, GROUP_COLUMNS)
        pairs = torch.maximum(by_row[:, :2], by_row[:, 2:])
        return torch.maximum(pairs[:, 0], pairs[:, 1])

    def finish(self, scales: bytes | bytearray | memoryview) -> tuple[Finding, ...]:
        """The findings of this pair, given the whole scale file; rows are counted from 0."""
        import torch

        tops = self._largest()
        patterns = torch.frombuffer(bytearray(scales), dtype=torch.int32)
        if patterns.numel() != self._rows:
            raise ValueError(f"{len(scales)} bytes of scales for {self._rows} rows")
        # As signed integers every negative number, -0.0 included, lies below the first normal one.
        sound = int(patterns.min()) >= _FIRST_NORMAL and int(patterns.max()) < _NOT_FINITE
        if sound and int(tops.min()) == int(tops.max()) == FULL:
            return ()
        return _judged(tops, patterns)


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
