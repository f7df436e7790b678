"""The one handler: what a signal does with and without guarded trees, in its process and out of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hwctl.errors import IoFailed
from hwctl.stores.base import Removed
from hwctl.stores.ktint8 import guard
from hwctl.stores.ktint8.deferred import Deferred


class Tree:
    def __init__(self, fails: bool = False, breaks: bool = False) -> None:
        self.cleaned = 0
        self._fails = fails
        self._breaks = breaks

    def cleanup(self) -> Removed:
        self.cleaned += 1
        if self._fails:
            raise IoFailed("no")
        if self._breaks:
            raise MemoryError
        return Removed()


class Ended(BaseException):
    """What the program's own handler raises."""


@pytest.fixture
def handled() -> Iterator[list[int]]:
    """The program's own handlers, which raise, and the signals they saw."""
    seen: list[int] = []

    def handler(signum: int, _frame: object) -> None:
        seen.append(signum)
        raise Ended

    before = {signum: signal.signal(signum, handler) for signum in guard.SIGNALS}
    yield seen
    assert all(signal.getsignal(signum) is handler for signum in guard.SIGNALS)
    for signum, previous in before.items():
        signal.signal(signum, previous)


@pytest.mark.parametrize("signum", guard.SIGNALS)
def test_every_tree_is_cleaned_and_then_the_old_handler_runs(handled: list[int], signum: int) -> None:
    trees = [Tree(), Tree(fails=True), Tree()]
    with (
        pytest.raises(Ended),
        guard.guarded(trees[0]),
        guard.guarded(trees[1]),
        guard.guarded(trees[2]),
    ):
        os.kill(os.getpid(), signum)
    assert [tree.cleaned for tree in trees] == [1, 1, 1]
    assert handled == [signum]


def test_a_tree_that_breaks_keeps_neither_the_others_nor_the_signal(handled: list[int]) -> None:
    trees = [Tree(), Tree(breaks=True), Tree()]
    for count in (1, 2):
        with (
            pytest.raises(Ended) as ended,
            guard.guarded(trees[0]),
            guard.guarded(trees[1]),
            guard.guarded(trees[2]),
        ):
            os.kill(os.getpid(), signal.SIGTERM)
        assert isinstance(ended.value.__context__, MemoryError)
        assert [tree.cleaned for tree in trees] == [count] * 3
    assert handled == [signal.SIGTERM] * 2


def test_a_signal_that_meets_the_end_of_a_deletion_is_not_lost(handled: list[int]) -> None:
    tree = Tree()
    end = threading.Event()

    def work() -> None:
        while not end.is_set():
            with guard.deleting():
                pass

    threads = [threading.Thread(target=work) for _ in range(2)]
    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for _ in range(200):
            with pytest.raises(Ended), guard.guarded(tree):
                os.kill(os.getpid(), signal.SIGTERM)
                threading.Event().wait(5)
    finally:
        sys.setswitchinterval(switch)
        end.set()
        for thread in threads:
            thread.join()
    assert (tree.cleaned, len(handled)) == (200, 200)


def test_nothing_is_installed_without_a_tree(handled: list[int]) -> None:
    before = signal.getsignal(signal.SIGTERM)
    tree = Tree()
    with guard.guarded(tree):
        assert signal.getsignal(signal.SIGTERM) is not before
        with guard.guarded(Tree()):
            pass
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before
    assert tree.cleaned == 0


def test_while_deleting_a_signal_waits(handled: list[int]) -> None:
    tree = Tree()
    with pytest.raises(Ended), guard.guarded(tree):
        with guard.deleting():
            with guard.deleting():
                os.kill(os.getpid(), signal.SIGTERM)
                assert (tree.cleaned, handled) == (0, [])
            assert (tree.cleaned, handled) == (0, [])
        raise AssertionError("the signal was lost")
    assert (tree.cleaned, handled) == (1, [signal.SIGTERM])


def test_a_signal_while_a_thread_deletes(handled: list[int]) -> None:
    tree = Tree()
    begun, end = threading.Event(), threading.Event()

    def work() -> None:
        with guard.deleting():
            begun.set()
            end.wait(10)

    thread = threading.Thread(target=work)
    with pytest.raises(Ended), guard.guarded(tree):
        thread.start()
        begun.wait(10)
        os.kill(os.getpid(), signal.SIGHUP)
        assert tree.cleaned == 0
        end.set()
        thread.join()
        threading.Event().wait(5)
    assert (tree.cleaned, handled) == (1, [signal.SIGHUP])


def test_what_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    tree = Tree()
    try:
        with guard.guarded(tree):
            os.kill(os.getpid(), signal.SIGHUP)
        assert tree.cleaned == 0
    finally:
        signal.signal(signal.SIGHUP, before)


def test_off_the_main_thread_no_handler_is_installed(handled: list[int]) -> None:
    before = signal.getsignal(signal.SIGTERM)
    seen: list[object] = []

    def work() -> None:
        with guard.guarded(Tree()):
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]


def test_a_forked_child_dies_of_the_signal_and_cleans_nothing(tmp_path: Path) -> None:
    tree = Tree()
    mark = tmp_path / "cleaned"
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with guard.guarded(tree):
            child = os.fork()
            if child == 0:
                tree.cleanup = lambda: mark.touch() or Removed()  # type: ignore[method-assign, func-returns-value]
                os.kill(os.getpid(), signal.SIGTERM)
                os._exit(7)
            status = os.waitpid(child, 0)[1]
            assert os.WTERMSIG(status) == signal.SIGTERM
            assert signal.getsignal(signal.SIGTERM) not in (signal.SIG_DFL, signal.SIG_IGN)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert not mark.exists()


def test_a_forked_child_may_guard_its_own_tree() -> None:
    with guard.guarded(Tree()):
        child = os.fork()
        if child == 0:
            own = Tree()
            signal.signal(signal.SIGTERM, lambda *_: os._exit(40 + own.cleaned))
            with guard.guarded(own):
                os.kill(os.getpid(), signal.SIGTERM)
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 41


def test_deferred(handled: list[int]) -> None:
    done = []
    with pytest.raises(Ended), Deferred() as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        done.append(signals.noted)
    assert done == [signal.SIGTERM]
    assert handled == [signal.SIGTERM]


def test_a_second_signal_is_not_deferred(handled: list[int]) -> None:
    done = []
    with pytest.raises(Ended), Deferred():
        os.kill(os.getpid(), signal.SIGTERM)
        done.append(1)
        os.kill(os.getpid(), signal.SIGINT)
        done.append(2)
    assert done == [1]
    assert handled[0] == signal.SIGINT


def test_importing_the_library_installs_nothing() -> None:
    code = """
import signal
before = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
import hwctl.stores.ktint8.opening, hwctl.stores.ktint8.guard
assert before == [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
