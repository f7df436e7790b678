"""How inspect shows stores, entries and files: tables for people, records for pipes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from hwctl.cli import text
from hwctl.cli.answer import Answer
from hwctl.cli.document import time_text
from hwctl.cli.output import Piece, Style, Styled
from hwctl.cli.tables import Column, table
from hwctl.cli.view_fields import file_fields, gauges, parsed, row_fields, shown, store_fields
from hwctl.core import inspect as core
from hwctl.core.inspect import DAMAGED_STATES, FileView, Row, Selection, View
from hwctl.stores.base import Death, State, Store

_COLUMNS = (
    Column("STATE"),
    Column("KEY", shrinks=True, least=12),
    Column("SIZE", "right"),
    Column("FILES", "right"),
    Column("USED", "right"),
    Column("HELD BY", shrinks=True, least=7),
    Column("REMARK", shrinks=True, least=6),
)


class Report:
    """What one run of inspect shows."""

    def __init__(self, answer: Answer, selection: Selection, *, manifest: bool) -> None:
        self._answer = answer
        self._selection = selection
        self._manifest = manifest
        self._states: Counter[State] = Counter()
        self._stale = 0
        self._bytes = 0
        self._freeable = 0
        self._stores: list[dict[str, object]] = []

    @property
    def _paints(self) -> bool:
        """Whether there is a person to draw tables for; under -q problems are told as records."""
        return self._answer.output.out.terminal and not self._answer.output.quiet

    def store(self, view: View) -> None:
        """A whole store: how full it is, then its rows."""
        answer, rows = self._answer, self._selection.rows(view.rows)
        self._stores.append(store_fields(view))
        self._freeable += view.freeable
        answer.gauges += gauges(view)
        for warning in view.warnings:
            answer.warn(warning)
        on_terminal = self._paints
        if on_terminal:
            answer.line(*heading(view))
            answer.line(usage(view))
        self._rows(view.store, rows, on_terminal)
        if on_terminal:
            answer.line(summary(view))
            answer.line("")

    def entry(self, store: Store, row: Row) -> None:
        """One entry that was named: its row and all that its family knows of it."""
        pages = core.pages_per_node(row.artifact)
        extra = {} if pages is None else {"pages_per_node": {str(node): n for node, n in pages.items()}}
        on_terminal = self._paints
        self._rows(store, [row], on_terminal, extra)
        if not on_terminal:
            return
        for name, value in row.artifact.detail.items():
            self._answer.line(f"  {name}: ", _plain(value))
        if pages is not None and len(pages) > 1:
            words = ", ".join(f"node {node}: {count}" for node, count in pages.items())
            self._answer.line(f"  pages in memory: {words}")

    def file(self, view: FileView) -> None:
        """A file outside of any store: what it is, and its tensors."""
        tensors = view.tensors(self._selection)
        state = State.READY if view.header is not None else State.DAMAGED
        self._states[state] += 1
        self._bytes += view.stat.st_size
        answer = self._answer
        answer.result(file_fields(view, state, tensors))
        for finding in view.findings:
            answer.line(f"{view.path}: ", *text.finding(finding), problem=True)
        if view.header is not None:
            count = text.number(len(view.header.tensors), "tensor")
            answer.line(text.state(state), f" {view.path}: {count}, {text.size(view.stat.st_size)}")
        for tensor in tensors:
            shape = "x".join(map(str, tensor.shape)) or "scalar"
            answer.record(tensor.dtype, shape, str(tensor.nbytes), tensor.name)

    def close(self) -> None:
        """Set the totals."""
        totals = self._answer.totals
        totals.update(
            entries=sum(self._states.values()),
            damaged=sum(self._states[state] for state in DAMAGED_STATES),
            stale=self._stale,
            bytes=self._bytes,
            freeable_bytes=self._freeable,
            states={state.value: count for state, count in sorted(self._states.items())},
            stores=self._stores,
        )
        if not self._states and not self._stores and not self._answer.errors:
            self._answer.note("no stores here; name one, or set HWCTL_ROOTS")

    def _rows(
        self, store: Store, rows: Sequence[Row], on_terminal: bool, extra: Mapping[str, object] | None = None
    ) -> None:
        answer = self._answer
        rows = core.with_models(store, rows)
        for row in rows:
            self._states[row.artifact.state] += 1
            self._stale += row.stale
            self._bytes += row.artifact.bytes
            documents = store.documents(row.artifact) if self._manifest else {}
            answer.result({**row_fields(row), **shown(documents, self._manifest), **(extra or {})})
            if not on_terminal:
                answer.record(*record(row), problem=row.artifact.state in DAMAGED_STATES)
                for name, data in documents.items():
                    answer.record("document", row.artifact.key, name, _plain(parsed(data)))
        if on_terminal and rows:
            answer.block(_table(rows, colour=answer.output.out.colour))
            for row in rows if answer.output.verbose else ():
                if words := remark(row):
                    answer.line(f"  {row.artifact.key}: {words}")
            self._documents(store, rows)

    def _documents(self, store: Store, rows: Sequence[Row]) -> None:
        for row in rows if self._manifest else ():
            for name, data in store.documents(row.artifact).items():
                self._answer.line(Styled(f"{row.artifact.key} {name}", Style.STRONG))
                for line in json.dumps(parsed(data), indent=2, ensure_ascii=False).splitlines():
                    self._answer.line(line)


def heading(view: View) -> Sequence[Piece]:
    store = view.store
    return (
        Styled(store.family.value, Style.STRONG),
        f" {store.root}  ({view.mount.fs_type}, owner uid {store.owner_uid})",
    )


def usage(view: View) -> str:
    """The bar of a store's use, against its budget where it has one, else against the file system."""
    room = view.room
    free = f"{text.size(room.free_bytes)} free of {text.size(room.total_bytes)} ({room.binding})"
    if view.budget is not None:
        return (
            f"{text.bar(view.size, view.budget)} {text.size(view.size)} of {text.size(view.budget)}; {free}"
        )
    taken = room.total_bytes - room.free_bytes
    return f"{text.bar(taken, room.total_bytes)} {text.size(view.size)} here; {free}"


def summary(view: View) -> str:
    """At a glance: what is ready, damaged, stale, held, and what could be freed."""
    words = [f"{count} {state.value}" for state, count in sorted(view.states.items())]
    stale = sum(row.stale for row in view.rows)
    held = sum(1 for row in view.rows if row.artifact.leases.shared or row.artifact.leases.exclusive)
    if stale:
        words.append(f"{stale} stale")
    if held:
        words.append(f"{held} in use")
    if view.freeable:
        words.append(f"up to {text.size(view.freeable)} can be freed")
    return ", ".join(words) or "empty"


def record(row: Row) -> Sequence[Piece]:
    """One line for a pipe: exact numbers, nothing cut."""
    artifact, leases = row.artifact, row.artifact.leases
    return (
        text.state(artifact.state),
        artifact.family.value,
        artifact.key,
        str(artifact.bytes),
        str(artifact.files),
        time_text(artifact.last_used) or "-",
        str(leases.shared),
        str(leases.exclusive),
        str(artifact.path),
        remark(row),
        row.model or "-",
    )


def missing_record(path: Path, state: State, message: str) -> Sequence[Piece]:
    return (text.state(state), "-", "-", "0", "0", "-", "0", "0", str(path), message, "-")


def remark(row: Row) -> str:
    """The reason of its state, and whether it is stale, with the evidence."""
    words = [row.artifact.reason] if row.artifact.reason else []
    if row.staleness is not None and row.staleness.death is not Death.NOT_STALE:
        words.append(f"{row.staleness.death.value}: {'; '.join(row.staleness.evidence)}")
    return "; ".join(words)


def _table(rows: Sequence[Row], *, colour: bool) -> str:
    """The rows, without columns that say nothing about any of them."""
    cells = [_cells(row) for row in rows]
    told = [index for index in range(len(_COLUMNS)) if any(row[index] not in ("", "-") for row in cells)]
    return table(
        [_COLUMNS[index] for index in told], ([row[index] for index in told] for row in cells), colour=colour
    )


def _cells(row: Row) -> Sequence[Piece]:
    artifact = row.artifact
    return (
        text.state(artifact.state),
        artifact.key,
        text.size(artifact.bytes),
        str(artifact.files),
        text.age(artifact.last_used),
        text.holders(artifact.leases),
        remark(row),
    )


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)
