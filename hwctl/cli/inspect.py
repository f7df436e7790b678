"""``hwctl inspect``: what is there, who uses it, how full it is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hwctl.cli import params, units
from hwctl.cli.answer import Answer
from hwctl.core.order import Sort
from hwctl.stores.base import State

EXAMPLES = """
  hwctl inspect  all stores of this node
  hwctl inspect /srv/weights --state damaged --state incomplete  only what is broken
  hwctl inspect /srv/weights --json | jq .totals.freeable_bytes  how much could be freed
  hwctl inspect model.safetensors --match '*.q_proj.*' --sort size  the tensors of a file
"""

_Paths = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="PATH",
        parser=units.operand,
        help="Stores, artifacts or safetensors files; default HWCTL_ROOTS, else what is in /dev/shm.",
        show_default=False,
    ),
]
_LISTED = [state.value for state in State if state not in (State.VANISHED, State.ABSENT)]
"""What a scan can yield; the other two are of entries that were looked for."""

_States = Annotated[
    list[State] | None,
    typer.Option(
        "--state",
        metavar="STATE",
        help=f"Only entries in this state ({', '.join(_LISTED)}); repeatable.",
        show_default=False,
    ),
]
_Sort = Annotated[
    Sort, typer.Option("--sort", help="By key, by size (largest first), or by last use (oldest first).")
]
_Manifest = Annotated[bool, typer.Option("--manifest", help="Show the documents of each artifact too.")]


def register(app: typer.Typer) -> None:
    app.command("inspect", epilog=EXAMPLES)(inspect)


def inspect(
    paths: _Paths = None,
    state: _States = None,
    match: params.Match = None,
    sort: _Sort = Sort.KEY,
    manifest: _Manifest = False,
    metrics: params.Metrics = None,
    json: params.Json = False,
    quiet: params.Quiet = False,
    verbose: params.Verbose = 0,
    color: params.Color = params.Colors.AUTO,
    family: params.FamilyOption = None,
) -> int:
    """Show what is there: states, sizes, lease holders, stale candidates, damaged entries with a reason.

    No payload is read, no lock is taken and nothing is written. What is damaged shows in names, documents
    and, for host weights, sizes; bytes are for verify. On a terminal there is a table for each store,
    elsewhere one record a line, fields separated by tabs: state, family, key, bytes, files, last use, shared
    leases, exclusive leases, path, remark, model. A damaged row is an answer, not a failure.
    """
    from hwctl.cli import looking
    from hwctl.cli.metrics import destination

    with Answer(
        "inspect",
        json=json,
        quiet=quiet,
        verbose=verbose,
        color=color,
        reads_only=True,
        metrics=destination(metrics, "inspect"),
    ) as answer:
        report = looking.report(answer, state or (), match or (), sort, manifest=manifest)
        looking.show(answer, report, paths or (), family)
    return answer.exit_status
