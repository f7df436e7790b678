"""The cache's own eviction, and what it does with pages that stand in the way."""

from __future__ import annotations

import os
import time
from pathlib import Path

import make_pageweights
import pytest
from holders import locked

from hwctl.errors import Busy, Usage
from hwctl.fs.deadline import Deadline
from hwctl.stores.pageweights import eviction, roots
from hwctl.stores.pageweights.eviction import Eviction, evict_to_budget
from hwctl.stores.pageweights.place import Place
from hwctl.stores.pageweights.resident import Listing

PAGES = 5


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = make_pageweights.make_store(tmp_path / "cache")
    for number in range(PAGES):
        make_pageweights.make_artifact(made, number)
        make_pageweights.set_last_use(made, number, 10**18 + number)
    return made


def size(root: Path) -> int:
    return next(root.glob("*.safetensors")).stat().st_size


def evict(root: Path, budget: int, wait: Deadline | None = None) -> Eviction:
    with roots.writable(root) as opened:
        return evict_to_budget(opened, budget, wait or Deadline.now())


def left(root: Path) -> set[int]:
    numbers = {make_pageweights.prefix_of(number): number for number in range(PAGES)}
    return {numbers[path.name[:64]] for path in root.glob("*.locator.json") if path.name[:64] in numbers}


def test_the_oldest_go_and_not_one_more_than_needed(root: Path) -> None:
    one = size(root)
    blocks = sum(path.stat().st_blocks * 512 for path in root.glob(f"{make_pageweights.prefix_of(0)}*"))
    done = evict(root, PAGES * one - 1)
    assert done == Eviction(
        PAGES * one - 1,
        PAGES * one,
        (PAGES - 1) * one,
        (make_pageweights.prefix_of(0),),
        done.removed,
    )
    assert (done.removed.files, done.removed.bytes_freed) == (3, blocks)
    assert done.reached and left(root) == {1, 2, 3, 4}
    assert evict(root, PAGES * one).evicted == ()
    assert (root / f".{make_pageweights.prefix_of(0)}.lock").exists()


def test_equal_clocks_go_by_name(root: Path) -> None:
    for number in range(PAGES):
        make_pageweights.set_last_use(root, number, 10**18)
    done = evict(root, 2 * size(root))
    assert list(done.evicted) == sorted(make_pageweights.prefix_of(number) for number in range(PAGES))[:3]


def test_bad_locators_and_held_pages_are_reported_and_the_rest_goes(root: Path) -> None:
    one = size(root)
    prefixes = [make_pageweights.prefix_of(number) for number in range(PAGES)]
    (root / f"{prefixes[0]}.locator.json").write_bytes(b"{")
    make_pageweights.set_last_use(root, 0, 10**18)
    (root / f"{prefixes[1]}.locator.json").chmod(0o644)
    copied = root / f"{prefixes[2]}.locator.json"
    copied.write_bytes((root / f"{prefixes[4]}.locator.json").read_bytes())
    make_pageweights.set_last_use(root, 2, 10**18 + 2)
    with locked(root / f".{prefixes[3]}.lock") as pid:
        done = evict(root, 1)
    assert done.evicted == (prefixes[4],) and not done.reached and done.remaining == 4 * one
    passed = {one.prefix: one for one in done.passed}
    assert set(passed) == set(prefixes[:4])
    assert [passed[prefix].bad for prefix in prefixes[:4]] == [True, True, True, False]
    assert "malformed-record" in passed[prefixes[0]].reason
    assert "unprotected" in passed[prefixes[1]].reason
    assert "locator-authority" in passed[prefixes[2]].reason
    assert str(pid) in passed[prefixes[3]].reason
    assert left(root) == {0, 1, 2, 3}


def test_a_lock_that_is_a_link_is_not_followed(root: Path, tmp_path: Path) -> None:
    lock = root / f".{make_pageweights.prefix_of(0)}.lock"
    outside = tmp_path / "outside"
    outside.write_bytes(b"")
    lock.unlink()
    lock.symlink_to(outside)
    done = evict(root, (PAGES - 1) * size(root))
    assert done.evicted == (make_pageweights.prefix_of(1),)
    assert [one.bad for one in done.passed] == [True]


def test_a_page_used_since_the_pass_began_stays(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """EVI-05: chosen, then used, then not deleted."""
    listed = eviction.one_pass

    def then_used(place: Place) -> Listing:
        found = listed(place)
        make_pageweights.set_last_use(root, 0, time.time_ns())
        return found

    monkeypatch.setattr(eviction, "one_pass", then_used)
    done = evict(root, (PAGES - 1) * size(root))
    assert done.evicted == (make_pageweights.prefix_of(1),) and left(root) == {0, 2, 3, 4}
    assert "used" in done.passed[0].reason


@pytest.mark.parametrize("budget", [0, -1])
def test_a_budget_below_a_byte_is_none(budget: int, root: Path) -> None:
    with pytest.raises(Usage):
        evict(root, budget)
    assert left(root) == set(range(PAGES))


def test_one_process_evicts_at_a_time(root: Path) -> None:
    evict(root, PAGES * size(root))  # makes the lock file
    with locked(root / ".eviction.lock", "exclusive"):
        with pytest.raises(Busy):
            evict(root, 1)
        start = time.monotonic()
        with pytest.raises(Busy):
            evict(root, 1, Deadline.after(0.3))
        assert 0.2 < time.monotonic() - start < 5
    assert left(root) == set(range(PAGES))


def test_what_vanishes_meanwhile_is_no_error(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = eviction.one_pass

    def then_gone(place: Place) -> Listing:
        found = listed(place)
        for path in root.glob(f"{make_pageweights.prefix_of(0)}*"):
            path.unlink()
        next(root.glob(f"{make_pageweights.prefix_of(1)}*.safetensors")).unlink()
        return found

    monkeypatch.setattr(eviction, "one_pass", then_gone)
    done = evict(root, (PAGES - 1) * size(root))
    # Page 0 had gone and freed nothing here, page 1 had no artifact any more, page 2 had.
    assert done.evicted == tuple(make_pageweights.prefix_of(number) for number in (1, 2))
    assert left(root) == {3, 4}


def test_old_clocks_and_clocks_of_the_future(root: Path) -> None:
    for number, clock in enumerate((5, -(10**18), 0, 4 * 10**18, 10**18)):
        os.utime(root / f"{make_pageweights.prefix_of(number)}.locator.json", ns=(clock, clock))
    done = evict(root, size(root))
    assert done.evicted == tuple(make_pageweights.prefix_of(number) for number in (1, 2, 0, 4))
