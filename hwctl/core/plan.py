"""Plan and outcome: the values every deleting verb shares.

A plan is made under no lock and can be shown; ``core.act`` carries its steps out. Which steps there are
belongs to the verbs, how an outcome is worded or coloured to ``cli``.
"""

from __future__ import annotations

import enum
import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hwctl.core.other_users import refusal
from hwctl.errors import Busy, HwctlError, Status
from hwctl.fs.lock_table import Holder, Mode, holder
from hwctl.fs.openfiles import User
from hwctl.stores.base import Artifact, Removed, Store

NOTHING = Removed()


class Action(enum.StrEnum):
    """What a step does to its entry."""

    KEEP = "keep"
    REMOVE = "remove"
    QUARANTINE = "quarantine"
    RESTORE = "restore"


class Result(enum.StrEnum):
    """How a step ended; PLANNED is what a dry run says of a step it would carry out."""

    PLANNED = "planned"
    DONE = "done"
    SKIPPED = "skipped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Target:
    """What a verb was pointed at: one entry, or a whole store (``artifact`` None).

    ``named`` says that a person named it, so that leaving it alone is an answer and not routine; ``met``
    that nobody did, not even the administrator: what stands in its way is then nobody's failure.
    """

    store: Store
    artifact: Artifact | None = None
    named: bool = True
    met: bool = False

    @property
    def path(self) -> Path:
        return self.store.root if self.artifact is None else self.artifact.path


@dataclass(frozen=True, slots=True)
class Step:
    """One entry, what is to happen to it, and why.

    ``status`` is what it means for the run when the entry is left as it is: OK in a sweep, BUSY or
    REFUSED where the caller named it. ``in_use`` is what an attempt would have met when the plan was made,
    with the holders, so that the step will be passed over unless they let go.
    """

    store: Store
    artifact: Artifact
    action: Action
    reason: str
    evidence: tuple[str, ...] = ()
    status: Status = Status.OK
    in_use: Busy | None = None

    @property
    def acts(self) -> bool:
        """Whether carrying the step out is expected to change something."""
        return self.action is not Action.KEEP and self.in_use is None


@dataclass(frozen=True, slots=True)
class Outcome:
    """A step and what became of it. ``error`` is set when it failed, or was busy (then with holders).

    ``gone`` says that the entry was not there any more: somebody else had removed or moved it.
    """

    step: Step
    result: Result
    reason: str
    status: Status = Status.OK
    removed: Removed = NOTHING
    moved_to: Path | None = None
    error: HwctlError | None = None
    gone: bool = False


def kept(step: Step) -> Outcome:
    """The outcome of a step that leaves its entry alone."""
    reason = step.reason if step.in_use is None else step.in_use.message
    return Outcome(step, Result.SKIPPED, reason, step.status, error=step.in_use)


def foresee(step: Step) -> Outcome:
    """What a dry run says of a step: nothing is locked and nothing changes."""
    if step.acts:
        return Outcome(step, Result.PLANNED, step.reason)
    outcome = kept(step)
    if step.action is not Action.QUARANTINE or step.in_use is None:
        return outcome
    return replace(
        outcome, reason=f"{outcome.reason}; new readers would be turned away where there is a mark for it"
    )


def freed(outcomes: Iterable[Outcome]) -> Removed:
    """What all outcomes together removed."""
    return sum((outcome.removed for outcome in outcomes), NOTHING)


def may_act(store: Store, artifact: Artifact, *, other_users: bool) -> bool:
    """Whether this process changes the entry itself, or as root through its owner."""
    actor = store.actor(artifact)
    return actor == os.geteuid() or (other_users and os.geteuid() == 0)


def leased(artifact: Artifact) -> bool:
    return artifact.leases.shared > 0 or artifact.leases.exclusive > 0


def in_use(store: Store, artifact: Artifact) -> Busy | None:
    """Who leases an entry, builds another in its place, or uses it without a lease; None when nobody is
    known to."""
    leases = artifact.leases
    if leased(artifact):
        mode = Mode.EXCLUSIVE if leases.exclusive else Mode.SHARED
        found = _holders(leases.pids, mode)
        return _busy(artifact, f"{'locked' if leases.exclusive else 'leased'} by {_described(found)}", found)
    builders = artifact.detail.get("building_pids")
    if isinstance(builders, list) and builders:
        found = _holders(builders, Mode.EXCLUSIVE)
        return _busy(artifact, f"its build lock is held by {_described(found)}", found)
    return used(artifact, store.users(artifact))


def used(artifact: Artifact, users: Sequence[User]) -> Busy | None:
    """The same for who uses an entry without a lease."""
    return _busy(artifact, "; ".join(user.describe() for user in users), users) if users else None


def _busy(artifact: Artifact, message: str, found: Sequence[Holder | User]) -> Busy:
    return Busy(message, path=artifact.path, details={"holders": [one.as_dict() for one in found]})


def _holders(pids: Sequence[int], mode: Mode) -> list[Holder]:
    return [holder(pid, mode) for pid in pids or (0,)]


def _described(found: Sequence[Holder]) -> str:
    return ", ".join(one.describe() for one in found)


def foreign(target: Target, artifact: Artifact, words: Sequence[str]) -> Step:
    """The step that leaves another user's entry alone, and says how its owner would run the verb (REC-08).

    In a base that many users share, others' trees are routine; a store that is wholly another's is not.
    """
    actor = target.store.actor(artifact)
    why = refusal(actor, artifact.path, words)
    routine = not target.named or (target.artifact is None and _shared(target.store))
    status = Status.OK if routine else Status.REFUSED
    return Step(target.store, artifact, Action.KEEP, why.message, status=status)


def _shared(store: Store) -> bool:
    """Whether users other than its owner may make entries in the store, as in /dev/shm."""
    try:
        return bool(os.stat(store.root).st_mode & (stat.S_IWGRP | stat.S_IWOTH))
    except OSError:
        return False
