"""Evicting whole stores: percentages made bytes, one plan for all stores shown, then walked one by one."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from hwctl.cli import text
from hwctl.cli.answer import Answer
from hwctl.cli.document import named
from hwctl.cli.outcomes import Tally, confirm, deadline_of, planned
from hwctl.cli.units import Size
from hwctl.core.evict import Walk, evict
from hwctl.core.evict_plan import Plan, plan
from hwctl.core.plan import Target, foresee
from hwctl.core.policy import BUDGET, Filters, Limits, Measure, Shortfall
from hwctl.errors import HwctlError, NoRoom, Status, Usage
from hwctl.fs import space
from hwctl.fs.space import Room
from hwctl.stores.base import State

_ELSEWHERE = {
    State.QUARANTINED: "in quarantine (evict --quarantined --all)",
    State.STAGING: "in staging (reclaim-stale)",
    State.TEMPORARY: "in temporaries (reclaim-stale)",
    State.CONSUMING: "in half-consumed trees (reclaim-stale)",
    State.ORPHAN: "in orphans (reclaim-stale)",
    State.FOREIGN: "in files that are not hwctl's",
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """The limits as they were asked for: shares become bytes once the store is known."""

    max_size: Size | None
    min_free: Size | None
    older_than: int | None
    keep: int | None
    everything: bool

    @property
    def any(self) -> bool:
        return self.everything or self._limited

    @property
    def _limited(self) -> bool:
        return any(limit is not None for limit in (self.max_size, self.min_free, self.older_than, self.keep))

    def require_sense(self) -> None:
        """Raise Usage for options that contradict each other."""
        if self.everything and self._limited:
            raise Usage("--all leaves nothing to limit; give it alone")

    def narrows(self, filters: Filters) -> bool:
        """Whether any option was given that chooses among the entries of a store."""
        return self.any or bool(filters.match or filters.exclude or filters.min_age)

    def require_fit(self, *, stores: bool, entries: bool, filters: Filters) -> None:
        """Raise Usage where the options do not go with what the PATHs name."""
        if stores and entries:
            raise Usage("stores and single entries cannot be evicted in one go")
        if entries and self.narrows(filters):
            raise Usage("limits and filters are for stores; a PATH that names an entry is removed as it is")
        if stores and not self.any:
            raise Usage("a store needs a limit: --max-size, --min-free, --older-than, --keep or --all")

    def limits(self, room: Room) -> Limits:
        """NoRoom for a wish that no eviction can fulfil: it would empty the store and fail all the same."""
        whole = room.total_bytes
        min_free = None if self.min_free is None else self.min_free.of(whole)
        if min_free is not None and min_free >= whole:
            size, most = text.size(min_free), text.size(whole)
            words = f"--min-free asks for {size}, the {room.binding} has {most} in all; nothing was removed"
            raise NoRoom(words, details={"wanted": min_free, "total_bytes": whole, "binding": room.binding})
        return Limits(
            max_size=None if self.max_size is None else self.max_size.of(whole),
            min_free=min_free,
            older_than=self.older_than,
            keep=self.keep,
            everything=self.everything,
        )


def evict_stores(
    answer: Answer,
    stores: Sequence[Target],
    wanted: Wanted,
    filters: Filters,
    *,
    yes: bool,
    wait: float | None,
    other_users: bool,
) -> None:
    """Plan every store, have the plans confirmed together, carry them out and sum up."""

    def plan_of(target: Target) -> Plan:
        limits = wanted.limits(space.room(target.store.root))
        return plan(target, limits, filters, sys.argv[1:], other_users=other_users)

    plans = planned(answer, stores, plan_of)
    foreseen = [outcome.step for made in plans for outcome in Walk(made).steps(foresee)]
    confirm(answer, foreseen, yes=yes, wait=wait)
    tally, deadline, short, bound = Tally(answer), deadline_of(wait), [], []
    whole = sum(step.artifact.bytes for step in foreseen)
    with answer.progress("evict", whole) as progress:
        for made in plans:
            walk = Walk(made)
            try:
                for outcome in walk.steps(foresee) if answer.dry_run else evict(walk, deadline):
                    tally.add(outcome)
                    progress.advance(outcome.step.artifact.bytes)
            except HwctlError as exc:
                answer.fail(exc)  # such as a rival at work: how the store stands is not known
                continue
            missed = _account(answer, walk)
            short += missed
            if not missed:
                bound += _binding(answer, walk)
    words = [tally.close(), *short, *bound]
    if not tally.outcomes:
        words += [f"{made.store.root}: {rest}" for made in plans if (rest := _left_out(made))]
    answer.close_with("; ".join(words), Status.NO_ROOM if short else Status.OK)


def _account(answer: Answer, walk: Walk) -> list[str]:
    """Enter how the store stands now into the totals; the sentences about targets it does not reach."""
    made, ledger = walk.plan, walk.ledger
    shortfalls = walk.shortfalls()
    row: dict[str, object] = {
        "family": made.store.family.value,
        **named("store", made.store.root),
        "size": ledger.size,
        "free_bytes": ledger.free,
        "entries": ledger.count,
        "bound_by": ledger.binding()[1],
        "max_size": ledger.binding()[0],
        "elsewhere": {state.value: size for state, size in sorted(made.elsewhere.items())},
        "shortfalls": [_shortfall_fields(short) for short in shortfalls],
    }
    rows = answer.totals.setdefault("stores", [])
    assert isinstance(rows, list)
    rows.append(row)
    if made.barred:
        return []
    words = [f"{made.store.root}: {_sentence(short)}{_reasons(made)}" for short in shortfalls]
    for sentence in words:
        answer.errors.append(NoRoom(sentence, path=made.store.root, retryable=True, details=row))
    return words


def _binding(answer: Answer, walk: Walk) -> list[str]:
    """Which limit binds a store within its --max-size, if that is not the one that was asked for (EVI-07)."""
    ledger, root = walk.ledger, walk.plan.store.root
    asked = ledger.limits.max_size
    if asked is None or walk.plan.barred:
        return []
    most, by = ledger.binding()
    if by == BUDGET:
        answer.note(f"{root}: bound by --max-size {text.size(most)}", verbosity=1)
        return []
    return [f"{root}: bound by the {by} ({text.size(most)}) and not by --max-size {text.size(asked)}"]


def _shortfall_fields(short: Shortfall) -> dict[str, object]:
    return {
        "measure": short.measure.value,
        "wanted": short.wanted,
        "have": short.have,
        "remainder": short.remainder,
        "bound_by": short.bound_by,
    }


def _sentence(short: Shortfall) -> str:
    if short.measure is Measure.COUNT:
        left = text.number(short.have, "entry is", "entries are")
        return f"{left} left, {short.remainder} more than --keep {short.wanted}"
    have, wanted, rest = (text.size(size) for size in (short.have, short.wanted, short.remainder))
    if short.measure is Measure.FREE:
        return f"{have} free, {rest} less than the {wanted} wanted"
    by = "--max-size" if short.bound_by == BUDGET else f"the {short.bound_by}"
    return f"{have} in use, {rest} more than the {wanted} that {by} allows"


def _left_out(made: Plan) -> str:
    """What a store holds beside that was left out, unless a target that holds already made all of it moot."""
    return "" if made.limits.targets else _elsewhere(made)


def _reasons(made: Plan) -> str:
    found = _elsewhere(made)
    return f"; {found}" if found else ""


def _elsewhere(made: Plan) -> str:
    return ", ".join(
        f"{text.size(size)} {_ELSEWHERE[state]}"
        for state, size in made.elsewhere.items()
        if state in _ELSEWHERE
    )
