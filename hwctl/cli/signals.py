"""Ending by a signal: unwind once, then die of that very signal; a second one ends at once.

Library code sees nothing but a BaseException raised in the main thread, and removes its own staging in
``finally``. Who dies of the signal (and not with a made-up status) lets shells, Slurm and systemd see
what happened.
"""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import NoReturn

_HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """INT, TERM or HUP arrived. Not an Exception, so that no handler takes it for a failure of the work."""

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.signum = signum


class _Handler:
    """Raises on the first signal; dies on the second."""

    def __init__(self) -> None:
        self._seen = False

    def __call__(self, signum: int, _frame: FrameType | None) -> None:
        if self._seen:
            die_of(signum)
        self._seen = True
        raise Interrupted(signum)


def install() -> None:
    """Take over INT, TERM and HUP; one that was ignored at the start (nohup) stays ignored."""
    handler = _Handler()
    for signum in _HANDLED:
        if signal.getsignal(signum) is not signal.SIG_IGN:
            signal.signal(signum, handler)


def die_of(signum: int) -> NoReturn:
    """End this process by ``signum``; the plain exit status stands in where the kernel does not deliver it
    (pid 1 of a container has no default action)."""
    signal.signal(signum, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signum])
    os.kill(os.getpid(), signum)
    os._exit(128 + signum)
