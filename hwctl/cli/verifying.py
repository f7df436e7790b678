"""How ``hwctl verify`` goes about it: from paths and wishes to subjects, from subjects to verdicts."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hwctl.cli import params, text, units
from hwctl.cli.answer import Answer
from hwctl.cli.verdicts import Tally
from hwctl.cli.wishes import Wishes
from hwctl.core import verify as core
from hwctl.core.verify import Selection, Subject, Verdict
from hwctl.errors import HwctlError, Usage
from hwctl.fs.deadline import Deadline
from hwctl.stores import locate
from hwctl.stores.base import CheckOptions, Family, Level, State

LIST_LIMIT = 64 << 20
"""Bytes of a list of paths: a million of them fit, and a device that never ends does not fill the memory."""


def listed(source: str | None, null: bool) -> list[Path]:
    """The paths in a list, as bytes: names need not be UTF-8. Empty lines are passed over."""
    if source is None:
        return []
    try:
        with os.fdopen(os.dup(0), "rb") if source == "-" else open(units.path(source), "rb") as file:
            data = file.read(LIST_LIMIT + 1)
    except OSError as exc:
        raise Usage(f"cannot read the list of paths {source}: {exc.strerror or exc}") from exc
    if len(data) > LIST_LIMIT:
        raise Usage(f"the list of paths {source} is longer than {text.size(LIST_LIMIT)}")
    if not null and b"\0" in data:
        raise Usage(f"the list of paths {source} holds NUL bytes; a list separated by them needs -0")
    return [Path(os.fsdecode(name)) for name in data.split(b"\0" if null else b"\n") if name]


def select(
    tally: Tally, paths: Sequence[Path], family: Family | None, wishes: Wishes, wait: Deadline
) -> Selection:
    """What the paths and wishes mean; a path that leads nowhere is told at once and stops no other."""
    subjects: list[Subject] = []
    skipped = Counter[State]()
    faulty: dict[Path, Verdict] = {}
    for path in paths:
        try:
            match = locate.locate_in_time(path, family, wait, awaited=wishes.identity is not None)
            store = locate.open_store(match)
            if wishes.any:
                subjects += wishes.subjects(match, store)
            elif (artifact := locate.entry(store, match)) is not None:
                subjects.append(Subject(store, artifact))
            else:
                found, others = core.whole(store)
                subjects += found
                skipped += others
                if not found and (verdict := core.of_itself(store, tally.level)) is not None:
                    faulty[store.root] = verdict
        except HwctlError as exc:
            if isinstance(exc, Usage):
                raise
            tally.miss(path, exc)
    for root in sorted(faulty):
        tally.add(faulty[root])
    return core.select(subjects, skipped)


def options(jobs: int | None, wait: float | None, timeout: float | None, rate: int | None) -> CheckOptions:
    return CheckOptions(
        jobs=params.default_jobs(jobs),
        rate=rate,
        deadline=Deadline.never() if timeout is None else Deadline.after(timeout),
        wait=Deadline.now() if wait is None else Deadline.after(wait),
    )


def check(answer: Answer, tally: Tally, selection: Selection, level: Level, options: CheckOptions) -> None:
    total = sum(subject.artifact.bytes for subject in selection.subjects) if level is Level.FULL else None
    with answer.progress("verify", total) as progress:
        for verdict in core.verify(selection.subjects, level, replace(options, advance=progress.advance)):
            tally.add(verdict)
    tally.close(selection.skipped)
