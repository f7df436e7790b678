"""Reclaim what producers left behind, and only what is proven dead.

Whether an entry is stale is its family's verdict, with evidence. This verb asks twice, while planning and
again under the exclusive lease, and shows the evidence either way. What lives, or is unproven, is kept; of an
interrupted move nothing is garbage: it is brought to its end in quarantine.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from hwctl.core.act import Deed, carry_out, remove
from hwctl.core.plan import Action, Outcome, Result, Step, Target, foreign, may_act
from hwctl.core.policy import matches
from hwctl.errors import HwctlError, IoFailed, Status
from hwctl.fs.deadline import Deadline
from hwctl.stores.base import Artifact, Death, Staleness, StalePolicy, State

_KEPT_MEANS = {Death.LIVE: Status.BUSY, Death.UNPROVEN: Status.REFUSED, Death.NOT_STALE: Status.REFUSED}
"""What it means for the run that an entry which a person named is kept. In a sweep it is routine."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which entries are looked at, named or not: keys by shell glob, or those of one run alone (REC-07).

    The entries that are ``named`` by themselves are left out of a sweep over their store.
    """

    match: tuple[str, ...] = ()
    run_id: str | None = None
    named: frozenset[Path] = frozenset()

    def left_out(self, artifact: Artifact) -> str | None:
        """Why an entry is none of those that are looked at, None when it is one."""
        if self.run_id is not None and artifact.key != self.run_id:
            return f"it is not of the run {self.run_id}"
        return None if matches(artifact.key, self.match) else "no --match takes its key"


def plan(
    target: Target, selection: Selection, policy: StalePolicy, words: Sequence[str], *, sizes: bool = True
) -> tuple[Step, ...]:
    """Judge the named entry, or every entry of the store. ``words`` are the command line, for refusals.

    ``sizes`` are for whoever looks at the plan; without them the outcomes tell what was found.
    """
    if target.artifact is not None:
        left_out = selection.left_out(target.artifact)
        if left_out is not None:  # a glob of a shell's as PATH names more than the run that has ended
            return (Step(target.store, target.artifact, Action.KEEP, left_out),)
        return (_judged(target, target.artifact, policy, words),)
    steps = (
        _swept(target, artifact, policy, words)
        for artifact in target.store.scan(sizes=sizes)
        if artifact.path not in selection.named and selection.left_out(artifact) is None
    )
    return tuple(step for step in steps if step is not None)


def reclaim(policy: StalePolicy, step: Step, wait: Deadline) -> Outcome:
    """Carry one step out, if its entry still is proven dead, just before and under the exclusive lease.

    The lease makes the lock files that are missing, and a lock that was just made tells nothing of those who
    hold the one that is gone (EVI-08): what is judged without a lock is judged before.
    """
    keeps = step.action is Action.QUARANTINE

    def objection(verdict: Staleness) -> str | None:
        return None if verdict.death is Death.PROVEN and verdict.keeps == keeps else _said(verdict)

    def again(step: Step, now: Artifact) -> str | None:
        return objection(step.store.stale(now, policy))

    if step.action is not Action.KEEP:
        with suppress(HwctlError, OSError):  # the same is met again under the lease, where it has its outcome
            verdict = step.store.stale(step.artifact, policy)
            if verdict.lockless and (why := objection(verdict)) is not None:
                return Outcome(step, Result.SKIPPED, why, step.status)
    return carry_out(step, _finish if keeps else remove, wait, again)


def _finish(step: Step, now: Artifact) -> Deed:
    """Bring an interrupted move to its end: what was being kept is kept."""
    return Deed(moved_to=step.store.set_aside(now, step.evidence[0]).path)


def _swept(target: Target, artifact: Artifact, policy: StalePolicy, words: Sequence[str]) -> Step | None:
    """The step for an entry that nobody named: None where there is nothing to reclaim or to report."""
    try:
        verdict = _verdict(target, artifact, policy)
    except HwctlError as exc:
        # Another run may be removing it this very moment (REC-09).
        gone = target.store.look(artifact) is None
        return None if gone else _unjudged(target, artifact, exc, words)
    if verdict.death is Death.NOT_STALE:
        return None
    return _step(target, artifact, verdict, policy, words)


def _judged(target: Target, artifact: Artifact, policy: StalePolicy, words: Sequence[str]) -> Step:
    try:
        verdict = _verdict(target, artifact, policy)
    except HwctlError as exc:
        return _unjudged(target, artifact, exc, words)
    return _step(target, artifact, verdict, policy, words)


def _verdict(target: Target, artifact: Artifact, policy: StalePolicy) -> Staleness:
    if artifact.state is State.UNREADABLE:
        raise IoFailed(f"cannot be looked into: {artifact.reason}", path=artifact.path)
    return target.store.stale(artifact, policy)


def _step(
    target: Target, artifact: Artifact, verdict: Staleness, policy: StalePolicy, words: Sequence[str]
) -> Step:
    if not may_act(target.store, artifact, other_users=policy.other_users):
        return replace(foreign(target, artifact, words), evidence=verdict.evidence)
    named = target.artifact is not None
    if verdict.death is Death.PROVEN:
        # Somebody else may hold it by then: a rival run in a sweep, news for whoever named it (REC-09).
        status = Status.BUSY if named else Status.OK
        action = Action.QUARANTINE if verdict.keeps else Action.REMOVE
        return Step(target.store, artifact, action, _said(verdict), verdict.evidence, status)
    status = _KEPT_MEANS[verdict.death] if named else Status.OK
    return Step(target.store, artifact, Action.KEEP, _said(verdict), verdict.evidence, status)


def _unjudged(target: Target, artifact: Artifact, exc: HwctlError, words: Sequence[str]) -> Step:
    """An entry that could not be looked into; another user's is that user's to judge (REC-08)."""
    if not may_act(target.store, artifact, other_users=False):
        return foreign(target, artifact, words)
    return Step(target.store, artifact, Action.KEEP, exc.message, status=exc.status)


def _said(verdict: Staleness) -> str:
    return (
        f"{verdict.death.value}: {'; '.join(verdict.evidence)}" if verdict.evidence else verdict.death.value
    )
