"""``hwctl quarantine``: set artifacts aside with a reason, or take one back."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hwctl.cli import params, units
from hwctl.cli.answer import Answer
from hwctl.errors import Usage

if TYPE_CHECKING:
    from hwctl.cli.targets import Resolver
    from hwctl.core.plan import Target

EXAMPLES = """
Examples:
  hwctl quarantine /store/artifacts/KEY --reason 'checksum differs on n17'
  hwctl quarantine --restore /store/quarantine/KEY.operator.0123...
  hwctl quarantine /store --restore KEY          (a false alarm: lifts a mere denial too)
"""

_Reason = Annotated[
    str | None,
    typer.Option(
        "--reason", metavar="TEXT", parser=units.word, show_default=False, help="Why; kept with the entry."
    ),
]
_Restore = Annotated[
    list[str] | None,
    typer.Option(
        "--restore",
        metavar="PATH|NAME|KEY",
        parser=units.word,
        show_default=False,
        help="Verify this entry in full, then move it back; repeatable.",
    ),
]
_MaybePaths = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="[PATH]...",
        parser=units.operand,
        show_default=False,
        help="Artifacts; stores with --restore.",
    ),
]


def register(app: typer.Typer) -> None:
    app.command("quarantine", epilog=EXAMPLES)(quarantine)


def quarantine(
    paths: _MaybePaths = None,
    reason: _Reason = None,
    restore: _Restore = None,
    dry_run: params.DryRun = False,
    yes: params.Yes = False,
    wait: params.Wait = None,
    jobs: params.Jobs = None,
    other_users: params.OtherUsers = False,
    json: params.Json = False,
    quiet: params.Quiet = False,
    verbose: params.Verbose = 0,
    color: params.Color = params.Colors.AUTO,
    family: params.FamilyOption = None,
) -> int:
    """Set artifacts aside so that no reader can mistake them, or take one back.

    The move is durable and keeps every byte. An artifact that is leased is not moved: where its family has a
    mark for it, new readers are turned away from then on, and the status is busy (11). --restore verifies in
    full first and never moves an entry over an existing one; for a key that is only denied it
    lifts the denial. NAME is looked for in the stores named by PATH, else in HWCTL_ROOTS, else in
    /dev/shm; a NAME with a slash is a path. inspect --state quarantined lists what is set aside; evict
    --quarantined removes it, with --all or --older-than 7d.
    """
    if (reason is None) == (restore is None):
        raise Usage("either --reason TEXT (to set aside) or --restore NAME (to take back) is needed")
    if reason is not None and not paths:
        raise Usage("--reason needs the PATH of an artifact")
    if paths and restore and all("/" in name for name in restore):
        raise Usage(f"PATH says where a NAME is looked for; {restore[0]} is a path itself")
    with Answer(
        "quarantine", json=json, quiet=quiet, verbose=verbose, color=color, dry_run=dry_run
    ) as answer:
        from hwctl.cli.outcomes import conduct, in_one, planned
        from hwctl.cli.targets import Resolver
        from hwctl.core import quarantine as core
        from hwctl.stores.base import CheckOptions

        words, resolver = sys.argv[1:], Resolver(answer, family)
        if reason is not None:
            steps = planned(
                answer,
                resolver.named(paths or []),
                lambda target: core.plan(target, reason, words, other_users=other_users),
            )
            conduct(answer, steps, in_one(core.set_aside), yes=yes, wait=wait)
        else:
            targets = _to_restore(answer, resolver, paths or [], restore or [])
            steps = planned(
                answer, targets, lambda target: core.plan_restore(target, words, other_users=other_users)
            )
            options = CheckOptions(jobs=params.default_jobs(jobs))
            conduct(answer, steps, partial(core.restore, options), yes=yes, wait=wait)
    return answer.exit_status


def _to_restore(answer: Answer, resolver: Resolver, paths: list[Path], names: list[str]) -> list[Target]:
    """The entries meant by ``--restore``; one that is not found does not stop the others."""
    from hwctl.cli.targets import called, once

    found = resolver.named(units.path(name) for name in names if "/" in name)
    plain = [name for name in names if "/" not in name]
    return once([*found, *called(answer, resolver.given(paths) if plain else [], plain)])
