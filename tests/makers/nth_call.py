"""Counting the system calls a piece of work makes, and ending or breaking it at the Nth of them.

The interpreter reports each call of a C function just before it is made; those of ``posix`` and ``fcntl``
are the ones that touch the disk. Only the calling thread is watched.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

_MODULES = frozenset({"posix", "fcntl"})

# An error of these would be about the test's own bookkeeping, or cannot happen.
_NEVER_FAIL = frozenset(
    {
        "close",
        "flock",
        "getpid",
        "geteuid",
        "kill",
        "_exit",
        "fspath",
        "fsencode",
        "fsdecode",
        "readlink",
        "major",
        "minor",
        "makedev",
        "strerror",
        "listdir",
        "scandir",
        "get_inheritable",
        "waitpid",
        "cpu_count",
        "urandom",
    }
)


class _Watch:
    """A profile function that does ``act`` before the Nth call of the given kind."""

    def __init__(self, n: int, act: Callable[[str], None], skipped: Iterable[str] = ()) -> None:
        self.count = 0
        self._n = n
        self._act = act
        self._skipped = frozenset(skipped)

    def __call__(self, _frame: FrameType, event: str, function: Any) -> None:
        if event != "c_call" or getattr(function, "__module__", None) not in _MODULES:
            return
        if function.__name__ in self._skipped:
            return
        self.count += 1
        if self.count == self._n:
            self._act(function.__name__)


def calls_of(work: Callable[[], object]) -> int:
    """How many calls ``work`` makes."""
    watch = _Watch(0, lambda _name: None)
    sys.setprofile(watch)
    try:
        work()
    finally:
        sys.setprofile(None)
    return watch.count


def killed_at(n: int, work: Callable[[], object]) -> bool:
    """Run ``work`` in a child that is killed just before its Nth call; False when it ended before that."""
    pid = os.fork()
    if pid == 0:
        try:
            sys.setprofile(_Watch(n, lambda _name: os.kill(os.getpid(), signal.SIGKILL)))
            work()
        except BaseException:
            os._exit(3)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) in (0, -signal.SIGKILL), f"failed by itself at call {n}"
    return os.WIFSIGNALED(status)


def failing_at(n: int, number: int, work: Callable[[], object]) -> str | None:
    """Run ``work`` with an OSError in place of its Nth call; the call's name, None if there were fewer."""
    met: list[str] = []

    def fail(name: str) -> None:
        met.append(name)
        raise OSError(number, os.strerror(number))

    sys.setprofile(_Watch(n, fail, _NEVER_FAIL))
    try:
        work()
    finally:
        sys.setprofile(None)
    return met[0] if met else None
