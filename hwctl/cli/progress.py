"""Progress on stderr: bytes, rate and time left, painted over itself.

Only on a terminal, and not under -q or --json. Workers report from many threads; painting happens at most
ten times a second, in whichever thread reports. No thread of its own and no hidden cursor, so that an
abrupt end leaves the terminal as it was.
"""

from __future__ import annotations

import threading
import time
from types import TracebackType

from hwctl.cli import environment, text
from hwctl.cli.escape import escape
from hwctl.cli.output import Stream

_EVERY_SECONDS = 0.1
_SETTLED_SECONDS = 1.0
_ERASE = b"\r\x1b[K"


class Progress:
    """What was done of ``total`` bytes (None: nobody knows). ``advance`` is an Advance, from any thread."""

    def __init__(self, stream: Stream | None, label: str, total: int | None) -> None:
        self._stream = stream
        self._label = escape(label)
        self._total = total
        self._done = 0
        self._lock = threading.Lock()
        self._start = time.monotonic()
        self._painted = self._start
        self._visible = False

    def advance(self, count: int) -> None:
        with self._lock:
            self._done += count
            now = time.monotonic()
            if self._stream is not None and now - self._painted >= _EVERY_SECONDS:
                self._painted = now
                self._paint(now - self._start)

    def expect(self, total: int | None) -> None:
        """Set the whole once it is known."""
        with self._lock:
            self._total = total

    def _paint(self, elapsed: float) -> None:
        assert self._stream is not None
        line = self._line(elapsed)[: max(10, environment.columns() - 1)]
        self._stream.raw(_ERASE + line.encode("utf-8"))
        self._visible = True

    def _line(self, elapsed: float) -> str:
        done, total = self._done, self._total
        speed = text.rate(done, elapsed)
        if not total:
            return f"{self._label} {text.size(done)}  {speed}"
        words = f"{self._label} {text.bar(done, total)} {text.size(done)} of {text.size(total)}  {speed}"
        if elapsed < _SETTLED_SECONDS or not done or done >= total:
            return words
        return f"{words}  {text.span((total - done) * elapsed / done)} left"

    def erase(self) -> None:
        """Take the line away, so that words can be said in its place."""
        with self._lock:
            if self._stream is not None and self._visible:
                self._stream.raw(_ERASE)
                self._visible = False

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _exc: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.erase()
        self._stream = None
