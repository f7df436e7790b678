"""Counting the system calls a piece of work makes, and ending or breaking it at the Nth of them.

The interpreter reports each call of a C function just before it is made; those of ``posix`` and ``fcntl``
are the ones that touch the disk, and the function that calls renameat2, which ctypes hides from the
interpreter. Only the calling thread is watched.

A kill between two changes finds the disk as the first left it, so a kill is tried before each call of
``_CHANGES``. Errors are tried at any call.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

_MODULES = frozenset({"posix", "fcntl"})

# What alters the disk, or can: "open" makes files.
_CHANGES = frozenset(
    {
        "open",
        "write",
        "pwrite",
        "pwritev",
        "ftruncate",
        "posix_fallocate",
        "copy_file_range",
        "fsync",
        "mkdir",
        "rmdir",
        "rename",
        "renameat2",
        "replace",
        "link",
        "symlink",
        "unlink",
        "remove",
        "chmod",
        "fchmod",
        "chown",
        "fchown",
        "utime",
    }
)

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

    def __init__(
        self,
        n: int,
        act: Callable[[str], None],
        skipped: Iterable[str] = (),
        only: frozenset[str] | None = None,
    ) -> None:
        self.count = 0
        self._n = n
        self._act = act
        self._skipped = frozenset(skipped)
        self._only = only

    def __call__(self, frame: FrameType, event: str, function: Any) -> None:
        name = _name(frame, event, function)
        if name is None or name in self._skipped or (self._only is not None and name not in self._only):
            return
        self.count += 1
        if self.count == self._n:
            self._act(name)


def _name(frame: FrameType, event: str, function: Any) -> str | None:
    """The system call that is about to be made, if it is one that counts."""
    if event == "c_call" and getattr(function, "__module__", None) in _MODULES:
        return str(function.__name__)
    if event == "call" and frame.f_code.co_name == "renameat2":
        return "renameat2"
    return None


def calls_of(work: Callable[[], object]) -> int:
    """How many calls ``work`` makes."""
    return _counted(work, None)


def moments_of(work: Callable[[], object]) -> range:
    """The moments of ``work`` to be killed at."""
    return range(1, _counted(work, _CHANGES) + 1)


def _counted(work: Callable[[], object], only: frozenset[str] | None) -> int:
    watch = _Watch(0, lambda _name: None, only=only)
    sys.setprofile(watch)
    try:
        work()
    finally:
        sys.setprofile(None)
    return watch.count


def killed_at(n: int, work: Callable[[], object]) -> bool:
    """Run ``work`` in a child that is killed at its Nth moment; False when it ended before that."""
    pid = os.fork()
    if pid == 0:
        try:
            sys.setprofile(_Watch(n, lambda _name: os.kill(os.getpid(), signal.SIGKILL), only=_CHANGES))
            work()
        except BaseException:
            os._exit(3)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) in (0, -signal.SIGKILL), f"failed by itself at moment {n}"
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
