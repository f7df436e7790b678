"""Carrying out a step: take the exclusive lease, look again, act, record.

Whatever stands in the way of one step becomes that step's outcome, so that the rest goes on and running
twice is harmless. Steps on another user's entries are carried out by a child that has become the owner.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hwctl.core.other_users import as_owner, error_of, error_record, eyes_of_root
from hwctl.core.plan import NOTHING, Action, Outcome, Result, Step, kept, used
from hwctl.errors import (
    Busy,
    HwctlError,
    NotFound,
    Refused,
    Status,
    from_os_error,
)
from hwctl.fs.deadline import Deadline
from hwctl.fs.lock_table import Mode
from hwctl.stores.base import Artifact, Removed


@dataclass(frozen=True, slots=True)
class Deed:
    """What acting on a step brought about; ``remark`` is what whoever asked for it should know."""

    removed: Removed = NOTHING
    moved_to: Path | None = None
    remark: str | None = None


Act = Callable[[Step, Artifact], Deed]
"""Carries a step out, under its exclusive lease, on the entry as it is now."""

Again = Callable[[Step, Artifact], str | None]
"""Looks at the entry once more under the lease: why it must stay after all, or None."""


MetBusy = Callable[[Step], str | None]
"""Called when somebody else holds the entry's lease; what it did about that, as a clause, or None."""


def content(_step: Step, _now: Artifact) -> str | None:
    """An Again that asks nothing beyond what every step is asked."""
    return None


def require_unused(step: Step, now: Artifact) -> None:
    """Raise Busy when somebody uses the entry without a lease, and Refused when that cannot be seen."""
    busy = used(now, step.store.users(now, certain=True))
    if busy is not None:
        raise busy


def remove(step: Step, now: Artifact) -> Deed:
    """The Act of every verb that deletes."""
    return Deed(removed=step.store.remove(now))


def pass_by(_step: Step) -> None:
    """A MetBusy that leaves the entry and its holder in peace."""


def carry_out(
    step: Step, act: Act, wait: Deadline, again: Again = content, met_busy: MetBusy = pass_by
) -> Outcome:
    """Act on one step, as whoever may change the entry, and say what became of it.

    Raises no HwctlError and no OSError: they are outcomes.
    """
    if step.action is Action.KEEP:
        return kept(step)
    try:
        actor = step.store.actor(step.artifact)
        if actor == os.geteuid():
            return _measured(_attempt(step, act, wait, again, met_busy))
        gid = os.stat(step.artifact.path, follow_symlinks=False).st_gid
        reports = as_owner(actor, gid, lambda: [record(_attempt(step, act, wait, again, met_busy))])
        return [_measured(recorded(step, report)) for report in reports][-1]
    except FileNotFoundError:
        return gone(step)
    except (HwctlError, OSError) as exc:
        return _failed(step, exc)


def _attempt(step: Step, act: Act, wait: Deadline, again: Again, met_busy: MetBusy) -> Outcome:
    try:
        with step.store.lease(step.artifact, Mode.EXCLUSIVE, wait):
            now = step.store.look(step.artifact)
            if now is None:
                return gone(step)
            with eyes_of_root():
                objection = changed(step.artifact, now) or again(step, now)
            if objection is not None:
                return Outcome(step, Result.SKIPPED, objection, step.status)
            deed = act(step, now)
    except Busy as exc:
        return _busy(step, exc, met_busy)
    except NotFound:
        return gone(step)
    except (HwctlError, OSError) as exc:
        return _failed(step, exc)
    if deed.removed.left is not None:
        error = Refused(f"removed in part: {deed.removed.left}", path=step.artifact.path)
        return Outcome(step, Result.FAILED, error.message, error.status, deed.removed, error=error)
    reason = step.reason if deed.remark is None else f"{step.reason}; {deed.remark}"
    return Outcome(step, Result.DONE, reason, removed=deed.removed, moved_to=deed.moved_to)


def changed(planned: Artifact, now: Artifact) -> str | None:
    """Why ``now`` is not what was planned on: another entry under the same name, or another state."""
    if planned.inode != now.inode:
        return "another entry has taken its name since the plan was made"
    if planned.state != now.state:
        return f"its state is {now.state} now, it was {planned.state} when the plan was made"
    return None


def _busy(step: Step, exc: Busy, met_busy: MetBusy) -> Outcome:
    try:
        done = met_busy(step)
    except (HwctlError, OSError) as failure:
        return _failed(step, failure)
    reason = exc.message if done is None else f"{exc.message}; {done}"
    return Outcome(step, Result.SKIPPED, reason, step.status, error=exc)


def _measured(outcome: Outcome) -> Outcome:
    """Give an entry that the plan did not measure the sizes that its removal found."""
    step, removed = outcome.step, outcome.removed
    if step.artifact.files or not removed.files:
        return outcome
    allocated = removed.bytes_freed + removed.still_mapped
    artifact = replace(step.artifact, bytes=removed.size, allocated=allocated, files=removed.files)
    return replace(outcome, step=replace(step, artifact=artifact))


def gone(step: Step) -> Outcome:
    """Somebody else removed it first: what was wanted is so, and not one byte of it is counted (REC-09)."""
    return Outcome(step, Result.SKIPPED, "it is gone: somebody else has removed or moved it", gone=True)


def _failed(step: Step, exc: HwctlError | OSError) -> Outcome:
    if isinstance(exc, OSError):
        exc = from_os_error(exc, f"cannot {step.action} it", step.artifact.path)
    return Outcome(step, Result.FAILED, exc.message, exc.status, error=exc)


# What a child that acts for another user reports, and the way back.


def record(outcome: Outcome) -> dict[str, object]:
    """An outcome as JSON, but for its step."""
    removed, error = outcome.removed, outcome.error
    return {
        "result": outcome.result.value,
        "reason": outcome.reason,
        "status": int(outcome.status),
        "removed": [removed.files, removed.bytes_freed, removed.still_mapped, removed.size, removed.left],
        "moved_to": None if outcome.moved_to is None else str(outcome.moved_to),
        "error": None if error is None else error_record(error),
        "gone": outcome.gone,
    }


def recorded(step: Step, report: Mapping[str, Any]) -> Outcome:
    """The outcome that ``record`` wrote down."""
    moved_to = report["moved_to"]
    return Outcome(
        step,
        Result(report["result"]),
        report["reason"],
        Status(report["status"]),
        Removed(*report["removed"]),
        None if moved_to is None else Path(moved_to),
        None if report["error"] is None else error_of(report["error"]),
        report["gone"],
    )
