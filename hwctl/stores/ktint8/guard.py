"""What INT, TERM and HUP do to trees that are guarded: one handler for all of them, and only on request.

Owns the process-wide registry of guarded trees. A handler is installed when the first tree is guarded, in
the main thread only, and the previous ones come back with the last. A signal deletes what is left of every
guarded tree, and then is raised again under the previous handlers, so that the process ends as it would
have. While something is being deleted it is only noted. In a forked child nothing of this acts: the trees
are its parent's. Work that ends by itself at the next good place has ``deferred`` instead.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from types import FrameType
from typing import Protocol, TypeAlias

from hwctl.errors import HwctlError
from hwctl.stores.base import Removed

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Handler: TypeAlias = Callable[[int, FrameType | None], object] | int | signal.Handlers | None


class Cleanable(Protocol):
    """What can be guarded: a tree that was opened for consumption."""

    def cleanup(self) -> Removed: ...


def _clean(tree: Cleanable) -> None:
    with suppress(HwctlError):
        tree.cleanup()


class _Registry:
    """The guarded trees of this process, the handlers they displaced, and signals that have to wait."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._trees: list[Cleanable] = []
        self._previous: dict[int, Handler] = {}
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
        if os.getpid() != self._pid:
            self._pass_on(signum)
            return
        with self._lock:  # or a thread that ends its deletion right now would not see the note
            if self._deleting:
                self._noted.append(signum)
                return
            self._deleting += 1  # a second signal waits until all trees are gone
        try:
            self._clean_up()
        finally:
            with self._lock:
                self._deleting -= 1
            self._pass_on(signum)

    def _clean_up(self) -> None:
        """All trees, whatever becomes of one: what is left of it, reclaim finds."""
        with ExitStack() as trees:
            for tree in reversed(tuple(self._trees)):
                trees.callback(_clean, tree)

    def _pass_on(self, signum: int) -> None:
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
            if noted is not None and (main := threading.main_thread().ident) is not None:
                # Raised in this thread, it would not wake a main thread that waits for a lock.
                signal.pthread_kill(main, noted)


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
