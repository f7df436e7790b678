"""``hwctl publish ktint8``: from a checkpoint to a tree that kt-kernel loads, or to a store that stays."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hwctl.cli import params, units
from hwctl.cli.answer import Answer
from hwctl.errors import Usage

EXAMPLES = """
  hwctl publish ktint8 --from /models/Qwen3-30B-A3B --run-id job-4711 --numa 2
  hwctl publish ktint8 --from /dev/shm/kt-int8-job-4711.staging  finish what another converter wrote
  hwctl publish ktint8 --from /models/Qwen3-30B-A3B --persistent /srv/kt/qwen3  a store that stays
"""

_From = Annotated[
    Path,
    typer.Option(
        "--from",
        metavar="PATH",
        parser=units.path,
        show_default=False,
        help="A checkpoint, a staging tree, or (with --persistent) a ready tree.",
    ),
]
_RunId = Annotated[
    str | None,
    typer.Option(
        "--run-id",
        metavar="ID",
        parser=units.word,
        show_default=False,
        help="Name of the run the tree is for, needed without --persistent: 6 to 128 letters, digits,"
        " dots, hyphens or underscores.",
    ),
]
_Numa = Annotated[
    int | None,
    typer.Option(
        "--numa",
        metavar="N",
        parser=units.count,
        show_default=False,
        help="Parts to cut every matrix into, kt_threadpool_count; 1 unless said.",
    ),
]
_Layers = Annotated[
    units.Spans | None,
    typer.Option(
        "--layers",
        metavar="RANGE",
        parser=units.spans,
        show_default=False,
        help="Only these layers; of a staging tree: the layers it must have.",
    ),
]
_Persistent = Annotated[
    Path | None,
    typer.Option(
        "--persistent",
        metavar="DIR",
        parser=units.path,
        show_default=False,
        help="Write a store to DIR instead.",
    ),
]
_Base = Annotated[
    Path | None,
    typer.Option(
        "--base", metavar="DIR", parser=units.path, show_default=False, help="Folder of the trees; /dev/shm."
    ),
]


def register(app: typer.Typer) -> None:
    app.command("ktint8", epilog=EXAMPLES)(publish_ktint8)


def publish_ktint8(
    source: _From,
    run_id: _RunId = None,
    numa: _Numa = None,
    layers: _Layers = None,
    persistent: _Persistent = None,
    base: _Base = None,
    jobs: params.Jobs = None,
    dry_run: params.DryRun = False,
    yes: params.Yes = False,
    wait: params.PublishWait = None,
    json: params.Json = False,
    quiet: params.Quiet = False,
    verbose: params.Verbose = 0,
    color: params.Color = params.Colors.AUTO,
    family: params.FamilyOption = None,
) -> int:
    """Quantise the experts of a MoE checkpoint to AMX-INT8 and publish the tree by one rename.

    The bytes are those of kt-kernel's own writer. Room is reserved before the first of them, and a run that
    was killed is gone on with when it is started again. Prints the path of the ready root. A staging tree
    that another converter wrote is checked whole, every byte of it, and then published; one whose producer
    may still live is refused. A tree of this source that is there already is success: its names and sizes
    are checked, not its bytes, and a damaged one (65) stays until it is quarantined. --wait (10min unless
    said) waits for another process at the same run.
    """
    del yes  # nothing is asked; accepted like on every verb that writes
    params.require_family(family, params.Family.KTINT8, "publish ktint8")
    if persistent is not None and (run_id is not None or base is not None):
        raise Usage("--persistent takes no --run-id and no --base: DIR says where the store lies")
    with Answer(
        "publish ktint8", json=json, quiet=quiet, verbose=verbose, color=color, dry_run=dry_run
    ) as answer:
        from hwctl.cli.publishing_ktint8 import Wanted, publish

        wanted = Wanted(source, run_id, numa, layers, persistent, base)
        publish(
            answer, wanted, params.default_jobs(jobs), params.PUBLISH_WAIT_SECONDS if wait is None else wait
        )
    return answer.exit_status
