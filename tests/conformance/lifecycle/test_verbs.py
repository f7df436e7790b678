"""quarantine, reclaim-stale, evict and exec over every family: the same words, the same outcomes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import holders
import pytest
from kits import Kit

from hwctl.core import evict, evict_plan, exec, quarantine, reclaim_stale
from hwctl.core.plan import Action, Outcome, Result, Step, Target, foresee, freed
from hwctl.core.policy import Filters, Limits, Measure
from hwctl.core.reclaim_stale import Selection
from hwctl.errors import Busy, Damaged, NotFound, Refused, Status
from hwctl.fs.deadline import Deadline
from hwctl.stores.base import CheckOptions, Level, StalePolicy, State, Store

HOUR = 3600 * 10**9
NOW = Deadline.now()


def named(store: Store, path: Path) -> Target:
    (artifact,) = [entry for entry in store.scan() if entry.path == path]
    return Target(store, artifact)


def ready(store: Store) -> set[str]:
    return {entry.key for entry in store.scan() if entry.state is State.READY}


def three(kit: Kit) -> Store:
    """Artifacts 0, 1, 2, used three, two and one hours ago."""
    for number in range(3):
        kit.artifact(number)
        kit.used(number, time.time_ns() - (3 - number) * HOUR)
    return kit.open()


def run(store: Store, limits: Limits, filters: Filters | None = None) -> tuple[evict.Walk, list[Outcome]]:
    walk = evict.Walk(evict_plan.plan(Target(store), limits, filters or Filters(), ["evict"]))
    return walk, list(evict.evict(walk, NOW))


def plan_reclaim(store: Store, policy: StalePolicy | None = None) -> Sequence[Step]:
    return reclaim_stale.plan(Target(store), Selection(), policy or StalePolicy(), ["reclaim-stale"])


# reclaim-stale


def test_reclaim_removes_the_dead_and_keeps_the_rest(kit: Kit) -> None:
    kit.artifact(0)
    gone = kit.leftover(1)
    with kit.at_work(2) as working:
        store = kit.open()
        steps = plan_reclaim(store)
        assert {step.action for step in steps} == {Action.REMOVE, Action.KEEP}
        assert all(step.evidence for step in steps)
        outcomes = [reclaim_stale.reclaim(StalePolicy(), step, NOW) for step in steps]
        assert {outcome.status for outcome in outcomes} == {Status.OK}
        assert not gone.exists() and working.exists()
        assert ready(store) == {kit.key(0)}
        assert freed(outcomes).bytes_freed > 0
        # Once more: nothing is left to do, and nothing breaks.
        again = [reclaim_stale.reclaim(StalePolicy(), step, NOW) for step in plan_reclaim(store)]
        assert [outcome.result for outcome in again] == [Result.SKIPPED]


def test_a_plan_carried_out_twice_is_harmless_and_counts_once(kit: Kit) -> None:
    """REC-09: what another run has removed is gone, which is what was wanted."""
    kit.leftover(0)
    store = kit.open()
    steps = plan_reclaim(store)
    first = [reclaim_stale.reclaim(StalePolicy(), step, NOW) for step in steps]
    second = [reclaim_stale.reclaim(StalePolicy(), step, NOW) for step in steps]
    assert [outcome.result for outcome in first] == [Result.DONE]
    assert [(outcome.result, outcome.gone, outcome.status) for outcome in second] == [
        (Result.SKIPPED, True, Status.OK)
    ]
    assert freed(second).bytes_freed == 0


def test_what_came_to_life_since_the_plan_is_kept(kit: Kit) -> None:
    leftover = kit.leftover(0)
    store = kit.open()
    (step,) = plan_reclaim(store)
    lock = leftover if kit.name == "ktint8" else _build_lock(kit)
    with holders.locked(lock, "exclusive") as pid:
        outcome = reclaim_stale.reclaim(StalePolicy(), step, NOW)
    assert outcome.result is Result.SKIPPED and isinstance(outcome.error, Busy)
    assert f"pid {pid}" in outcome.reason
    assert leftover.exists()


def _build_lock(kit: Kit) -> Path:
    if kit.name == "hostweights":
        return kit.root / "locks" / f"{kit.key(0)}.build.lock"
    return kit.lock(0)


def test_a_named_entry_that_is_kept_is_an_answer(kit: Kit) -> None:
    """Live is busy (11); no leftover at all, or not provably dead, is refused (12)."""
    artifact = kit.artifact(0)
    with kit.at_work(1) as working:
        store = kit.open()
        statuses = []
        for path in (working, artifact):
            (step,) = reclaim_stale.plan(named(store, path), Selection(), StalePolicy(), ["x"])
            statuses.append(reclaim_stale.reclaim(StalePolicy(), step, NOW).status)
        assert statuses == [Status.BUSY, Status.REFUSED]
        assert working.exists() and artifact.exists()


def test_only_keys_that_match_are_looked_at(kit: Kit) -> None:
    kit.leftover(0)
    path = kit.leftover(1)
    store = kit.open()
    steps = reclaim_stale.plan(Target(store), Selection(match=(kit.key(1) + "*",)), StalePolicy(), ["x"])
    assert {step.artifact.path for step in steps} == {path}
    key = steps[0].artifact.key
    only = reclaim_stale.plan(Target(store), Selection(run_id=key), StalePolicy(), ["x"])
    assert {step.artifact.path for step in only} == {path}


# evict


def test_the_oldest_goes_first_and_not_one_more_than_needed(kit: Kit) -> None:
    store = three(kit)
    size = store.size().bytes
    walk, outcomes = run(store, Limits(max_size=size - 1))
    assert [outcome.step.artifact.key for outcome in outcomes] == [kit.key(0)]
    assert ready(store) == {kit.key(1), kit.key(2)}
    assert not walk.shortfalls()
    assert walk.ledger.size == store.size().bytes


def test_a_dry_run_says_what_the_run_does_and_changes_nothing(kit: Kit) -> None:
    store = three(kit)
    plan = evict_plan.plan(Target(store), Limits(keep=1), Filters(), ["evict"])
    foreseen = list(evict.Walk(plan).steps(foresee))
    assert ready(store) == {kit.key(number) for number in range(3)}
    assert {outcome.result for outcome in foreseen} == {Result.PLANNED}
    done = list(evict.evict(evict.Walk(plan), NOW))
    assert [outcome.step for outcome in done] == [outcome.step for outcome in foreseen]
    assert ready(store) == {kit.key(2)}


def test_a_leased_entry_is_passed_over_and_named_and_the_next_one_goes(kit: Kit) -> None:
    """EVI-03."""
    store = three(kit)
    with holders.locked(kit.lock(0)) as pid:
        walk, outcomes = run(store, Limits(keep=2))
    assert [outcome.result for outcome in outcomes] == [Result.SKIPPED, Result.DONE]
    assert f"pid {pid}" in outcomes[0].reason
    assert ready(store) == {kit.key(0), kit.key(2)}
    assert not walk.shortfalls() and outcomes[0].status is Status.OK


def test_an_entry_leased_between_plan_and_act_is_kept_and_the_next_one_goes(kit: Kit) -> None:
    """EVI-05."""
    store = three(kit)
    walk = evict.Walk(evict_plan.plan(Target(store), Limits(keep=2), Filters(), ["evict"]))
    with holders.locked(kit.lock(0)):
        outcomes = list(evict.evict(walk, NOW))
    assert [outcome.result for outcome in outcomes] == [Result.SKIPPED, Result.DONE]
    assert isinstance(outcomes[0].error, Busy)
    assert ready(store) == {kit.key(0), kit.key(2)}


def test_an_entry_used_between_plan_and_act_is_kept(kit: Kit) -> None:
    """EVI-05: nobody holds it any more, but the clock has moved."""
    store = three(kit)
    walk = evict.Walk(evict_plan.plan(Target(store), Limits(keep=2), Filters(), ["evict"]))
    kit.used(0, time.time_ns())
    outcomes = list(evict.evict(walk, NOW))
    assert [outcome.result for outcome in outcomes] == [Result.SKIPPED, Result.DONE]
    assert ready(store) == {kit.key(0), kit.key(2)}


def test_a_successor_under_the_same_name_is_not_what_was_planned(kit: Kit) -> None:
    store = three(kit)
    walk = evict.Walk(evict_plan.plan(Target(store), Limits(keep=2), Filters(), ["evict"]))
    other, _ = run(store, Limits(keep=2))
    assert not other.shortfalls()
    kit.artifact(0)
    outcomes = list(evict.evict(walk, NOW))
    assert outcomes[0].result is Result.SKIPPED
    assert kit.key(0) in ready(store)


def test_a_target_out_of_reach_says_what_is_missing(kit: Kit) -> None:
    store = three(kit)
    with holders.locked(kit.lock(0)):
        walk, outcomes = run(store, Limits(max_size=1))
    assert ready(store) == {kit.key(0)}
    (short,) = walk.shortfalls()
    assert short.measure is Measure.SIZE and short.remainder == store.size().bytes - 1
    assert sum(outcome.result is Result.DONE for outcome in outcomes) == 2


def test_a_term_that_met_a_leased_entry_is_busy_after_the_rest_is_done(kit: Kit) -> None:
    store = three(kit)
    with holders.locked(kit.lock(0)):
        _, outcomes = run(store, Limits(older_than=90 * 60 * 10**9))
    assert [outcome.status for outcome in outcomes] == [Status.BUSY, Status.OK]
    assert ready(store) == {kit.key(0), kit.key(2)}


def test_everything_goes_but_what_the_filters_protect(kit: Kit) -> None:
    store = three(kit)
    filters = Filters(exclude=(kit.key(1),))
    run(store, Limits(everything=True), filters)
    assert ready(store) == {kit.key(1)}
    run(store, Limits(everything=True), Filters(min_age=HOUR))
    assert ready(store) == {kit.key(1)}
    run(store, Limits(everything=True))
    assert ready(store) == set()


def test_a_mapped_file_is_a_use_where_programs_take_no_lease_and_never_called_freed(kit: Kit) -> None:
    """EVI-03: what is unlinked but mapped is still used."""
    path = kit.artifact(0)
    store = kit.open()
    with holders.mapped(kit.payload(path)) as pid:
        _, (outcome,) = run(store, Limits(everything=True))
    if kit.leases:
        assert outcome.removed.still_mapped > 0
    else:
        assert (outcome.result, outcome.status) == (Result.SKIPPED, Status.BUSY)
        assert f"pid {pid}" in outcome.reason and path.exists()


def test_quarantined_entries_go_only_when_asked_for(kit: Kit) -> None:
    kit.artifact(0)
    store = kit.open()
    aside = quarantine.set_aside(quarantine.plan(_only(store), "x", ["q"]), NOW).moved_to
    kit.artifact(0)
    assert aside is not None
    run(store, Limits(everything=True), Filters(quarantined=True))
    assert not aside.exists()
    assert ready(store) == {kit.key(0)}


def test_a_purge_by_name_leaves_the_republished_artifact_and_its_lease(kit: Kit) -> None:
    """QUA-02: the locks are the key's own, so the purge waits for another day; nothing else is touched."""
    kit.artifact(0)
    store = kit.open()
    aside = quarantine.set_aside(quarantine.plan(_only(store), "x", ["q"]), NOW).moved_to
    assert aside is not None
    kit.artifact(0)
    with holders.locked(kit.lock(0)):
        step = evict_plan.plan_named(named(store, aside), Filters(quarantined=True), ["e"])
        outcome = evict.evict_one(step, NOW)
        assert outcome.result in (Result.SKIPPED, Result.DONE)
        assert ready(store) == {kit.key(0)}
    step = evict_plan.plan_named(named(store, kit.open_path(0)), Filters(quarantined=True), ["e"])
    refused = evict.evict_one(step, NOW)
    assert (refused.result, refused.status) == (Result.SKIPPED, Status.REFUSED)
    assert ready(store) == {kit.key(0)}


def _only(store: Store) -> Target:
    (artifact,) = [entry for entry in store.scan() if entry.state is State.READY]
    return Target(store, artifact)


# quarantine


def test_a_leased_artifact_is_denied_or_left_but_never_moved(kit: Kit) -> None:
    """QUA-03: busy, with the holder; the holder is not disturbed."""
    path = kit.artifact(0)
    store = kit.open()
    with holders.locked(kit.lock(0)) as pid:
        outcome = quarantine.set_aside(quarantine.plan(_only(store), "bad", ["q"]), NOW)
        assert outcome.status is Status.BUSY
        assert f"pid {pid}" in outcome.reason
        assert kit.payload(path).exists()
        state = named(store, path).artifact
    assert state is not None
    assert state.state is (State.DENIED if kit.denies else State.READY)


def test_a_dry_run_foresees_who_is_in_the_way(kit: Kit) -> None:
    kit.artifact(0)
    with holders.locked(kit.lock(0)) as pid:
        outcome = foresee(quarantine.plan(_only(kit.open()), "bad", ["q"]))
    assert (outcome.result, outcome.status) == (Result.SKIPPED, Status.BUSY)
    assert f"pid {pid}" in outcome.reason


def test_what_is_mapped_is_not_moved_where_programs_take_no_lease(kit: Kit) -> None:
    """kt-kernel opens layer after layer by path: a tree that is moved away under it is lost to it."""
    path = kit.artifact(0)
    with holders.mapped(kit.payload(path)) as pid:
        outcome = quarantine.set_aside(quarantine.plan(_only(kit.open()), "bad", ["q"]), NOW)
    if kit.leases:
        assert (outcome.result, path.exists()) == (Result.DONE, False)
    else:
        assert (outcome.result, outcome.status) == (Result.SKIPPED, Status.BUSY)
        assert f"pid {pid}" in outcome.reason and path.exists()


def test_restore_by_key_verifies_first(kit: Kit) -> None:
    kit.artifact(0)
    store = kit.open()
    aside = quarantine.set_aside(quarantine.plan(_only(store), "guess", ["q"]), NOW).moved_to
    assert aside is not None
    target = quarantine.find([store], kit.key(0))
    outcome = quarantine.restore(CheckOptions(), quarantine.plan_restore(target, ["q"]), NOW)
    assert (outcome.result, outcome.status) == (Result.DONE, Status.OK)
    assert ready(store) == {kit.key(0)}


def test_what_is_damaged_stays_quarantined(kit: Kit) -> None:
    path = kit.artifact(0)
    payload = kit.payload(path)
    payload.chmod(0o600)
    payload.write_bytes(payload.read_bytes()[:-1])
    payload.chmod(0o400)
    store = kit.open()
    (target,) = [Target(store, entry) for entry in store.scan() if entry.key == kit.key(0)]
    aside = quarantine.set_aside(quarantine.plan(target, "short", ["q"]), NOW).moved_to
    assert aside is not None
    outcome = quarantine.restore(CheckOptions(), quarantine.plan_restore(named(store, aside), ["q"]), NOW)
    assert outcome.status is Status.DAMAGED and isinstance(outcome.error, Damaged)
    assert outcome.error.findings
    assert aside.exists() and not path.exists()


def test_a_key_that_stands_for_several_entries_is_refused(kit: Kit) -> None:
    store = kit.open()
    for _ in range(2):
        kit.artifact(0)
        quarantine.set_aside(quarantine.plan(_only(store), "x", ["q"]), NOW)
    with pytest.raises(Refused, match="stands for 2 entries"):
        quarantine.find([store], kit.key(0))
    with pytest.raises(NotFound):
        quarantine.find([store], "no-such-key")


# exec


def test_exec_holds_what_it_verified(kit: Kit) -> None:
    kit.artifact(0)
    store = kit.open()
    target = _only(store)
    if kit.name == "pageweights":
        with pytest.raises(Refused, match="cannot be held"), _holding(target):
            pass
        return
    with _holding(target) as held:
        (artifact,) = held.artifacts
        assert held.locks and held.reports[0].valid
        assert artifact.path == kit.open_path(0)
        _, (outcome,) = run(kit.open(), Limits(everything=True))
        assert (outcome.result, outcome.status) == (Result.SKIPPED, Status.BUSY)
    run(kit.open(), Limits(everything=True))
    assert ready(store) == set()


def _holding(target: Target) -> AbstractContextManager[exec.Holding]:
    return exec.holding([target], Level.FULL, CheckOptions(), NOW)
