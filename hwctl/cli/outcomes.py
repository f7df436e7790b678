"""How the deleting verbs show a plan and tell what became of it: rows, records, totals, the question."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from hwctl.cli import text
from hwctl.cli.answer import Answer
from hwctl.cli.document import artifact_fields, finding_fields, named
from hwctl.cli.exits import Verdict, as_failure, error_object
from hwctl.cli.metrics import Gauge
from hwctl.cli.output import Style, Styled, Whole
from hwctl.core.plan import Action, Outcome, Result, Step, Target, foresee, freed
from hwctl.errors import Damaged, HwctlError, Status, Usage
from hwctl.fs.deadline import Deadline
from hwctl.stores.base import Advance, Removed

_STYLES = {
    Result.DONE: Style.GOOD,
    Result.PLANNED: Style.STRONG,
    Result.SKIPPED: Style.FAINT,
    Result.FAILED: Style.BAD,
}
_QUESTIONS = {Action.REMOVE: "Remove", Action.QUARANTINE: "Set aside", Action.RESTORE: "Restore"}

T = TypeVar("T")


class Tally:
    """The outcomes of one run as they come in, each told at once, and their totals at the end."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.outcomes: list[Outcome] = []

    def add(self, outcome: Outcome) -> None:
        """Tell one outcome, in the document or as a record, with its status."""
        self.outcomes.append(outcome)
        answer, artifact = self._answer, outcome.step.artifact
        answer.result(outcome_fields(outcome), outcome.status)
        word = Styled(outcome.result.value, _STYLES[outcome.result])
        removed = outcome.result is Result.DONE and outcome.step.action is Action.REMOVE
        size = outcome.removed.bytes_freed if removed else artifact.allocated
        problem = outcome.status is not Status.OK
        action, path = outcome.step.action.value, str(artifact.path)
        if answer.output.out.terminal:
            # Keys fill a line of most terminals by themselves; the evidence reads better below.
            answer.line(word, f" {action} ", Whole(path), problem=problem)
            named = "" if outcome.result is Result.DONE else _model(outcome.step)
            answer.line(f"    {text.size(size)}; {named}{outcome.reason}", problem=problem)
        else:
            answer.record(word, action, str(size), path, outcome.reason, problem=problem)
        if outcome.moved_to == artifact.path:
            if outcome.step.action is Action.RESTORE:
                answer.note(f"the deny marker of {artifact.path} was lifted")
        elif outcome.moved_to is not None:
            answer.note(f"{artifact.path} is now {outcome.moved_to}")
        if outcome.error is not None:
            answer.errors.append(outcome.error)
        elif problem:
            answer.errors.append(Verdict(outcome.status, outcome.reason, artifact.path))

    def close(self) -> str:
        """Write the totals into the document; the sentence that sums them up."""
        counts = Counter(outcome.result for outcome in self.outcomes)
        removed = freed(self.outcomes)
        totals = self._answer.totals
        totals.update({result.value: counts[result] for result in Result})
        totals.update(
            files=removed.files, bytes_freed=removed.bytes_freed, still_mapped_bytes=removed.still_mapped
        )
        self._measure(counts, removed)
        words = [
            f"{counts[result]} {result.value}{self._planned(result)}" for result in Result if counts[result]
        ]
        if removed.bytes_freed:
            words.append(f"{text.size(removed.bytes_freed)} freed{_where(self.outcomes)}")
        if removed.still_mapped:
            words.append(f"{text.size(removed.still_mapped)} not free yet: still open or mapped")
        return ", ".join(words) or ("nothing was done" if self._answer.errors else "nothing to do")

    def _planned(self, result: Result) -> str:
        """The size of what would go, where something would: nothing was freed yet that could be told."""
        if result is not Result.PLANNED:
            return ""
        steps = [outcome.step for outcome in self.outcomes if outcome.result is result]
        going = [step for step in steps if step.action is Action.REMOVE] or steps
        return f" ({text.size(sum(step.artifact.allocated for step in going))})"

    def _measure(self, counts: Counter[Result], removed: Removed) -> None:
        verb = {"verb": self._answer.verb}
        entries = "Entries of the last run by what became of them."
        self._answer.gauges += [
            *(Gauge("run_entries", entries, counts[result], verb | {"outcome": result}) for result in Result),
            Gauge("run_freed_bytes", "Bytes that the last run gave back.", removed.bytes_freed, verb),
            Gauge(
                "run_still_mapped_bytes",
                "Bytes deleted by the last run that others keep open or mapped.",
                removed.still_mapped,
                verb,
            ),
        ]


def _where(outcomes: Iterable[Outcome]) -> str:
    """Whose bytes were freed, where the disk's blocks are far from the sizes that were told before."""
    done = [outcome for outcome in outcomes if outcome.result is Result.DONE]
    told = sum(outcome.step.artifact.bytes for outcome in done)
    given = sum(outcome.removed.bytes_freed for outcome in done)
    return "" if told * 0.9 <= given <= told * 1.1 else " on disk"


def outcome_fields(outcome: Outcome) -> dict[str, object]:
    """One row of a deleting verb's document."""
    step, error = outcome.step, outcome.error
    findings = [finding_fields(finding) for finding in error.findings] if isinstance(error, Damaged) else None
    return {
        **artifact_fields(step.artifact),
        "action": step.action.value,
        "reason": outcome.reason,
        "evidence": list(step.evidence),
        "outcome": outcome.result.value,
        "bytes_freed": outcome.removed.bytes_freed,
        "still_mapped_bytes": outcome.removed.still_mapped,
        **named("moved_to", outcome.moved_to),
        "error": None if error is None else error_object(error),
        **({} if findings is None else {"findings": findings}),
    }


def planned(answer: Answer, targets: Iterable[Target], plan: Callable[[Target], T]) -> list[T]:
    """What ``plan`` makes of each target; one that cannot be planned is a failure that stops no other."""
    plans: list[T] = []
    for target in targets:
        try:
            plans.append(plan(target))
        except Usage:
            raise
        except (HwctlError, OSError) as exc:
            failure = as_failure(exc, "cannot be looked at")
            failure.path = failure.path or str(target.path)
            if target.met:
                answer.warn(f"{target.path}: left alone: {failure.message}")
            else:
                answer.fail(failure)
    return plans


Act = Callable[[Step, Deadline, Advance], Outcome]
"""Carries a step out, and tells of the bytes of its entry as they are worked through."""


def in_one(act: Callable[[Step, Deadline], Outcome]) -> Act:
    """An act that does not read its entry, so that all of the bytes are told at its end."""

    def told(step: Step, wait: Deadline, advance: Advance) -> Outcome:
        outcome = act(step, wait)
        advance(step.artifact.bytes)
        return outcome

    return told


def conduct(answer: Answer, steps: Sequence[Step], act: Act, *, yes: bool, wait: float | None) -> None:
    """Show the plan, have it confirmed, carry it out step by step and sum up; a dry run only shows it."""
    confirm(answer, steps, yes=yes, wait=wait)
    tally, deadline = Tally(answer), deadline_of(wait)
    whole = sum(step.artifact.bytes for step in steps)
    with answer.progress(answer.verb, whole) as progress:
        for step in steps:
            tally.add(foresee(step) if answer.dry_run else act(step, deadline, progress.advance))
    answer.close_with(tally.close())


def confirm(answer: Answer, steps: Iterable[Step], *, yes: bool, wait: float | None) -> None:
    """Show what would change and ask; raises Refused on a no. A plan that changes nothing needs no answer."""
    acting = [step for step in steps if step.acts or _may_act_yet(step, wait)]
    if not acting or yes or answer.dry_run:
        return
    asked = [
        _question(action, [step for step in acting if step.action is action])
        for action in sorted({step.action for step in acting}, key=list(Action).index)
    ]
    answer.confirm(f"{'; '.join(asked)}?", yes=yes, plan=list(map(_said, acting)))


def _question(action: Action, steps: Sequence[Step]) -> str:
    size = text.size(sum(step.artifact.allocated for step in steps))
    return f"{_QUESTIONS[action]} {text.number(len(steps), 'entry', 'entries')}, {size}"


def _said(step: Step) -> str:
    """A step of the plan, for whoever is asked about it."""
    size = text.size(step.artifact.allocated)
    return f"{step.action} {step.artifact.path} ({size}): {_model(step)}{step.reason}"


def _model(step: Step) -> str:
    """What an entry that is still there holds: a person who is asked about it cannot tell by a digest."""
    model = step.store.model(step.artifact)
    return "" if model is None else f"{model}; "


def _may_act_yet(step: Step, wait: float | None) -> bool:
    """Whoever uses the entry may let go within --wait; and what is to be set aside is denied meanwhile."""
    return step.in_use is not None and (wait is not None or step.action is not Action.REMOVE)


def deadline_of(wait: float | None) -> Deadline:
    """The end of ``--wait``, counted from now and for the whole run; without it nothing is waited for."""
    return Deadline.now() if wait is None else Deadline.after(wait)
