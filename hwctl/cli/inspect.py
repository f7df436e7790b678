"""``hwctl inspect``: what is there, who uses it, how full it is."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from hwctl.cli import environment, params, units, views
from hwctl.cli import metrics as metrics_file
from hwctl.cli.answer import Answer
from hwctl.cli.document import missing_fields
from hwctl.cli.exits import error_object
from hwctl.core import inspect as core
from hwctl.core.inspect import Selection, Sort
from hwctl.errors import HwctlError, NotFound
from hwctl.stores import locate
from hwctl.stores.base import Family, Match, State

SHARED_MEMORY = Path("/dev/shm")

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
        parser=units.path,
        help="Stores, artifacts or safetensors files; default HWCTL_ROOTS, else what is in /dev/shm.",
        show_default=False,
    ),
]
_States = Annotated[
    list[State] | None,
    typer.Option("--state", help="Only entries in this state; repeatable.", show_default=False),
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

    No payload is read, no lock is taken and nothing is written. On a terminal there is a table for each
    store, elsewhere one record a line, fields separated by tabs: state, family, key, bytes, files, last use,
    shared leases, exclusive leases, path, remark. A damaged row is an answer, not a failure.
    """
    selection = Selection(frozenset(state or ()), tuple(match or ()), sort)
    with Answer(
        "inspect",
        json=json,
        quiet=quiet,
        verbose=verbose,
        color=color,
        reads_only=True,
        metrics=metrics_file.destination(metrics, "inspect"),
    ) as answer:
        report = views.Report(answer, selection, manifest=manifest)
        named = [*(paths or environment.roots())]
        if named:
            _named(answer, report, named, family)
        else:
            for found in sorted(locate.discover(SHARED_MEMORY, family), key=_order):
                report.store(core.view(locate.open_store(found)))
        report.close()
    return answer.exit_status


def _named(answer: Answer, report: views.Report, paths: Sequence[Path], family: Family | None) -> None:
    """Show what the paths name, sorted by family and store, whatever order they were given in."""
    found: dict[tuple[Family, Path, Path], Match] = {}
    for path in paths:
        try:
            match = locate.locate(path, family)
        except NotFound as exc:
            if family is None and _is_file(path):
                report.file(core.file_view(path))
            else:
                _missing(answer, path, exc)
        except HwctlError as exc:
            _missing(answer, path, exc)
        else:
            found[match.family, match.root, match.path] = match
    for match in sorted(found.values(), key=_order):
        try:
            _show(report, match)
        except HwctlError as exc:
            _missing(answer, match.path, exc)


def _show(report: views.Report, match: Match) -> None:
    store = locate.open_store(match)
    artifact = locate.entry(store, match)
    if artifact is None:
        report.store(core.view(store))
    elif artifact.state is State.ABSENT:
        raise NotFound("is absent", path=match.path)
    else:
        report.entry(store, core.row_of(store, artifact))


def _missing(answer: Answer, path: Path, error: HwctlError) -> None:
    """A PATH that cannot be shown is a row all the same, and its status is the run's."""
    answer.fail(error)
    state = State.ABSENT if isinstance(error, NotFound) else State.UNREADABLE
    answer.result({**missing_fields(path, state), "error": error_object(error)})
    answer.record(*views.missing_record(path, state, error.message), problem=True)


def _is_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return False


def _order(match: Match) -> tuple[str, str, str]:
    return (match.family.value, str(match.root), match.key or "")
