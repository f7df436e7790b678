"""Quarantine: set an artifact aside so that no reader can mistake it for a good one, and take that back.

An artifact that is leased is not moved; new readers are turned away from it where the family has a mark
for that, and the run says busy (QUA-03). Restoring verifies in full before anything is moved, and never
puts an entry over an existing one. Places, names and notes of the quarantine are each family's own.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from hwctl.core.act import Deed, carry_out, require_unused
from hwctl.core.plan import Action, Outcome, Result, Step, Target, foreign, in_use, may_act
from hwctl.errors import Busy, Damaged, HwctlError, NotFound, Refused, Status, in_short
from hwctl.fs.deadline import Deadline
from hwctl.stores.base import AT_REST, Advance, Artifact, CheckOptions, Family, Level, State, Store, silent

_IN_PLACE = AT_REST | {State.CONSUMING, State.UNREADABLE}
"""States of an entry that has the place of its key."""

_WITH_FILES_OF_ORPHANS = frozenset({Family.PAGEWEIGHTS})
"""Where an orphan is files of an artifact, which reclaim-stale may have to leave to a person."""

MAY_BE_RESTORED = frozenset({State.DENIED, State.QUARANTINED})


def plan(target: Target, reason: str, words: Sequence[str], *, other_users: bool = False) -> Step:
    """The step that sets one named entry aside; ``words`` are the command line, for a refusal."""
    artifact = _entry(target)
    if artifact.state is State.QUARANTINED:
        return Step(target.store, artifact, Action.KEEP, "it is quarantined already")
    orphan = artifact.state is State.ORPHAN and artifact.family in _WITH_FILES_OF_ORPHANS
    if not may_act(target.store, artifact, other_users=other_users):
        return foreign(target, artifact, words)
    if artifact.state not in AT_REST and not orphan:
        why = f"its state is {artifact.state}: only an artifact at rest can be quarantined"
        return Step(target.store, artifact, Action.KEEP, why, status=Status.REFUSED)
    users = in_use(target.store, artifact)
    return Step(target.store, artifact, Action.QUARANTINE, reason, status=Status.BUSY, in_use=users)


def set_aside(step: Step, wait: Deadline) -> Outcome:
    """Move the entry into quarantine; while it is leased, deny it to new readers instead."""
    return carry_out(step, _set_aside, wait, _unused, met_busy=_deny)


def _unused(step: Step, now: Artifact) -> str | None:
    """kt-kernel's consumer takes no lease, and finds its files by their paths: it would lose them."""
    require_unused(step, now)
    return None


def _set_aside(step: Step, now: Artifact) -> Deed:
    moved = step.store.set_aside(now, step.reason)
    noted = moved.reason == step.reason
    remark = None if noted else "the reason could not be noted with it, for which there may be no room"
    return Deed(moved_to=moved.path, remark=remark)


def _deny(step: Step) -> str:
    if step.store.deny(step.artifact, step.reason):
        return "it is denied to new readers from now on; quarantine it again once it is let go"
    return "nothing was changed"


def find(stores: Sequence[Store], name: str, states: Collection[State] = MAY_BE_RESTORED) -> Target:
    """The entry in one of these states, by its name in quarantine, or by its key where only one has it.

    Raises NotFound, or Refused with the names when a key stands for several.
    """
    found = [
        Target(store, artifact)
        for store in stores
        for artifact in store.scan()
        if artifact.state in states and name in (artifact.key, artifact.path.name)
    ]
    if not found:
        where = ", ".join(str(store.root) for store in stores) or "no store"
        wanted = " or ".join(state for state in State if state in states)
        raise NotFound(
            f"{name}: nothing of that name or key is {wanted}; looked in {where}; name another store as PATH"
        )
    if len(found) > 1:
        paths = sorted(str(_entry(target).path) for target in found)
        raise Refused(
            f"{name} stands for {len(found)} entries; name one of: {', '.join(paths)}",
            details={"candidates": paths},
        )
    return found[0]


def plan_restore(target: Target, words: Sequence[str], *, other_users: bool = False) -> Step:
    """The step that moves a quarantined entry back, or lifts a mere denial."""
    artifact = _entry(target)
    if artifact.state not in MAY_BE_RESTORED:
        why = f"its state is {artifact.state}: it is neither quarantined nor denied"
        return Step(target.store, artifact, Action.KEEP, why, status=Status.REFUSED)
    if not may_act(target.store, artifact, other_users=other_users):
        return foreign(target, artifact, words)
    taken = _in_the_way(target.store, artifact)
    if taken is not None:
        why = f"not restored: {taken} is there already"
        return Step(target.store, artifact, Action.KEEP, why, status=Status.REFUSED)
    reason = "verify in full, then " + (
        "move back" if artifact.state is State.QUARANTINED else "lift the denial"
    )
    users = in_use(target.store, artifact)
    return Step(target.store, artifact, Action.RESTORE, reason, status=Status.BUSY, in_use=users)


def _in_the_way(store: Store, artifact: Artifact) -> Path | None:
    """What stands where a quarantined entry would go back to."""
    if artifact.state is not State.QUARANTINED:
        return None
    others = (entry for entry in store.scan(sizes=False) if entry.key == artifact.key)
    taken = [entry.path for entry in others if entry.state in _IN_PLACE]
    if artifact.family in _WITH_FILES_OF_ORPHANS:
        back = (store.root / file.name for file in artifact.path.iterdir())
        taken += [path for path in back if os.path.lexists(path)]
    return next(iter(taken), None)


def restore(options: CheckOptions, step: Step, wait: Deadline, advance: Advance = silent) -> Outcome:
    """Verify the entry in full as it would stand once restored, and only then move it back.

    The check goes first and under its own shared lease: the exclusive one would be in its way. Whether
    the entry is still the one that was checked is seen under the exclusive lease, as for every step.
    """
    if step.action is Action.KEEP:
        return carry_out(step, _restore, wait)
    try:
        checking = replace(options, advance=advance, restoring=True)
        report = step.store.check(step.artifact, Level.FULL, checking)
    except HwctlError as exc:
        status = step.status if isinstance(exc, Busy) else exc.status
        result = Result.SKIPPED if isinstance(exc, Busy) else Result.FAILED
        return Outcome(step, result, exc.message, status, error=exc)
    if not report.valid:
        message = f"not restored: {in_short(report.findings)}"
        error = Damaged(message, report.findings, path=step.artifact.path)
        return Outcome(step, Result.FAILED, message, error.status, error=error)
    return carry_out(step, _restore, wait)


def _restore(step: Step, now: Artifact) -> Deed:
    return Deed(moved_to=step.store.restore(now).path)


def _entry(target: Target) -> Artifact:
    if target.artifact is None:
        raise Refused(
            "a whole store cannot be quarantined or restored; name an entry", path=target.store.root
        )
    return target.artifact
