"""Options and arguments that several commands share, each defined once.

A command takes them by annotation, so help, man pages, completions and parsing have one source:
``def verify(paths: Paths, jobs: Jobs = None, json: Json = False, …)``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from hwctl.cli import environment, units
from hwctl.cli.output import Colors
from hwctl.errors import Usage
from hwctl.stores.base import Family, Level

__all__ = ["Colors", "Family", "Level"]

Paths = Annotated[
    list[Path],
    typer.Argument(metavar="PATH", parser=units.operand, help="Stores or artifacts.", show_default=False),
]
OnePath = Annotated[
    Path, typer.Argument(metavar="PATH", parser=units.operand, help="An artifact.", show_default=False)
]

# Common to every command.
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only problems.")]
Verbose = Annotated[
    int,
    typer.Option("--verbose", "-v", count=True, metavar="", show_default=False, help="Say more; repeatable."),
]
Color = Annotated[Colors, typer.Option("--color", help="Colour the words of a state.")]
FamilyOption = Annotated[
    Family | None,
    typer.Option("--family", help="Take PATH as a store of this family only.", show_default=False),
]

# Verbs that write.
DryRun = Annotated[
    bool, typer.Option("--dry-run", "-n", help="Print the plan that would run; change nothing.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def _wait(unless_given: str) -> Any:
    return typer.Option(
        "--wait",
        metavar="DURATION",
        parser=units.duration,
        envvar=environment.WAIT,
        show_default=False,
        help=f"How long to wait for locks held by others; {unless_given} unless given.",
    )


Wait = Annotated[float | None, _wait("not at all")]
PUBLISH_WAIT_SECONDS = 600.0
PublishWait = Annotated[float | None, _wait("10min")]
"""Who publishes joins another builder of the same, and so waits for it."""

LevelOption = Annotated[
    Level, typer.Option("--level", help="How deep to look; each level includes the ones before.")
]

# How the work goes about it.
_MOST_JOBS = 8
Jobs = Annotated[
    int | None,
    typer.Option(
        "--jobs",
        metavar="N",
        parser=units.count,
        envvar=environment.JOBS,
        show_default=False,
        help=f"How many files to work on at once, which never changes the output; one per processor, at most"
        f" {_MOST_JOBS}, unless given.",
    ),
]
Timeout = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        metavar="DURATION",
        parser=units.duration,
        show_default=False,
        help="Give up after this long.",
    ),
]
Rate = Annotated[
    int | None,
    typer.Option(
        "--rate",
        metavar="SIZE",
        parser=units.rate,
        show_default=False,
        help="Read at most this much per second.",
    ),
]

# Which entries.
Match = Annotated[
    list[str] | None,
    typer.Option(
        "--match",
        metavar="GLOB",
        parser=units.glob,
        show_default=False,
        help="Only keys that match; repeatable.",
    ),
]
Exclude = Annotated[
    list[str] | None,
    typer.Option(
        "--exclude",
        metavar="GLOB",
        parser=units.glob,
        show_default=False,
        help="Not keys that match; repeatable.",
    ),
]

OtherUsers = Annotated[
    bool, typer.Option("--other-users", help="As root: act in other users' stores, as those users.")
]
Metrics = Annotated[
    Path | None,
    typer.Option(
        "--metrics",
        metavar="FILE",
        parser=units.path,
        show_default=False,
        help="Write a Prometheus text file, also when the run fails.",
    ),
]


def default_jobs(jobs: int | None) -> int:
    """What ``--jobs`` says, else one per usable processor, up to a point."""
    import os

    return jobs if jobs is not None else min(_MOST_JOBS, len(os.sched_getaffinity(0)))


def require_family(given: Family | None, only: Family, verb: str) -> None:
    """Raise Usage where --family asks a verb of one family for another."""
    if given not in (None, only):
        raise Usage(f"{verb} is of the family {only} only")
