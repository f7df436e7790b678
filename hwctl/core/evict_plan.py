"""The plan of an eviction: every candidate of a store in the one order, or exactly the entries named.

Made under no lock, so it can be shown. Who uses an entry, and what must not be deleted, is said here already;
whether that still holds is asked again when a step is carried out, by ``evict``.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hwctl.core.plan import Action, Step, Target, foreign, in_use, may_act
from hwctl.core.policy import Filters, Ledger, Limits, due, matches, oldest_first
from hwctl.errors import Refused, Status
from hwctl.fs import space
from hwctl.stores.base import AT_REST, Artifact, Death, StalePolicy, State, Store


@dataclass(frozen=True, slots=True)
class Plan:
    """Every candidate of one store in the order of eviction, and how the store stands.

    ``elsewhere`` counts the bytes of entries that evict leaves to others, by state: the reasons why a
    target may be out of reach. ``barred`` says that every entry is another user's, whom the caller may not
    act for: then no target was missed, nothing was tried.
    """

    store: Store
    limits: Limits
    filters: Filters
    steps: tuple[Step, ...]
    ledger: Ledger
    elsewhere: Mapping[State, int]
    barred: bool = False


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
        for artifact in garbage + oldest_first(taken + _unseen(entries, filters))
    ]
    barred = bool(steps) and all(
        step.status is Status.REFUSED and not may_act(store, step.artifact, other_users=other_users)
        for step in steps
    )
    room = space.room(store.root)
    # Another user's store may be closed to a look at every file.
    size = sum(artifact.bytes for artifact in taken) if filters.quarantined or barred else store.size().bytes
    ledger = Ledger(limits, size, room.free_bytes, len(taken), room.total_bytes, room.binding)
    elsewhere: Counter[State] = Counter()
    for artifact in entries:
        ours = filters.quarantined and artifact.state is State.QUARANTINED
        if artifact.bytes and artifact.state not in AT_REST and not ours:
            elsewhere[artifact.state] += artifact.bytes
    return Plan(store, limits, filters, tuple(steps), ledger, elsewhere, barred)


def _garbage(store: Store, entries: Sequence[Artifact], filters: Filters) -> list[Artifact]:
    """Orphans that count against the budget go before anything that is of use."""
    return [
        artifact
        for artifact in entries
        if artifact.state is State.ORPHAN
        and artifact.bytes
        and matches(artifact.key, filters.match, filters.exclude)
        and is_garbage(store, artifact)
    ]


def _unseen(entries: Sequence[Artifact], filters: Filters) -> list[Artifact]:
    """What could not be looked into is kept, and said so: it is not nothing."""
    if filters.quarantined:
        return []
    unreadable = (artifact for artifact in entries if artifact.state is State.UNREADABLE)
    return [entry for entry in unreadable if matches(entry.key, filters.match, filters.exclude)]


def is_garbage(store: Store, artifact: Artifact) -> bool:
    """Whether an orphan is proven to be nobody's."""
    verdict = store.stale(artifact, StalePolicy())
    return verdict.death is Death.PROVEN and not verdict.keeps


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
        # What merely bears a name like ours is nobody's business; what is ours and cannot go is a person's.
        status = Status.OK if artifact.state is State.INCOMPLETE else Status.REFUSED
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


def plan_named(target: Target, filters: Filters, words: Sequence[str], *, other_users: bool = False) -> Step:
    """The step for an entry that was named, whatever limits there are."""
    artifact = target.artifact
    if artifact is None:
        raise Refused("names a whole store", path=target.store.root)
    if not may_act(target.store, artifact, other_users=other_users):
        return foreign(target, artifact, words)
    allowed = {State.QUARANTINED} if filters.quarantined else AT_REST | {State.QUARANTINED}
    if artifact.state not in allowed:
        reason, status = _not_evicted(artifact, filters)
        return Step(target.store, artifact, Action.KEEP, reason, status=status)
    obstacle = target.store.removable(artifact)
    if obstacle is not None:
        return Step(target.store, artifact, Action.KEEP, obstacle, status=Status.REFUSED)
    users = in_use(target.store, artifact)
    return Step(target.store, artifact, Action.REMOVE, "named", status=Status.BUSY, in_use=users)


def _not_evicted(artifact: Artifact, filters: Filters) -> tuple[str, Status]:
    """Why an entry of such a state is not evicted, and what that means for whoever named it."""
    if artifact.state is State.UNREADABLE:
        return f"cannot be looked into: {artifact.reason}", Status.IO
    if artifact.state is State.FOREIGN:
        why = "it is not a store's own"
    elif filters.quarantined:
        why = "it is not quarantined"
    else:
        why = "reclaim-stale judges such entries"
    return f"its state is {artifact.state}: {why}", Status.REFUSED
