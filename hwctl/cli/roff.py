"""Text as roff: escaping and the few man(7) macros that the pages are made of."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

_ESCAPES = str.maketrans(
    {
        "\\": "\\e",
        "-": "\\-",
        "'": "\\(aq",
        "`": "\\(ga",
        "^": "\\(ha",
        "~": "\\(ti",
        '"': "\\(dq",
    }
)
_WIDTH = 72


def escape(text: str) -> str:
    """Text that comes out of any roff as it went in, option dashes and quotes included."""
    return text.translate(_ESCAPES)


def lines(text: str) -> list[str]:
    """A paragraph as source lines; a line that begins with a dot or a quote is no request."""
    found = []
    for line in textwrap.wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False):
        escaped = escape(line)
        found.append(f"\\&{escaped}" if escaped.startswith((".", "\\(aq")) else escaped)
    return found


def section(title: str) -> str:
    return f".SH {escape(title.upper())}"


def paragraph(text: str) -> list[str]:
    return [".PP", *lines(text)]


def bold(text: str) -> str:
    return f"\\fB{escape(text)}\\fR"


def italic(text: str) -> str:
    return f"\\fI{escape(text)}\\fR"


def definition(term: str, text: str) -> list[str]:
    """A tagged paragraph; ``term`` is roff already."""
    return [".TP", term, *(lines(text) or ["\\&"])]


def verbatim(rows: Iterable[str]) -> list[str]:
    """Lines that are neither filled nor wrapped."""
    return [".nf", *(escape(row) or "\\&" for row in rows), ".fi"]
