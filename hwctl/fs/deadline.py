"""When waiting ends, as a value that is handed down. Owns the clock and nothing else."""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Deadline:
    """A point in monotonic time after which waiting ends; ``at`` is None for no end."""

    at: float | None

    @classmethod
    def never(cls) -> Deadline:
        return cls(None)

    @classmethod
    def now(cls) -> Deadline:
        """Already over: whatever polls tries once."""
        return cls(time.monotonic())

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        return cls(time.monotonic() + seconds)

    def earlier(self, other: Deadline) -> Deadline:
        """Whichever of the two ends first."""
        if self.at is None or other.at is None:
            return other if self.at is None else self
        return self if self.at <= other.at else other

    def at_least(self, seconds: float) -> Deadline:
        """This one, or one so many seconds from now where it ends before that."""
        remaining = self.remaining()
        return self if remaining is None or remaining > seconds else Deadline.after(seconds)

    def remaining(self) -> float | None:
        """Seconds left, never negative; None without an end."""
        return None if self.at is None else max(0.0, self.at - time.monotonic())

    def expired(self) -> bool:
        return self.at is not None and time.monotonic() >= self.at

    def pause(self, seconds: float = 0.2) -> None:
        """Sleep between two looks, but not past the end."""
        remaining = self.remaining()
        time.sleep(seconds if remaining is None else min(seconds, remaining))
