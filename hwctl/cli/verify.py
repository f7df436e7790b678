"""``hwctl verify``: is it sound, and if not, what exactly is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hwctl.cli import params, units
from hwctl.cli.answer import Answer
from hwctl.errors import Usage
from hwctl.stores.base import Level

EXAMPLES = """
  hwctl verify /srv/weights  every artifact of a store, every byte
  hwctl verify --level size /dev/shm/kt-int8-job-17  a quick look before a job starts
  hwctl verify /srv/weights --identity id.json --wait 10min  wait until one artifact is there and sound
  find /srv -name 'kt-int8-*' -print0 | hwctl verify --paths-from - -0  whatever another program lists
"""

_Paths = Annotated[
    list[Path] | None,
    typer.Argument(metavar="PATH", parser=units.operand, help="Stores or artifacts.", show_default=False),
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


_Identity = Annotated[
    Path | None,
    typer.Option(
        "--identity",
        metavar="FILE",
        parser=units.path,
        show_default=False,
        help="In the host weight store PATH: the artifact of this identity.",
    ),
]
_Authority = Annotated[
    Path | None,
    typer.Option(
        "--authority",
        metavar="FILE",
        parser=units.path,
        show_default=False,
        help="In the page cache PATH: the page of this authority. A page as PATH must be that one.",
    ),
]
_Source = Annotated[
    Path | None,
    typer.Option(
        "--source",
        metavar="OBJECT",
        parser=units.path,
        show_default=False,
        help="In the page cache PATH: the pages made from this source object. A page as PATH must be one.",
    ),
]
_For = Annotated[
    Path | None,
    typer.Option(
        "--for",
        metavar="CHECKPOINT",
        parser=units.path,
        show_default=False,
        help="The kt-int8 tree PATH must fit this model.",
    ),
]
_Numa = Annotated[
    int | None,
    typer.Option(
        "--numa", metavar="N", parser=units.count, show_default=False, help="Parts it must have, with --for."
    ),
]
_Expect = Annotated[
    list[str] | None,
    typer.Option(
        "--expect",
        metavar="KEY=VALUE",
        parser=units.word,
        show_default=False,
        help="The kt-int8 tree PATH must have layers=RANGE, numa=N, experts=N, hidden=N or intermediate=N;"
        " repeatable.",
    ),
]


def register(app: typer.Typer) -> None:
    app.command("verify", epilog=EXAMPLES)(verify)


def verify(
    paths: _Paths = None,
    level: params.LevelOption = Level.FULL,
    identity: _Identity = None,
    authority: _Authority = None,
    source: _Source = None,
    checkpoint: _For = None,
    numa: _Numa = None,
    expect: _Expect = None,
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
    its artifacts; what is being built, set aside or no artifact is passed over, and a store that is empty is
    ok (0): name the artifact, or --identity, --authority or --source, where one must be there. --wait waits
    for locks, and for an artifact that was named to become ready.
    """
    if null and paths_from is None:
        raise Usage("-0 belongs to --paths-from")
    if not paths and paths_from is None:
        raise Usage("missing PATH")
    from hwctl.cli import verifying
    from hwctl.cli.metrics import destination
    from hwctl.cli.verdicts import Tally
    from hwctl.cli.wishes import Wishes

    wishes = Wishes(identity, authority, source, checkpoint, numa, tuple(expect or ()))
    wishes.require_sense()
    with Answer(
        "verify",
        json=json,
        quiet=quiet,
        verbose=verbose,
        color=color,
        reads_only=True,
        metrics=destination(metrics, "verify"),
    ) as answer:
        named = [*(paths or ()), *verifying.listed(paths_from, null)]
        tally = Tally(answer, level)
        options = verifying.options(jobs, wait, timeout, rate)
        selection = verifying.select(tally, named, family, wishes, options.wait.earlier(options.deadline))
        verifying.check(answer, tally, selection, level, options)
    return answer.exit_status
