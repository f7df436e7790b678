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
from hwctl.fs import space
from hwctl.fs.deadline import Deadline
from hwctl.fs.openfiles import RecentOpenFiles
from hwctl.stores.base import Artifact, State


class Walk:
    """One pass over a plan. ``ledger`` says at any time how the store stands."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.ledger = plan.ledger
        self._now = time.time_ns()
        self._vanished: set[int] = set()
        self._open_files = RecentOpenFiles()

    def shortfalls(self) -> tuple[Shortfall, ...]:
        return self.ledger.shortfalls()

    def vanished(self) -> Iterator[Outcome]:
        """What a rival removed since the plan was made; half removed, it may stand last in the order."""
        for number, step in enumerate(self.plan.steps):
            if not os.path.lexists(step.artifact.path):
                self._vanished.add(number)
                outcome = gone(step)
                self.enter(outcome)
                yield outcome

    def steps(self, attempt: Callable[[Step], Outcome]) -> Iterator[Outcome]:
        """Attempt what is due, and as many of the oldest as the targets still need.

        What would give back little of what it takes goes last: its files have other names, or are in use.
        """
        stubborn = []
        for number, step in enumerate(self.plan.steps):
            if number in self._vanished:
                continue
            if due(step.artifact, self.plan.limits, self._now) or self._is_told(step):
                yield self._attempted(step, attempt)
            elif self._helps(step.artifact):
                if self._is_stubborn(step.artifact):
                    stubborn.append(step)
                else:
                    yield self._attempted(step, attempt)
        for step in stubborn:
            if self._helps(step.artifact):
                yield self._attempted(step, attempt)

    def _attempted(self, step: Step, attempt: Callable[[Step], Outcome]) -> Outcome:
        outcome = attempt(step)
        self.enter(outcome)
        return outcome

    def _is_told(self, step: Step) -> bool:
        """Whether it is passed over on the way to a target, which then may be missed because of it."""
        return not step.acts and bool(self.ledger.shortfalls())

    def _helps(self, artifact: Artifact) -> bool:
        # What it frees takes a walk, and the targets may hold already.
        return bool(self.shortfalls()) and self.ledger.helped_by(artifact, self._frees(artifact))

    def _is_stubborn(self, artifact: Artifact) -> bool:
        measures = {short.measure for short in self.ledger.shortfalls()}
        return measures == {Measure.FREE} and self._frees(artifact) * 2 < artifact.allocated

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
                self.measure()
        elif outcome.removed.files:
            removed, ledger = outcome.removed, self.ledger
            size, free = ledger.size - removed.size, ledger.free + removed.bytes_freed
            self.ledger = replace(ledger, size=size, free=free)

    def measure(self) -> None:
        """Look at the room. Others free and fill the same file system: what it says counts when it says more.

        Between two steps only where room is wanted: it takes longer than the removal of a page.
        """
        free = max(self.ledger.free, space.room(self.plan.store.root).free_bytes)
        self.ledger = replace(self.ledger, free=free)


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
        yield from walk.steps(lambda step: evict_one(step, wait))
    if acting:
        walk.measure()


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
    if now.state is State.ORPHAN and not is_garbage(step.store, now):
        return "it is no garbage any more"
    if (now.last_used or 0) > (step.artifact.last_used or 0):
        return "it was used since the plan was made"
    require_unused(step, now)
    return None
