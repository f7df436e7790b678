"""SIGKILL before every change that removing a page makes: no locator ever names what has gone."""

from __future__ import annotations

from pathlib import Path

import make_pageweights
from nth_call import killed_at, moments_of
from run_hwctl import hwctl_

from hwctl.fs.deadline import Deadline
from hwctl.fs.lock_table import Mode
from hwctl.stores.base import State
from hwctl.stores.pageweights.eviction import evict_to_budget
from hwctl.stores.pageweights.roots import writable
from hwctl.stores.pageweights.store import open_store


def filled(root: Path) -> Path:
    make_pageweights.make_store(root)
    make_pageweights.put_lock(root, 0)
    make_pageweights.make_artifact(root, 0)
    return root


def remove(root: Path) -> None:
    store = open_store(root)
    (page,) = store.scan()
    with store.lease(page, Mode.EXCLUSIVE, Deadline.now()):
        store.remove(page)


def evict(root: Path) -> None:
    with writable(root) as opened:
        evict_to_budget(opened, 1, Deadline.now())


def test_the_locator_goes_first(tmp_path: Path) -> None:
    for work in (remove, evict):
        states = set()
        for number in moments_of(lambda work=work: work(filled(tmp_path / work.__name__))):
            root = filled(tmp_path / f"{work.__name__}-{number}")
            if killed_at(number, lambda work=work, root=root: work(root)):
                states |= {entry.state for entry in open_store(root).scan()}
        # Half a page without a locator, which is a miss to readers and garbage to reclaim-stale.
        assert states == {State.READY, State.ORPHAN}
    assert hwctl_("reclaim-stale", *sorted(tmp_path.iterdir()), "-y").status == 0
    assert not {entry.state for root in tmp_path.iterdir() for entry in open_store(root).scan()} - {
        State.READY
    }
