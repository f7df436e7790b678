"""The sink: bytes to stdout, words to stderr, and what becomes of the run when nobody reads them.

stdout carries the answer, stderr everything said about the work. Every piece of text is escaped here,
whatever it holds, so no verb can forget it; colours are added after that. Writing goes straight to the
descriptors: a pipe whose reader left (EPIPE) makes the sink silent and lets the work go on (CLI-04).
"""

from __future__ import annotations

import errno
import os
import select
import time
from dataclasses import dataclass
from enum import StrEnum

from hwctl.cli import environment
from hwctl.cli.escape import escape
from hwctl.cli.paragraphs import NO_BREAK, fold

_FLUSH_BYTES = 1 << 16
_FLUSH_SECONDS = 0.1


class Colors(StrEnum):
    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


class Style(StrEnum):
    """Colours by meaning. They repeat what the word beside them already says."""

    GOOD = "32"
    BAD = "31"
    ODD = "33"
    FAINT = "2"
    STRONG = "1"


@dataclass(frozen=True, slots=True)
class Styled:
    """A piece of a line that is coloured where colours are on."""

    text: str
    style: Style


class Whole(str):
    """A piece that is not broken on a terminal though it has blanks, such as a path."""


Piece = str | Styled


class Stream:
    """One descriptor, buffered. ``broken`` holds the errno that silenced it."""

    def __init__(self, fd: int, *, colour: bool) -> None:
        self.fd = fd
        self.terminal = _is_terminal(fd)
        self.colour = colour
        self.broken: int | None = None
        self._buffer = bytearray()
        self._flushed = 0.0

    def line(self, *pieces: Piece) -> None:
        """Write one line: every piece escaped, then coloured; a long one is broken at words on a terminal."""
        line = "".join(map(self._painted, pieces))
        for part in fold(line) if self.terminal else (line,):
            self.raw(part.replace(NO_BREAK, " ").encode("utf-8") + b"\n")

    def record(self, *fields: Piece) -> None:
        """Write one record: fields separated by tabs, never cut."""
        record = "\t".join(map(self._painted, fields)).replace(NO_BREAK, " ")
        self.raw(record.encode("utf-8") + b"\n")

    def raw(self, data: bytes) -> None:
        """Write bytes that were made safe already: a document, a table, a help page."""
        if self.broken is not None:
            return
        self._buffer += data
        full = len(self._buffer) >= _FLUSH_BYTES
        if self.terminal or full or time.monotonic() - self._flushed >= _FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Hand over what is buffered; a failing descriptor is remembered and never written to again."""
        while self._buffer and self.broken is None:
            try:
                written = os.write(self.fd, self._buffer)
            except BlockingIOError:
                # Somebody who shares this pipe set it non-blocking.
                select.select([], [self.fd], [])
            except OSError as exc:
                self.broken = exc.errno or errno.EIO
            else:
                del self._buffer[:written]
        self._buffer.clear()
        self._flushed = time.monotonic()

    def _painted(self, piece: Piece) -> str:
        if isinstance(piece, Whole):
            return escape(piece).replace(" ", NO_BREAK)
        if isinstance(piece, str):
            return escape(piece)
        text = escape(piece.text)
        return f"\x1b[{piece.style}m{text}\x1b[0m" if self.colour and text else text


class Output:
    """Both streams of one run, and how loud it is."""

    def __init__(
        self,
        *,
        json: bool = False,
        quiet: bool = False,
        verbose: int = 0,
        color: Colors = Colors.AUTO,
    ) -> None:
        self.json = json
        self.quiet = quiet
        self.verbose = verbose
        self.out = Stream(1, colour=_colour(color, 1) and not json)
        self.err = Stream(2, colour=_colour(color, 2) and not json)

    @property
    def painting(self) -> bool:
        """Whether progress may be shown: stderr is a terminal, and nobody asked for silence."""
        return self.err.terminal and not (self.quiet or self.json or environment.dumb())

    def flush(self) -> None:
        self.out.flush()
        self.err.flush()


def _is_terminal(fd: int) -> bool:
    try:
        return os.isatty(fd)
    except OSError:
        return False


def _colour(color: Colors, fd: int) -> bool:
    if color is Colors.AUTO:
        return _is_terminal(fd) and not environment.colourless()
    return color is Colors.ALWAYS
