"""What judging many orphans costs, and what becomes of a verdict when its files change."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import make_pageweights
import pytest

from hwctl.fs.deadline import Deadline
from hwctl.fs.locks import Held
from hwctl.stores.base import Artifact, Death, Staleness, StalePolicy
from hwctl.stores.pageweights import eviction, roots, staleness
from hwctl.stores.pageweights.eviction import Eviction, evict_to_budget
from hwctl.stores.pageweights.grouping import names_in_root
from hwctl.stores.pageweights.place import Place
from hwctl.stores.pageweights.roots import Root
from hwctl.stores.pageweights.store import open_store

ORPHANS = 30


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Orphans that no lock speaks for, old enough to be proven garbage, beside an empty quarantine."""
    monkeypatch.setattr(staleness, "GRACE_NS", 0)
    made = make_pageweights.make_store(tmp_path / "cache")
    (made / "quarantine").mkdir(mode=0o700)
    for number in range(ORPHANS):
        make_pageweights.make_artifact(made, number, locator=False)
    time.sleep(0.05)  # until the stamps of the folders lie behind
    return made


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a run does, in order: a listing of a folder, a judgement, the eviction lock."""
    seen: list[str] = []
    listdir, judge, lock = os.listdir, staleness.judge, eviction.lock_eviction

    def listing(path: object = ".") -> list[str]:
        if isinstance(path, int):
            seen.append("list")
        return listdir(path)  # type: ignore[call-overload,no-any-return]

    def judging(root: Root, artifact: Artifact, policy: StalePolicy, *more: object) -> Staleness:
        seen.append("judge")
        return judge(root, artifact, policy, *more)  # type: ignore[arg-type]

    def locking(place: Place, deadline: Deadline) -> Held:
        seen.append("lock")
        return lock(place, deadline)

    monkeypatch.setattr(os, "listdir", listing)
    monkeypatch.setattr(staleness, "judge", judging)
    monkeypatch.setattr(eviction, "lock_eviction", locking)
    return seen


def evict(root: Path, budget: int = 1) -> Eviction:
    with roots.writable(root) as opened:
        return evict_to_budget(opened, budget, Deadline.now())


def test_many_orphans_are_judged_by_one_listing(root: Path, events: list[str]) -> None:
    store = open_store(root)
    orphans = list(store.scan())
    events.clear()
    assert {store.stale(orphan, StalePolicy()).death for orphan in orphans} == {Death.PROVEN}
    assert events.count("judge") == ORPHANS and events.count("list") == 2  # the root and the quarantine


def test_nothing_is_judged_while_the_cache_s_own_program_waits(root: Path, events: list[str]) -> None:
    done = evict(root)
    assert len(done.reclaimed) == ORPHANS and done.remaining == 0
    assert events.count("judge") == ORPHANS and events[-1] == "lock"
    assert events.count("list") == 1  # the quarantine


def test_no_more_is_judged_than_the_budget_asks_for(root: Path, events: list[str]) -> None:
    one = next(root.glob("*.safetensors")).stat().st_size
    assert len(evict(root, (ORPHANS - 2) * one).reclaimed) == 2
    assert events.count("judge") == 2
    events.clear()
    assert evict(root, ORPHANS * one).reclaimed == ()
    assert "judge" not in events


def rewrite(root: Path) -> None:
    artifact = next(root.glob(f"{make_pageweights.prefix_of(0)}*.safetensors"))
    artifact.chmod(0o600)


def begin(root: Path) -> None:
    (root / f".{make_pageweights.prefix_of(0)}.1.2.3.tmp").write_bytes(b"half a page")


def publish(root: Path) -> None:
    make_pageweights.make_artifact(root, 0)
    (root / f".{make_pageweights.prefix_of(0)}.lock").unlink()


@pytest.mark.parametrize("change", [rewrite, begin, publish])
def test_what_changes_before_the_lock_is_taken_is_judged_anew(
    change: Callable[[Path], None], root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = eviction.lock_eviction
    locks = ["to act", "to look"]

    def after_a_change(place: Place, deadline: Deadline) -> Held:
        if locks.pop() == "to look":
            return lock(place, deadline)
        change(root)
        monkeypatch.setattr(staleness, "GRACE_NS", 3600 * 10**9)
        return lock(place, deadline)

    monkeypatch.setattr(eviction, "lock_eviction", after_a_change)
    prefix = make_pageweights.prefix_of(0)
    with roots.writable(root) as opened:
        done = evict_to_budget(opened, 1, Deadline.now(), spare=prefix)
    assert len(done.reclaimed) == ORPHANS - 1 and done.evicted == ()
    assert not any(name.startswith(prefix) for name in done.reclaimed)
    assert list(root.glob(f"{prefix}*.safetensors"))


def test_a_listing_serves_until_its_folder_changes(root: Path, events: list[str]) -> None:
    prefix, names = make_pageweights.prefix_of(0), names_in_root()
    with roots.opened(root) as opened:
        (first,) = names.of(opened.fd, prefix)
        assert list(names.of(opened.fd, prefix)) == [first] and events == ["list"]
        make_pageweights.put_lock(root, 0)
        assert set(names.of(opened.fd, prefix)) == {first, f".{prefix}.lock"}
        (root / first).unlink()  # within the same tick of the kernel's clock, as likely as not
        assert list(names.of(opened.fd, prefix)) == [f".{prefix}.lock"]
