"""Progress on stderr: what is being done, bytes, rate and time left, painted over itself.

Only on a terminal, and not under -q or --json. Workers report from many threads; painting happens at most
ten times a second, in whichever thread reports. No thread of its own and no hidden cursor, so that an
abrupt end leaves the terminal as it was.
"""

from __future__ import annotations

import math
import threading
import time
from types import TracebackType

from hwctl.cli import environment, text
from hwctl.cli.escape import escape
from hwctl.cli.output import Stream

_EVERY_SECONDS = 0.1
_SETTLED_SECONDS = 1.0
_MEMORY_SECONDS = 3.0
"""How long a rate is remembered: a cache that ran out a while ago says nothing about the time left."""

_BAR = 20
_SHORTEST_BAR = 8
_ERASE = b"\r\x1b[K"


class Pace:
    """The rate of late, in bytes a second: each stretch counts less the longer ago it was."""

    def __init__(self, now: float) -> None:
        self.start = self._then = now
        self._bytes = 0.0
        self._seconds = 0.0

    def add(self, count: int, now: float) -> None:
        passed, self._then = now - self._then, now
        faded = math.exp(-passed / _MEMORY_SECONDS)
        self._bytes = self._bytes * faded + count
        self._seconds = self._seconds * faded + passed

    @property
    def rate(self) -> float:
        return self._bytes / self._seconds if self._seconds > 0 else 0.0


class Progress:
    """What was done of ``total`` bytes (None: nobody knows). ``advance`` is an Advance, from any thread."""

    def __init__(self, stream: Stream | None, label: str, total: int | None) -> None:
        self._stream = stream
        self._label = escape(label)
        self._total = total
        self._passes: tuple[str, ...] = ()
        self._done = 0
        self._unpaced = 0
        self._lock = threading.Lock()
        self._at = 0
        self._painted = time.monotonic()
        self._pace = Pace(self._painted)
        self._visible = False

    def advance(self, count: int) -> None:
        with self._lock:
            self._done += count
            self._unpaced += count
            now = time.monotonic()
            if self._stream is not None and (now - self._painted >= _EVERY_SECONDS or self._ended(count)):
                self._measure(now)
                self._painted, self._unpaced = now, 0
                self._paint(now - self._pace.start)

    def _measure(self, now: float) -> None:
        """Each pass has a pace of its own: hashing is no measure for writing."""
        at = self._pass()
        if at == self._at:
            self._pace.add(self._unpaced, now)
        else:
            self._at, self._pace = at, Pace(now)

    def expect(self, total: int | None, *passes: str) -> None:
        """Set the whole once it is known, before anything of it is done.

        With names of ``passes`` the same ``total`` is gone through once for each of them.
        """
        with self._lock:
            self._total, self._passes, self._done, self._at = total, passes, 0, 0

    def _ended(self, count: int) -> bool:
        """Whether these were the last bytes: what comes now may take long, and tells nothing (a sync)."""
        if not self._visible or self._total is None:
            return False
        whole = self._total * max(1, len(self._passes))
        return self._done - count < whole <= self._done

    def _pass(self) -> int:
        return min(self._done // self._total, max(0, len(self._passes) - 1)) if self._total else 0

    def _paint(self, elapsed: float) -> None:
        assert self._stream is not None
        room = max(10, environment.columns() - 1)
        self._stream.raw(_ERASE + self._line(elapsed, room)[:room].encode("utf-8"))
        self._visible = True

    def _line(self, elapsed: float, room: int) -> str:
        """What fits: the bar gets shorter and goes first, then the rate, and the time left last."""
        rate, total = self._pace.rate, self._total
        speed = f"  {text.size(int(rate))}/s" if rate else ""
        if not total:
            return f"{self._label} {text.size(self._done)}{speed}"
        label, done = self._titled(), min(self._done - self._at * total, total)
        share = f"{text.size(done)} of {text.size(total)}"
        left = self._left(total - done, rate, elapsed)
        words = f"{share}{speed}{left}"
        bar = min(_BAR, room - len(f"{label} [] {words}"))
        if bar >= _SHORTEST_BAR:
            return f"{label} {text.bar(done, total, bar)} {words}"
        shorter = (f"{label} {words}", f"{label} {share}{left}", f"{label} {share}")
        return next((line for line in shorter if len(line) <= room), shorter[-1])

    def _titled(self) -> str:
        """What is being done, and which pass it is of how many."""
        if not self._passes:
            return self._label
        count = f" {self._at + 1}/{len(self._passes)}" if len(self._passes) > 1 else ""
        return f"{self._label}{count} {self._passes[self._at]}"

    def _left(self, rest: int, rate: float, elapsed: float) -> str:
        """The time that this pass still takes; never nothing while there is something left."""
        if rest == 0:
            return "  finishing"
        if elapsed < _SETTLED_SECONDS or rate <= 0:
            return ""
        return f"  {text.span(math.ceil(rest / rate))} left"

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
