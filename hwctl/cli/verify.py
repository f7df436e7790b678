"""``hwctl verify``: is it sound, and if not, what exactly is wrong."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from hwctl.cli import metrics as metrics_file
from hwctl.cli import params, units, wishes
from hwctl.cli.answer import Answer
from hwctl.cli.document import missing_fields
from hwctl.cli.exits import error_object
from hwctl.cli.verdicts import Tally
from hwctl.core import verify as core
from hwctl.core.verify import Selection, Subject
from hwctl.errors import HwctlError, NotFound, Usage
from hwctl.fs.locks import Deadline
from hwctl.stores import locate
from hwctl.stores.base import CheckOptions, Family, Level, State

EXAMPLES = """
  hwctl verify /srv/weights  every artifact of a store, every byte
  hwctl verify --level size /dev/shm/kt-int8-job1  a quick look before a job starts
  hwctl verify /srv/weights --identity id.json --wait 10min  wait until one artifact is there and sound
  find /srv -name 'kt-int8-*' -print0 | hwctl verify --paths-from - -0  whatever another program lists
"""

_Paths = Annotated[
    list[Path] | None,
    typer.Argument(metavar="PATH", parser=units.path, help="Stores or artifacts.", show_default=False),
]
_Level = Annotated[
    Level, typer.Option("--level", help="How deep to look; each level includes the ones before.")
]
_PathsFrom = Annotated[
    str | None,
    typer.Option(
        "--paths-from",
        metavar="FILE",
        parser=units.word,
        show_default=False,
        help="Read more PATHs from FILE, one a line; - is stdin.",
    ),
]
_Null = Annotated[bool, typer.Option("-0", "--null", help="PATHs in FILE end with a NUL, not a newline.")]


def register(app: typer.Typer) -> None:
    app.command("verify", epilog=EXAMPLES)(verify)


def verify(
    paths: _Paths = None,
    level: _Level = Level.FULL,
    identity: wishes.Identity = None,
    authority: wishes.Authority = None,
    source: wishes.Source = None,
    checkpoint: wishes.For = None,
    numa: wishes.Numa = None,
    expect: wishes.Expect = None,
    paths_from: _PathsFrom = None,
    null: _Null = False,
    jobs: params.Jobs = None,
    wait: params.Wait = None,
    timeout: params.Timeout = None,
    rate: params.Rate = None,
    metrics: params.Metrics = None,
    json: params.Json = False,
    quiet: params.Quiet = False,
    verbose: params.Verbose = 0,
    color: params.Color = params.Colors.AUTO,
    family: params.FamilyOption = None,
) -> int:
    """Check artifacts under a shared lease, list every finding, and end with a verdict.

    Nothing is written, and no page cache is left behind that was not there. A whole store stands for all
    its artifacts; what is being built, set aside or no artifact is passed over. --wait waits for locks, and
    for an artifact that was named to become ready.
    """
    wished = wishes.Wishes(identity, authority, source, checkpoint, numa, tuple(expect or ()))
    wished.require_sense()
    if null and paths_from is None:
        raise Usage("-0 belongs to --paths-from")
    if not paths and paths_from is None:
        raise Usage("missing PATH")
    with Answer(
        "verify",
        json=json,
        quiet=quiet,
        verbose=verbose,
        color=color,
        reads_only=True,
        metrics=metrics_file.destination(metrics, "verify"),
    ) as answer:
        named = [*(paths or ()), *_listed(paths_from, null)]
        selection = _select(answer, named, family, wished)
        options = CheckOptions(
            jobs=params.default_jobs(jobs),
            rate=rate,
            deadline=Deadline.never() if timeout is None else Deadline.after(timeout),
            wait=Deadline.now() if wait is None else Deadline.after(wait),
        )
        _check(answer, selection, level, options)
    return answer.exit_status


def _listed(source: str | None, null: bool) -> list[Path]:
    """The paths in a list, as bytes: names need not be UTF-8. Empty lines are passed over."""
    if source is None:
        return []
    try:
        if source == "-":
            with os.fdopen(os.dup(0), "rb") as file:
                data = file.read()
        else:
            data = Path(source).read_bytes()
    except OSError as exc:
        raise Usage(f"cannot read the list of paths {source}: {exc.strerror or exc}") from exc
    return [Path(os.fsdecode(name)) for name in data.split(b"\0" if null else b"\n") if name]


def _select(answer: Answer, paths: Sequence[Path], family: Family | None, wished: wishes.Wishes) -> Selection:
    """What the paths and wishes mean; a path that leads nowhere is a failure and does not stop the others."""
    subjects: list[Subject] = []
    skipped = Counter[State]()
    for path in paths:
        try:
            match = locate.locate(path, family)
            store = locate.open_store(match)
            if wished.any:
                subjects += wished.subjects(match, store)
            elif (artifact := locate.entry(store, match)) is not None:
                subjects.append(Subject(store, artifact))
            else:
                found, others = core.whole(store)
                subjects += found
                skipped += others
        except HwctlError as exc:
            if isinstance(exc, Usage):
                raise
            answer.fail(exc)
            state = State.ABSENT if isinstance(exc, NotFound) else State.UNREADABLE
            answer.result({**missing_fields(path, state), "valid": None, "error": error_object(exc)})
    return core.select(subjects, skipped)


def _check(answer: Answer, selection: Selection, level: Level, options: CheckOptions) -> None:
    tally = Tally(answer, level, selection.skipped)
    total = sum(subject.artifact.bytes for subject in selection.subjects) if level is Level.FULL else None
    with answer.progress("verify", total) as progress:
        for verdict in core.verify(selection.subjects, level, replace(options, advance=progress.advance)):
            tally.add(verdict)
    tally.close()
