"""Lines laid out to fit the terminal: broken at blanks, and nowhere else.

Owns widths and breaks. What is laid out was escaped before, and may be coloured: colours take no cells.
"""

from __future__ import annotations

import re

from hwctl.cli import environment
from hwctl.cli.escape import escape

NO_BREAK = "\0"
"""Stands for a blank that no line is broken at; escaped text has no such character of its own."""
_HANG = "    "
_LABEL = 20
"""Cells that a line's first words may take for a path to stay beside them."""
_WORDS = re.compile(r" (?!(?:[KMGTPE]i)?B\b|s\b)")
"""A number and its unit are one word."""
_COLOURS = re.compile(r"\x1b\[\d*m")


def columns_there() -> int:
    """Cells in a line of the terminal; below 40 nothing is laid out to fit."""
    return max(40, environment.columns())


def cells(text: str) -> int:
    """Cells that a text takes once it is escaped; a Chinese character takes two, an accent none."""
    return _width(escape(text))


def _width(safe: str) -> int:
    plain = _COLOURS.sub("", safe)
    if plain.isascii():
        return len(plain)
    from rich.cells import cell_len

    return cell_len(plain)


def fold(safe: str, hang: str | None = None) -> list[str]:
    """The lines of a text that may hold colours; ``hang`` begins all but the first, by default four blanks
    more than the first has.

    A word that is longer than a line, such as a path, stays whole, for the terminal to break: so it can still
    be copied. After a first word or two it stays beside them.
    """
    width = columns_there()
    if _width(safe) <= width:
        return [safe]
    body = safe.lstrip(" ")
    indent = safe[: len(safe) - len(body)]
    hang = indent + _HANG if hang is None else hang
    lines, used = [indent], len(indent)
    for word in _WORDS.split(body):
        blank, taken = " " if lines[-1].strip() else "", _width(word)
        too_long = len(hang) + taken > width
        if blank and used + 1 + taken > width and not (too_long and used <= _LABEL):
            lines.append(hang + word)
            used = len(hang) + taken
        else:
            lines[-1] += blank + word
            used += len(blank) + taken
    return lines


def wrapped(text: str, *, indent: str = "", hang: str | None = None, limit: int | None = None) -> list[str]:
    """The lines of a text from a store, escaped and indented. Of more than ``limit`` the last ends in an
    ellipsis."""
    lines = fold(indent + escape(text), indent if hang is None else hang)
    if limit is None or len(lines) <= limit:
        return lines
    last = lines[limit - 1]
    while _width(last) > columns_there() - 2 and " " in last.strip():
        last = last.rpartition(" ")[0]
    return [*lines[: limit - 1], f"{last} …"]
