"""Rows of inspect at a terminal: a line each where that fits, else what is too wide stands beneath the line.

A key is there to be copied, so it is never cut. Owns which columns there are and which of them give way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from hwctl.cli import text
from hwctl.cli.escape import escape
from hwctl.cli.output import Piece, Styled
from hwctl.cli.paragraphs import cells, columns_there, wrapped
from hwctl.cli.tables import Column, table
from hwctl.cli.view_fields import remark
from hwctl.core.inspect import Row

_COLUMNS = (
    Column("STATE"),
    Column("KEY"),
    Column("MODEL", shrinks=True, least=20),
    Column("SIZE", "right"),
    Column("FILES", "right"),
    Column("USED", "right"),
    Column("HELD BY", shrinks=True, least=26),
    Column("REMARK"),
)
_STATE, _KEY, _MODEL, _SIZE, _FILES, _USED, _HELD, _REMARK = range(len(_COLUMNS))
_DIGEST = 64
_BETWEEN = 2
_INDENT = "  "
_REMARK_LINES = 3

# Each step leaves more room to the rest. The number of files is told nowhere then, all else beneath.
_GIVE_WAY: Sequence[frozenset[int]] = (
    frozenset(),
    frozenset({_REMARK}),
    frozenset({_REMARK, _FILES}),
    frozenset({_REMARK, _HELD}),
    frozenset({_REMARK, _HELD, _FILES}),
    frozenset({_REMARK, _KEY}),
    frozenset({_REMARK, _KEY, _FILES}),
    frozenset({_REMARK, _KEY, _FILES, _HELD}),
    frozenset({_REMARK, _KEY, _FILES, _HELD, _MODEL}),
)


def drawn(rows: Sequence[Row], *, colour: bool, whole: bool) -> str:
    """The rows as safe text. ``whole`` cuts nothing at all, and tells the path too."""
    listed = [_cells(row) for row in rows]
    layout = _laid_out(listed, whole=whole)
    shown = [[row[index] for index in layout.shown] for row in listed]
    head, *lines = table(layout.columns, shown, colour=colour).splitlines()
    out = [head]
    for row, line, of_row in zip(rows, lines, listed, strict=True):
        out += (line, *_beneath(row, of_row, layout, whole=whole))
    return "".join(f"{line}\n" for line in out)


@dataclass(frozen=True, slots=True)
class _Layout:
    """Which columns there are; keys wider than ``key`` cells are told beneath as well."""

    shown: Sequence[int]
    columns: Sequence[Column]
    away: frozenset[int]
    key: int


def _laid_out(listed: Sequence[Sequence[Piece]], *, whole: bool) -> _Layout:
    """The first layout that fits: columns that say nothing of any row are left out, others give way."""
    told = [index for index in range(len(_COLUMNS)) if any(row[index] not in ("", "-") for row in listed)]
    wide = {index: sorted(cells(_plain(row[index])) for row in listed) for index in told}
    least = {index: _least(_COLUMNS[index], wide[index][-1], whole=whole) for index in told}
    for away in _GIVE_WAY:
        shown = [index for index in told if index not in away]
        rest = columns_there() - sum(least[index] + _BETWEEN for index in shown if index != _KEY)
        # One key out of the ordinary shall not drive all others out of the table, nor what stands beside it.
        usual = wide[_KEY][len(listed) // 2]
        key = max(len("KEY"), min(wide[_KEY][-1], max(usual, _DIGEST), rest - _BETWEEN))
        if rest >= 0 and (_KEY in away or key >= usual):
            break
    if sum(max(wide[index][-1], len(_COLUMNS[index].title)) + _BETWEEN for index in shown) <= columns_there():
        key = wide[_KEY][-1]
    columns = [
        replace(_COLUMNS[index], least=least[index], most=key if index == _KEY else None) for index in shown
    ]
    return _Layout(shown, columns, away, 0 if _KEY in away else key)


def _least(column: Column, width: int, *, whole: bool) -> int:
    """What a column takes at least, where its widest cell takes ``width``."""
    width = max(width, len(column.title))
    return min(width, column.least) if column.shrinks and not whole else width


def _beneath(row: Row, of_row: Sequence[Piece], layout: _Layout, *, whole: bool) -> Iterator[str]:
    """What the line of a row had no room for."""
    if cells(row.artifact.key) > layout.key:
        yield _INDENT + escape(row.artifact.key)
    if whole:
        yield _INDENT + escape(str(row.artifact.path))
    if _MODEL in layout.away and row.model:
        yield from wrapped(f"model {row.model}", indent=_INDENT, hang=_INDENT * 2)
    if _HELD in layout.away and (held := _plain(of_row[_HELD])) != "-":
        yield from wrapped(f"held by {held}", indent=_INDENT, hang=_INDENT * 2)
    if _REMARK in layout.away and (words := remark(row)):
        yield from wrapped(words, indent=_INDENT, limit=None if whole else _REMARK_LINES)


def _cells(row: Row) -> Sequence[Piece]:
    artifact = row.artifact
    return (
        text.state(artifact.state),
        artifact.key,
        row.model or "-",
        text.size(artifact.bytes),
        str(artifact.files),
        text.age(artifact.last_used),
        text.holders(artifact.leases),
        remark(row),
    )


def _plain(piece: Piece) -> str:
    return piece.text if isinstance(piece, Styled) else piece
