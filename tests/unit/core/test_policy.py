"""What an eviction takes, in which order, and when it is enough. Pure facts, no store."""

from __future__ import annotations

from pathlib import Path

import pytest

from hwctl.core.policy import Filters, Ledger, Limits, Measure, clock, due, matches, oldest_first
from hwctl.stores.base import Artifact, Family, State

NOW = 1_700_000_000 * 10**9
HOUR = 3600 * 10**9


def entry(key: str, used: int | None = None, **more: object) -> Artifact:
    facts: dict[str, object] = {"state": State.READY, "bytes": 10, "allocated": 4096, "last_used": used}
    return Artifact(Family.PAGEWEIGHTS, Path("/s"), key, Path("/s") / key, **(facts | more))  # type: ignore[arg-type]


def ledger(limits: Limits, **more: object) -> Ledger:
    facts: dict[str, object] = {
        "size": 30,
        "free": 100,
        "count": 3,
        "room": 1000,
        "room_bound": "file system",
    }
    return Ledger(limits, **(facts | more))  # type: ignore[arg-type]


def test_the_order_is_by_last_use_then_by_key() -> None:
    entries = [entry("c", 5), entry("b", 9), entry("a", 9), entry("d", 1)]
    assert [artifact.key for artifact in oldest_first(entries)] == ["d", "c", "a", "b"]


def test_clocks_that_cannot_be_true_are_clamped() -> None:
    """A last use in the future is now, one before 1970 is 1970; without one the making counts."""
    assert clock(entry("a", NOW + HOUR), NOW) == NOW
    assert clock(entry("a", -HOUR), NOW) == 0
    assert clock(entry("a", None, created=7), NOW) == 7
    assert clock(entry("a", None), NOW) == 0


def test_clocks_that_cannot_be_true_still_have_an_order() -> None:
    entries = [entry("a", NOW + 3 * HOUR), entry("b", NOW + 2 * HOUR), entry("c", -HOUR), entry("d", -5)]
    assert [artifact.key for artifact in oldest_first(entries)] == ["c", "d", "b", "a"]


def test_older_than_counts_from_the_last_use() -> None:
    limits = Limits(older_than=HOUR)
    assert due(entry("a", NOW - HOUR - 1), limits, NOW)
    assert not due(entry("a", NOW - HOUR), limits, NOW)
    assert not due(entry("a", NOW + HOUR), limits, NOW)
    assert due(entry("a", NOW), Limits(everything=True), NOW)


def test_min_age_protects_the_young_but_not_those_from_the_future() -> None:
    filters = Filters(min_age=HOUR)
    assert filters.too_young(entry("a", created=NOW - HOUR + 1), NOW)
    assert not filters.too_young(entry("a", created=NOW - HOUR), NOW)
    assert not filters.too_young(entry("a", created=NOW + HOUR), NOW)
    assert not Filters().too_young(entry("a", created=NOW), NOW)


@pytest.mark.parametrize("state", list(State))
def test_only_entries_at_rest_are_taken(state: State) -> None:
    evictable = {State.READY, State.DENIED, State.DAMAGED, State.INCOMPLETE}
    assert Filters().take(entry("a", state=state)) == (state in evictable)
    assert Filters(quarantined=True).take(entry("a", state=state)) == (state is State.QUARANTINED)


def test_globs_are_matched_whole_and_case_counts() -> None:
    assert matches("job-17", ["job-*"])
    assert not matches("my-job-17", ["job-*"])
    assert not matches("JOB-17", ["job-*"])
    assert matches("job-17", [], ["other*"])
    assert not matches("job-17", ["job-*"], ["*17"])


def test_each_target_is_short_until_it_is_reached() -> None:
    assert not ledger(Limits()).shortfalls()
    short = ledger(Limits(max_size=25)).shortfalls()
    assert [(s.measure, s.remainder, s.bound_by) for s in short] == [(Measure.SIZE, 5, "budget")]
    assert not ledger(Limits(max_size=30)).shortfalls()
    assert ledger(Limits(min_free=101)).shortfalls()[0].remainder == 1
    assert ledger(Limits(keep=1)).shortfalls()[0].remainder == 2
    assert not ledger(Limits(max_size=25)).without(entry("a"), 4096).shortfalls()


def test_a_budget_beyond_the_room_is_bound_by_the_room() -> None:
    """EVI-07: the least of the setting, the file system and the cgroup limit, and which of them it is."""
    there = ledger(Limits(max_size=5000), size=1100, room_bound="cgroup limit")
    (short,) = there.shortfalls()
    assert (short.wanted, short.remainder, short.bound_by) == (1000, 100, "cgroup limit")


def test_garbage_is_none_of_those_that_are_kept() -> None:
    there, garbage = ledger(Limits(keep=2)), entry("a", state=State.ORPHAN)
    assert not there.helped_by(garbage, 4096)
    assert there.without(garbage, 4096).shortfalls() == there.shortfalls()
    assert ledger(Limits(max_size=25)).helped_by(garbage, 4096)


def test_an_entry_that_brings_no_target_nearer_is_left_alone() -> None:
    there = ledger(Limits(max_size=25))
    assert there.helped_by(entry("a"), 4096)
    assert not there.helped_by(entry("a", bytes=0), 4096)
    assert not ledger(Limits(max_size=30)).helped_by(entry("a"), 4096)
    assert ledger(Limits(keep=2)).helped_by(entry("a", bytes=0), 4096)
    assert ledger(Limits(min_free=101)).helped_by(entry("a"), 1)
    assert not ledger(Limits(min_free=101)).helped_by(entry("a"), 0)
