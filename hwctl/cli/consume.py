"""``hwctl consume``: take a ready kt-int8 tree's layers one by one, and free them as they are taken."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hwctl.cli import params, units
from hwctl.cli.answer import Answer
from hwctl.errors import Usage

EXAMPLES = """
  hwctl consume /dev/shm/kt-int8-job-17 --to /tmp/layers  fp32 safetensors, one file a layer
  hwctl consume /dev/shm/kt-int8-job-17 --each './load-layer --strict'  run with the layer's folder
  hwctl consume /dev/shm/kt-int8-job-17 --check-only --layers 0-3  read only
"""

_To = Annotated[
    Path | None,
    typer.Option(
        "--to",
        metavar="DIR",
        parser=units.path,
        show_default=False,
        help="Write every layer to DIR as fp32 safetensors, the parts put together; then it is deleted.",
    ),
]
_Each = Annotated[
    str | None,
    typer.Option(
        "--each",
        metavar="CMD",
        parser=units.word,
        show_default=False,
        help="Run CMD with the layer's folder as its last word; once it ended with 0 the layer is deleted."
        " Its output goes to stderr.",
    ),
]
_Discard = Annotated[bool, typer.Option("--discard", help="Hand the layers over to nobody: delete them.")]
_CheckOnly = Annotated[
    bool, typer.Option("--check-only", help="Read every layer in full and leave the tree as it is.")
]
_Layers = Annotated[
    units.Spans | None,
    typer.Option(
        "--layers",
        metavar="RANGE",
        parser=units.spans,
        show_default=False,
        help="With --check-only: just these layers.",
    ),
]


def register(app: typer.Typer) -> None:
    app.command("consume", epilog=EXAMPLES)(consume)


def consume(
    path: params.OnePath,
    to: _To = None,
    each: _Each = None,
    discard: _Discard = False,
    check_only: _CheckOnly = False,
    layers: _Layers = None,
    jobs: params.Jobs = None,
    dry_run: params.DryRun = False,
    yes: params.Yes = False,
    wait: params.Wait = None,
    json: params.Json = False,
    quiet: params.Quiet = False,
    verbose: params.Verbose = 0,
    color: params.Color = params.Colors.AUTO,
    family: params.FamilyOption = None,
) -> int:
    """Hand the layers of a kt-int8 tree over one by one, deleting each from memory once it is taken.

    A layer is validated, handed over, marked, deleted; with the last one the tree goes too. The lock on the
    tree is taken first, so that a second consumer is refused. Deleting is what consuming means: with --to and
    --each nothing is asked, and a layer is deleted once it was handed over, which is when its file is on the
    disk or CMD has ended with 0. --discard hands over to nobody and so asks first, or wants --yes. --dry-run
    is --check-only. A signal stops the run after the layer in hand; run again, it goes on with the layers
    that are left, which kt-kernel's own reader cannot. Under hwctl exec the lease that it holds is converted.
    """
    params.require_family(family, params.Family.KTINT8, "consume")
    given = [option for option in (to, each, discard or None, check_only or None) if option is not None]
    if len(given) != 1:
        raise Usage("say what happens to the layers: one of --to, --each, --discard and --check-only")
    if layers is not None and not check_only:
        raise Usage("--layers belongs to --check-only: a tree is consumed whole")
    with Answer(
        "consume",
        json=json,
        quiet=quiet,
        verbose=verbose,
        color=color,
        reads_only=check_only,
        dry_run=dry_run,
    ) as answer:
        from hwctl.cli import consuming

        if discard and not dry_run:
            answer.confirm(f"Delete every layer of {path}?", yes=yes)
        run = consuming.Run(answer, path, params.default_jobs(jobs), wait)
        if check_only or dry_run:
            run.check(layers)
        else:
            run.consume(to, each)
    return answer.exit_status
