"""Holding a stream of reads to a rate, and ending it in time.

Owns waiting. It is asked between two reads of a few megabytes and sleeps in short turns, so that a rate, a
deadline and a stop are honoured within a tenth of a second.
"""

from __future__ import annotations

import threading
import time

from hwctl.errors import HwctlError, IoFailed
from hwctl.fs.deadline import Deadline

_LONGEST_SLEEP = 0.05

# A reader that was slow may catch up this much and no more.
_BURST_SECONDS = 0.1


class TimedOut(IoFailed):
    """The deadline passed before everything was read: nothing is known about the rest."""


class Stopped(HwctlError):
    """The caller's stop event was set; only whoever set it sees this."""


class Pacer:
    """Bytes per second, shared by all threads that are given the same object. A rate of None is no limit."""

    def __init__(self, rate: int | None) -> None:
        if rate is not None and rate <= 0:
            raise ValueError("a rate must be positive")
        self._rate = rate
        self._lock = threading.Lock()
        self._paid_until = time.monotonic()

    def delay(self, count: int) -> float:
        """Account for ``count`` bytes; the seconds to wait for them."""
        if self._rate is None:
            return 0.0
        with self._lock:
            now = time.monotonic()
            self._paid_until = max(self._paid_until, now - _BURST_SECONDS) + count / self._rate
            return max(0.0, self._paid_until - now)


class Watch:
    """Pace, deadline and stop in one; ``passed`` is called after every read."""

    def __init__(self, pacer: Pacer | None, deadline: Deadline, stops: tuple[threading.Event, ...]) -> None:
        self._pacer = pacer
        self._deadline = deadline
        self._stops = stops

    def check(self) -> None:
        """Raise Stopped or TimedOut if it is time to end."""
        if any(stop.is_set() for stop in self._stops):
            raise Stopped("stopped")
        if self._deadline.expired():
            raise TimedOut("the time limit was reached before everything was read", retryable=True)

    def passed(self, count: int) -> None:
        """Wait as the pace demands, and raise as ``check`` does."""
        self.check()
        if self._pacer is None:
            return
        until = time.monotonic() + self._pacer.delay(count)
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(left, _LONGEST_SLEEP))
            self.check()
