"""Tables for people at a terminal, laid out to fit its width. Pipes get records instead.

rich lets control characters through even with its markup off, so every cell is escaped before it gets one.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from hwctl.cli.escape import escape
from hwctl.cli.output import Piece, Style, Styled
from hwctl.cli.paragraphs import columns_there

if TYPE_CHECKING:
    from rich.text import Text

_STYLES = {
    Style.GOOD: "green",
    Style.BAD: "red",
    Style.ODD: "yellow",
    Style.FAINT: "dim",
    Style.STRONG: "bold",
}


@dataclass(frozen=True, slots=True)
class Column:
    """``shrinks`` columns give way first when the terminal is narrow, down to ``least`` cells.

    What is wider than ``most`` ends in an ellipsis.
    """

    title: str
    justify: Literal["left", "right"] = "left"
    shrinks: bool = False
    least: int = 4
    most: int | None = None


def table(columns: Sequence[Column], rows: Iterable[Sequence[Piece]], *, colour: bool) -> str:
    """The table as safe text, one line a row, never wider than the terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold" if colour else "")
    for column in columns:
        grid.add_column(
            column.title,
            justify=column.justify,
            # rich takes width from columns that may wrap before it touches the others; the cells, which
            # do not wrap, then end in an ellipsis.
            no_wrap=not column.shrinks,
            min_width=column.least if column.shrinks else None,
            max_width=column.most,
        )
    for row in rows:
        grid.add_row(*(_cell(piece, Text) for piece in row))
    out = io.StringIO()
    console = Console(
        file=out,
        width=columns_there(),
        force_terminal=colour,
        color_system="standard" if colour else None,
        no_color=not colour,
        markup=False,
        emoji=False,
        highlight=False,
        legacy_windows=False,
    )
    console.print(grid)
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


def _cell(piece: Piece, text_type: type[Text]) -> Text:
    raw, style = (piece.text, _STYLES[piece.style]) if isinstance(piece, Styled) else (piece, "")
    cell = text_type(no_wrap=True, overflow="ellipsis")
    # As a span and not as the cell's own style, which would colour the padding too.
    return cell.append(escape(raw), style)
