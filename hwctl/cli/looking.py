"""How ``hwctl inspect`` goes about it: from paths, or the default roots, to what is shown of them."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path

from hwctl.cli import views
from hwctl.cli.answer import Answer
from hwctl.cli.document import missing_fields
from hwctl.cli.exits import error_object
from hwctl.cli.targets import order, passing_over, stated, swept
from hwctl.cli.views import Report
from hwctl.core import inspect as core
from hwctl.core.order import Sort
from hwctl.errors import HwctlError, NotFound
from hwctl.stores import locate
from hwctl.stores.base import Family, Match, State


def report(
    answer: Answer, states: Iterable[State], match: Iterable[str], sort: Sort, *, manifest: bool
) -> Report:
    selection = core.Selection(frozenset(states), tuple(match), sort)
    return Report(answer, selection, manifest=manifest)


def show(answer: Answer, report: Report, paths: Sequence[Path], family: Family | None) -> None:
    """Show what the paths name, else HWCTL_ROOTS, else /dev/shm and the stores in it."""
    if named := stated(paths):
        _named(answer, report, named, family)
    else:
        for match in swept(answer, family):
            if (view := _met(answer, match)) is not None:
                report.store(view, named=False)
    report.close()


def _met(answer: Answer, match: Match) -> core.View | None:
    """A store that nobody named; None for one that cannot be looked into."""
    with passing_over(answer, match.root):
        return core.view(locate.open_store(match))
    return None


def _named(answer: Answer, report: Report, paths: Sequence[Path], family: Family | None) -> None:
    """Show what the paths name, sorted by family and store, whatever order they were given in."""
    found: dict[tuple[Family, Path, Path], Match] = {}
    for path in paths:
        try:
            match = locate.locate(path, family)
        except NotFound as exc:
            if family is None and _is_file(path):
                report.file(core.file_view(path))
            else:
                _missing(answer, report, path, exc)
        except HwctlError as exc:
            _missing(answer, report, path, exc)
        else:
            found[match.family, match.root, match.path] = match
    for match in sorted(found.values(), key=order):
        try:
            _show(report, match)
        except HwctlError as exc:
            _missing(answer, report, match.path, exc)


def _show(report: Report, match: Match) -> None:
    store = locate.open_store(match)
    artifact = locate.entry(store, match)
    if artifact is None:
        report.store(core.view(store))
    elif artifact.state is State.ABSENT:
        raise NotFound("is absent", path=match.path)
    else:
        report.entry(store, core.row_of(store, artifact))


def _missing(answer: Answer, report: Report, path: Path, error: HwctlError) -> None:
    """A PATH that cannot be shown is a row all the same, and its status is the run's."""
    answer.fail(error)
    state = State.ABSENT if isinstance(error, NotFound) else State.UNREADABLE
    report.count(state)
    answer.result({**missing_fields(path, state), "model": None, "error": error_object(error)})
    if not (answer.output.out.terminal and answer.output.err.terminal):
        # Who sees both has read it already.
        answer.record(*views.missing_record(path, state, error.message), problem=True)


def _is_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return False
