"""Evict: take what nobody leases, oldest use first, until the limits hold; or exactly what was named.

The plan orders every candidate of a store. One walk over it serves dry run and run alike; a candidate that
turns out to be in use is passed over and the next one goes (EVI-05). What may go, and when it is enough,
is in ``policy``.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

from hwctl.core.act import carry_out, gone, record, recorded, remove
from hwctl.core.other_users import Record, as_owner
from hwctl.core.plan import Action, Outcome, Result, Step, Target, foreign, in_use, kept, leased, may_act
from hwctl.core.policy import EVICTABLE, Filters, Ledger, Limits, Shortfall, due, matches, oldest_first
from hwctl.errors import Refused, Status
from hwctl.fs import space
from hwctl.fs.locks import Deadline
from hwctl.stores.base import Artifact, Death, StalePolicy, State, Store


@dataclass(frozen=True, slots=True)
class Plan:
    """Every candidate of one store in the order of eviction, and how the store stands.

    ``elsewhere`` counts the bytes of entries that evict leaves to others, by state: the reasons why a
    target may be out of reach.
    """

    store: Store
    limits: Limits
    steps: tuple[Step, ...]
    ledger: Ledger
    elsewhere: Mapping[State, int]


def plan(
    target: Target, limits: Limits, filters: Filters, words: Sequence[str], *, other_users: bool = False
) -> Plan:
    """Look at a whole store under no lock. ``words`` are the command line, to be repeated in a refusal."""
    store, now = target.store, time.time_ns()
    entries = list(store.scan())
    taken = [artifact for artifact in entries if filters.take(artifact)]
    garbage = _garbage(store, entries, filters) if limits.targets and not filters.quarantined else []
    steps = [
        _step(target, artifact, limits, filters, now, words, other_users)
        for artifact in garbage + oldest_first(taken + _unseen(entries, filters), now)
    ]
    room = space.room(store.root)
    size = sum(artifact.bytes for artifact in taken) if filters.quarantined else store.size()
    ledger = Ledger(limits, size, room.free_bytes, len(taken), room.total_bytes, room.binding)
    elsewhere: Counter[State] = Counter()
    for artifact in entries:
        if artifact.bytes and artifact.state not in EVICTABLE:
            elsewhere[artifact.state] += artifact.bytes
    return Plan(store, limits, tuple(steps), ledger, elsewhere)


def _garbage(store: Store, entries: Sequence[Artifact], filters: Filters) -> list[Artifact]:
    """Orphans that count against the budget go before anything that is of use."""
    return [
        artifact
        for artifact in entries
        if artifact.state is State.ORPHAN
        and artifact.bytes
        and matches(artifact.key, filters.match, filters.exclude)
        and _is_garbage(store, artifact)
    ]


def _unseen(entries: Sequence[Artifact], filters: Filters) -> list[Artifact]:
    """What could not be looked into is kept, and said so: it is not nothing."""
    if filters.quarantined:
        return []
    unreadable = (artifact for artifact in entries if artifact.state is State.UNREADABLE)
    return [entry for entry in unreadable if matches(entry.key, filters.match, filters.exclude)]


def _is_garbage(store: Store, artifact: Artifact) -> bool:
    return store.stale(artifact, StalePolicy()).death is Death.PROVEN


def _step(
    target: Target,
    artifact: Artifact,
    limits: Limits,
    filters: Filters,
    now: int,
    words: Sequence[str],
    other_users: bool,
) -> Step:
    if not may_act(target.store, artifact, other_users=other_users):
        return foreign(target, artifact, words)
    if artifact.state is State.UNREADABLE:
        status = Status.IO if due(artifact, limits, now) else Status.OK
        reason = f"cannot be looked into: {artifact.reason}"
        return Step(target.store, artifact, Action.KEEP, reason, status=status)
    obstacle = target.store.removable(artifact)
    if obstacle is not None:
        # What merely bears a name like ours is nobody's business; what is ours and damaged is a person's.
        status = Status.REFUSED if artifact.state is State.DAMAGED else Status.OK
        return Step(target.store, artifact, Action.KEEP, obstacle, status=status)
    status = Status.BUSY if due(artifact, limits, now) else Status.OK
    if filters.too_young(artifact, now):
        return Step(target.store, artifact, Action.KEEP, "created less than --min-age ago")
    reason, users = _why(artifact, limits, now), in_use(target.store, artifact)
    return Step(target.store, artifact, Action.REMOVE, reason, status=status, in_use=users)


def _why(artifact: Artifact, limits: Limits, now: int) -> str:
    if artifact.state is State.ORPHAN:
        return "garbage: no locator names it"
    if limits.everything:
        return "nobody leases it"
    return "not used within --older-than" if due(artifact, limits, now) else "least recently used"


def plan_named(
    targets: Sequence[Target], filters: Filters, words: Sequence[str], *, other_users: bool = False
) -> tuple[Step, ...]:
    """Exactly the entries that were named, each on its own."""
    return tuple(_named(target, filters, words, other_users) for target in targets)


def _named(target: Target, filters: Filters, words: Sequence[str], other_users: bool) -> Step:
    artifact = target.artifact
    if artifact is None:
        raise Refused("names a whole store", path=target.store.root)
    if not may_act(target.store, artifact, other_users=other_users):
        return foreign(target, artifact, words)
    allowed = {State.QUARANTINED} if filters.quarantined else EVICTABLE | {State.QUARANTINED}
    if artifact.state not in allowed:
        verb = "it is not quarantined" if filters.quarantined else "reclaim-stale judges such entries"
        reason = f"its state is {artifact.state}: {verb}"
        return Step(target.store, artifact, Action.KEEP, reason, status=Status.REFUSED)
    obstacle = target.store.removable(artifact)
    if obstacle is not None:
        return Step(target.store, artifact, Action.KEEP, obstacle, status=Status.REFUSED)
    users = in_use(target.store, artifact)
    return Step(target.store, artifact, Action.REMOVE, "named", status=Status.BUSY, in_use=users)


class Walk:
    """One pass over a plan. ``ledger`` says at any time how the store stands."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.ledger = plan.ledger
        self._now = time.time_ns()

    def shortfalls(self) -> tuple[Shortfall, ...]:
        return self.ledger.shortfalls()

    def steps(self, attempt: Callable[[Step], Outcome]) -> Iterator[Outcome]:
        """Attempt what is due, and as many of the oldest as the targets still need."""
        for step in self.plan.steps:
            wanted = due(step.artifact, self.plan.limits, self._now)
            passed_over = not step.acts and self.ledger.shortfalls()
            if not (wanted or passed_over or self.ledger.helped_by(step.artifact)):
                continue
            outcome = attempt(step)
            self.enter(outcome)
            yield outcome

    def enter(self, outcome: Outcome) -> None:
        """Let the ledger know what became of a step."""
        artifact = outcome.step.artifact
        if outcome.result is Result.PLANNED:
            self.ledger = self.ledger.without(artifact, artifact.allocated)
        elif outcome.result is Result.DONE or outcome.gone:
            ledger = self.ledger.without(artifact, outcome.removed.bytes_freed)
            # Others free and fill the same file system: what it says counts when it says more.
            free = max(ledger.free, space.room(self.plan.store.root).free_bytes)
            self.ledger = replace(ledger, free=free)


def evict(walk: Walk, wait: Deadline) -> Iterator[Outcome]:
    """Carry a plan out, under the family's own lock around evictions where it has one.

    A store that is wholly another user's is walked by a child that has become that user.
    """
    store = walk.plan.store
    acting = [step for step in walk.plan.steps if step.action is not Action.KEEP]
    actors = {store.actor(step.artifact) for step in acting}
    if len(actors) == 1 and actors != {os.geteuid()}:
        yield from _as_owner(walk, actors.pop(), wait)
        return
    with store.sweep(wait) if acting else nullcontext():
        yield from walk.steps(lambda step: evict_one(step, wait))


def _as_owner(walk: Walk, uid: int, wait: Deadline) -> Iterator[Outcome]:
    def work() -> Iterator[Record]:
        numbers = {id(step): number for number, step in enumerate(walk.plan.steps)}
        for outcome in evict(walk, wait):
            yield record(outcome) | {"step": numbers[id(outcome.step)]}

    for report in as_owner(uid, os.stat(walk.plan.store.root).st_gid, work):
        outcome = recorded(walk.plan.steps[report["step"]], report)
        walk.enter(outcome)
        yield outcome


def evict_one(step: Step, wait: Deadline) -> Outcome:
    """Carry out the removal of one entry; one that is in use is waited for as long as ``wait`` lasts."""
    if step.in_use is not None and wait.expired():
        if step.store.look(step.artifact) is None:
            return gone(step)
        if step.store.actor(step.artifact) == os.geteuid():
            _mark_used(step)
        return kept(step)
    return carry_out(step, remove, wait, _again, _mark_used)


def _mark_used(step: Step) -> None:
    """Whoever leases it uses it now; the family's clock learns of it (EVI-01)."""
    if leased(step.artifact):
        step.store.mark_used(step.artifact)


def _again(step: Step, now: Artifact) -> str | None:
    if now.state is State.ORPHAN and not _is_garbage(step.store, now):
        return "it is no garbage any more"
    if (now.last_used or 0) > (step.artifact.last_used or 0):
        return "it was used since the plan was made"
    return "; ".join(step.store.users(now)) or None
