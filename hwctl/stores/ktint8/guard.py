"""What INT, TERM and HUP do while trees are being consumed: one handler for all of them, and only on request.

Owns the process-wide registry of guarded trees. A handler is installed when the first tree is guarded, in
the main thread only, and the previous ones come back with the last. A signal deletes what is left of every
guarded tree, and then is raised again under the previous handlers, so that the process ends as it would
have. While something is being deleted it is only noted. In a forked child nothing of this acts: the trees
are its parent's.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import Protocol, TypeAlias

from hwctl.errors import HwctlError
from hwctl.stores.base import Removed

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_Handler: TypeAlias = Callable[[int, FrameType | None], object] | int | signal.Handlers | None


class Cleanable(Protocol):
    """What can be guarded: a tree that was opened for consumption."""

    def cleanup(self) -> Removed: ...


class _Registry:
    """The guarded trees of this process, the handlers they displaced, and signals that have to wait."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._trees: list[Cleanable] = []
        self._previous: dict[int, _Handler] = {}
        self._pid = 0
        self._deleting = 0
        self._noted: list[int] = []

    def add(self, tree: Cleanable) -> None:
        with self._lock:
            if self._pid != os.getpid():
                self._forget()
            self._trees.append(tree)
            if not self._previous and threading.current_thread() is threading.main_thread():
                for signum in SIGNALS:
                    # What nohup ignores stays ignored, and a handler that is not Python's cannot come back.
                    if signal.getsignal(signum) not in (signal.SIG_IGN, None):
                        self._previous[signum] = signal.signal(signum, self._handle)

    def drop(self, tree: Cleanable) -> None:
        with self._lock:
            if self._pid != os.getpid():
                return
            self._trees.remove(tree)
            if not self._trees:
                self._restore()

    def _forget(self) -> None:
        """Begin anew in this process; what a fork copied is the parent's."""
        self._trees, self._noted = [], []
        self._deleting = 0
        self._pid = os.getpid()
        if threading.current_thread() is threading.main_thread():
            self._restore()

    def _restore(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # only the main thread may; a handler without trees does no more than pass signals on
        while self._previous:
            signum, handler = self._previous.popitem()
            if signal.getsignal(signum) == self._handle:  # whoever came after us keeps his own
                signal.signal(signum, handler)

    def _handle(self, signum: int, _frame: FrameType | None) -> None:
        if os.getpid() == self._pid:
            if self._deleting:
                self._noted.append(signum)
                return
            self._deleting += 1  # a second signal waits until all trees are gone
            for tree in tuple(self._trees):
                try:
                    tree.cleanup()
                except HwctlError:
                    continue  # the others are cleaned up all the same; what is left, reclaim finds
            self._deleting -= 1
        self._restore()
        signal.raise_signal(signum)

    @contextmanager
    def deleting(self) -> Iterator[None]:
        with self._lock:
            self._deleting += 1
        try:
            yield
        finally:
            with self._lock:
                self._deleting -= 1
                noted = self._noted.pop(0) if self._noted and not self._deleting else None
            if noted is not None:
                signal.raise_signal(noted)


_registry = _Registry()


def deleting() -> AbstractContextManager[None]:
    """Held around a deletion: a signal that comes meanwhile acts afterwards."""
    return _registry.deleting()


@contextmanager
def guarded(tree: Cleanable) -> Iterator[None]:
    """For the length of the block, a signal cleans ``tree`` up before it does what it would have done."""
    _registry.add(tree)
    try:
        yield
    finally:
        _registry.drop(tree)


class Deferred:
    """A block in which a signal is only noted, for work that stops at the next good place by itself.

    ``noted`` is the first signal that came. It is raised again when the block ends, under the handlers that
    were there before; a second one does not wait. Off the main thread nothing is installed.
    """

    def __init__(self) -> None:
        self.noted: int | None = None
        self._previous: dict[int, _Handler] = {}

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
