"""Evict: take what nobody leases, oldest use first, until the limits hold; or exactly what was named.

One walk over a plan serves dry run and run alike; a candidate that turns out to be in use is passed over and
the next one goes (EVI-05). What is a candidate is in ``evict_plan``, when it is enough in ``policy``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace

from hwctl.core.act import carry_out, gone, record, recorded, remove, require_unused
from hwctl.core.evict_plan import Plan, is_garbage
from hwctl.core.freeable import freeable
from hwctl.core.other_users import Record, as_owner
from hwctl.core.plan import Action, Outcome, Result, Step, kept, leased
from hwctl.core.policy import Measure, Shortfall, due
from hwctl.errors import Status
from hwctl.fs import space
from hwctl.fs.deadline import Deadline
from hwctl.fs.openfiles import RecentOpenFiles
from hwctl.fs.paths import stands
from hwctl.stores.base import Artifact, State

_CATCHING_UP_SECONDS = 2.0
"""How long a file system may take to give back what was removed; XFS and btrfs do it in the background."""

_TELLING_BYTES = 1 << 20
"""From so many freed bytes on a cgroup's room tells whether they were charged to it: it counts in batches."""


class Walk:
    """One pass over a plan. ``ledger`` says at any time how the store stands."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.ledger = plan.ledger
        self._now = time.time_ns()
        self._tried: set[int] = set()
        self._open_files = RecentOpenFiles()
        self._in_vain = False

    def shortfalls(self) -> tuple[Shortfall, ...]:
        return self.ledger.shortfalls()

    def vanished(self) -> Iterator[Outcome]:
        """What a rival removed since the plan was made; half removed, it may stand last in the order."""
        for number, step in enumerate(self.plan.steps):
            if not stands(step.artifact.path):
                self._tried.add(number)
                outcome = gone(step)
                self.enter(outcome)
                yield outcome

    def steps(self, attempt: Callable[[Step], Outcome]) -> Iterator[Outcome]:
        """Attempt what is due, and as many of the oldest as the targets still need; each entry once.

        What would give back little of what it takes goes last: its files have other names, or are in use.
        """
        stubborn = []
        for number, step in enumerate(self.plan.steps):
            if number in self._tried:
                continue
            if due(step.artifact, self.plan.limits, self._now) or self._is_told(step):
                yield self._attempted(number, attempt)
            elif self._helps(step.artifact):
                if self._is_stubborn(step.artifact):
                    stubborn.append(number)
                else:
                    yield self._attempted(number, attempt)
        for number in stubborn:
            if self._helps(self.plan.steps[number].artifact):
                yield self._attempted(number, attempt)

    def _attempted(self, number: int, attempt: Callable[[Step], Outcome]) -> Outcome:
        self._tried.add(number)
        outcome = attempt(self.plan.steps[number])
        self.enter(outcome)
        return outcome

    def _is_told(self, step: Step) -> bool:
        """Whether it is passed over on the way to a target, which then may be missed because of it."""
        return not step.acts and bool(self.ledger.shortfalls())

    def _helps(self, artifact: Artifact) -> bool:
        # What it frees takes a walk, and the targets may hold already.
        if not self.shortfalls() or (self._in_vain and self._only_room_is_short()):
            return False
        return self.ledger.helped_by(artifact, self._frees(artifact))

    def _is_stubborn(self, artifact: Artifact) -> bool:
        return self._only_room_is_short() and self._frees(artifact) * 2 < artifact.allocated

    def _only_room_is_short(self) -> bool:
        return {short.measure for short in self.ledger.shortfalls()} == {Measure.FREE}

    def _frees(self, artifact: Artifact) -> int:
        """What removing it gives back. Looked for where room is wanted alone, since it takes a walk."""
        if self.plan.limits.min_free is None:
            return artifact.allocated
        return freeable(artifact, self._open_files())

    def enter(self, outcome: Outcome) -> None:
        """Let the ledger know what became of a step."""
        artifact = outcome.step.artifact
        if outcome.result is Result.PLANNED:
            self.ledger = self.ledger.without(artifact, self._frees(artifact))
        elif outcome.result is Result.DONE or outcome.gone:
            self.ledger = self.ledger.without(artifact, outcome.removed.bytes_freed)
            if self.plan.limits.min_free is not None:
                self._look_at_room(outcome.removed.bytes_freed)
        elif outcome.removed.files:
            removed, ledger = outcome.removed, self.ledger
            size, free = ledger.size - removed.size, ledger.free + removed.bytes_freed
            self.ledger = replace(ledger, size=size, free=free)

    def _look_at_room(self, freed: int) -> None:
        """What others free counts. A cgroup's room is what it says: pages that were charged to another one
        give it nothing, however many go (EVI-07)."""
        room = space.room(self.plan.store.root)
        if room.binding == space.CGROUP:
            gained = room.free_bytes - (self.ledger.free - freed)
            self._in_vain = freed >= _TELLING_BYTES and gained < freed // 2
            self.ledger = replace(self.ledger, free=room.free_bytes)
        else:
            self.ledger = replace(self.ledger, free=max(self.ledger.free, room.free_bytes))

    def measure(self, patience: Deadline) -> None:
        """Look at how the store stands, whatever the steps have said: others publish and fill the room.

        A file system may free behind a removal's back; until ``patience`` ends it may catch up with it.
        """
        store, limits, filters = self.plan.store, self.plan.limits, self.plan.filters
        wanted, count = min(limits.min_free or 0, self.ledger.free), self.ledger.count
        taken: list[Artifact] = []
        while (free := space.room(store.root).free_bytes) < wanted and not patience.expired():
            patience.pause(_CATCHING_UP_SECONDS / 100)
        if filters.quarantined or limits.keep is not None:
            taken = [entry for entry in store.scan(sizes=filters.quarantined) if filters.take(entry)]
            count = len(taken)
        size = sum(entry.bytes for entry in taken) if filters.quarantined else store.size().bytes
        self.ledger = replace(self.ledger, size=size, free=free, count=count)

    def carried_out(self, attempt: Callable[[Step], Outcome]) -> Iterator[Outcome]:
        """``steps``, and more of them while the targets are missed and come nearer, measured each time.

        What does not come nearer is not to be had by evicting: such as the room of a cgroup that the pages
        of this store are not charged to (EVI-07).
        """
        self.measure(Deadline.now())
        nearer = True
        while nearer:
            before = self.ledger
            yield from self.steps(attempt)
            self.measure(Deadline.after(_CATCHING_UP_SECONDS))
            nearer = bool(self.shortfalls()) and self.ledger.nearer_than(before)


def evict(walk: Walk, wait: Deadline) -> Iterator[Outcome]:
    """Carry a plan out, under the store's lock around evictions.

    A store that is wholly another user's is walked by a child that has become that user.
    """
    store = walk.plan.store
    acting = [step for step in walk.plan.steps if step.action is not Action.KEEP]
    actors = {store.actor(step.artifact) for step in acting}
    if len(actors) == 1 and actors != {os.geteuid()}:
        yield from _as_owner(walk, actors.pop(), wait)
        return
    with store.sweep(wait) if acting else nullcontext():
        yield from walk.vanished()
        run = walk.carried_out if acting else walk.steps
        yield from run(lambda step: _still_due(walk, evict_one(step, wait)))


def _still_due(walk: Walk, outcome: Outcome) -> Outcome:
    """An entry that was due for its age, and was used since the plan was made, is in nobody's way."""
    limits, step = walk.plan.limits, outcome.step
    if outcome.result is not Result.SKIPPED or outcome.error is not None or limits.older_than is None:
        return outcome
    now = step.store.look(step.artifact)
    return outcome if now is None or due(now, limits, time.time_ns()) else replace(outcome, status=Status.OK)


def _as_owner(walk: Walk, uid: int, wait: Deadline) -> Iterator[Outcome]:
    def work() -> Iterator[Record]:
        numbers = {id(step): number for number, step in enumerate(walk.plan.steps)}
        for outcome in evict(walk, wait):
            yield record(outcome) | {"step": numbers[id(outcome.step)]}

    for report in as_owner(uid, os.stat(walk.plan.store.root).st_gid, work):
        outcome = recorded(walk.plan.steps[report["step"]], report)
        walk.enter(outcome)
        yield outcome
    walk.measure(Deadline.now())


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
    if now.state is State.ORPHAN and not is_garbage(step.store, now):
        return "it is no garbage any more"
    if (now.last_used or 0) > (step.artifact.last_used or 0):
        return "it was used since the plan was made"
    require_unused(step, now)
    return None
