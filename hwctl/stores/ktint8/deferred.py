"""Signals that wait for the next good place, for work that ends there by itself.

Owns one block's noting of a signal. Trees that a signal has to delete at once are ``guard``'s.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType

from hwctl.stores.ktint8.guard import SIGNALS, Handler


class Deferred:
    """A block in which a signal is only noted.

    ``noted`` is the first signal that came. It is raised again when the block ends, under the handlers that
    were there before; a second one does not wait. Off the main thread nothing is installed.
    """

    def __init__(self) -> None:
        self.noted: int | None = None
        self._previous: dict[int, Handler] = {}

    def __enter__(self) -> Deferred:
        if threading.current_thread() is threading.main_thread():
            for signum in SIGNALS:
                if signal.getsignal(signum) not in (signal.SIG_IGN, None):
                    self._previous[signum] = signal.signal(signum, self._note)
        return self

    def _note(self, signum: int, _frame: FrameType | None) -> None:
        if self.noted is None:
            self.noted = signum
            return
        self._restore()
        signal.raise_signal(signum)

    def _restore(self) -> None:
        while self._previous:
            signum, handler = self._previous.popitem()
            signal.signal(signum, handler)

    def __exit__(self, *_exc: object) -> None:
        self._restore()
        if self.noted is not None:
            signal.raise_signal(self.noted)
