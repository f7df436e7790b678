"""How inspect shows stores, entries and files: tables for people, records for pipes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from hwctl.cli import text
from hwctl.cli.answer import Answer
from hwctl.cli.document import time_text
from hwctl.cli.output import Piece, Style, Styled, Whole
from hwctl.cli.paragraphs import cells, columns_there, wrapped
from hwctl.cli.view_fields import file_fields, gauges, parsed, remark, row_fields, shown, store_fields
from hwctl.core import inspect as core
from hwctl.core.inspect import FileView, Freeable, Row, Selection, View
from hwctl.stores.base import UNFIT, State, Store

_BAR = 12
_BAR_FROM = 80
"""Cells of a bar, and of a line that has room for one."""


class Report:
    """What one run of inspect shows."""

    def __init__(self, answer: Answer, selection: Selection, *, manifest: bool) -> None:
        self._answer = answer
        self._selection = selection
        self._manifest = manifest
        self._states: Counter[State] = Counter()
        self._stale = 0
        self._bytes = 0
        self._freeable = Freeable()
        self._nothing = True
        self._stores: list[dict[str, object]] = []

    @property
    def _paints(self) -> bool:
        """Whether there is a person to draw tables for; under -q problems are told as records."""
        return self._answer.output.out.terminal and not self._answer.output.quiet

    def store(self, view: View, *, named: bool = True) -> None:
        """A whole store: how full it is, then its rows. A folder nobody named that holds nothing is none."""
        answer, rows = self._answer, self._selection.rows(view.rows)
        self._stores.append(store_fields(view))
        self._freeable += view.freeable
        answer.gauges += gauges(view)
        for warning in view.warnings:
            answer.warn(warning)
        on_terminal = self._paints and (named or bool(view.rows))
        self._nothing = self._nothing and not (named or view.rows)
        if on_terminal:
            self._heading(view)
            self._paragraph(usage(view))
        self._rows(view.store, rows, on_terminal)
        if on_terminal:
            self._paragraph(summary(view))
            if words := freeable(view.freeable):
                self._paragraph(words)
            answer.line("")

    def _heading(self, view: View) -> None:
        store = view.store
        place = f"({view.mount.fs_type}, owner uid {store.owner_uid})"
        family, root = Styled(store.family.value, Style.STRONG), f" {store.root}"
        if cells(f"{family.text}{root}  {place}") <= columns_there():
            self._answer.line(family, f"{root}  {place}")
        else:
            self._answer.line(family, Whole(root))
            self._answer.line(f"  {place}")

    def entry(self, store: Store, row: Row) -> None:
        """One entry that was named: its row and all that its family knows of it."""
        pages = core.pages_per_node(row.artifact)
        extra = {} if pages is None else {"pages_per_node": {str(node): n for node, n in pages.items()}}
        on_terminal = self._paints
        self._rows(store, [row], on_terminal, extra, named=True)
        if not on_terminal:
            return
        for name, value in row.artifact.detail.items():
            self._paragraph(f"{name}: {_plain(value)}", "  ", "    ")
        if pages is not None and len(pages) > 1:
            words = ", ".join(f"node {node}: {count}" for node, count in pages.items())
            self._paragraph(f"pages in memory: {words}", "  ", "    ")

    def _paragraph(self, words: str, indent: str = "", hang: str = "  ") -> None:
        for line in wrapped(words, indent=indent, hang=hang):
            self._answer.line(line)

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

    def count(self, state: State) -> None:
        """Count a row that was told elsewhere: a PATH that leads nowhere has a state, too."""
        self._states[state] += 1

    def close(self) -> None:
        """Set the totals."""
        totals = self._answer.totals
        totals.update(
            entries=sum(self._states.values()),
            damaged=sum(self._states[state] for state in UNFIT),
            stale=self._stale,
            bytes=self._bytes,
            freeable_bytes=self._freeable.total,
            freeable=asdict(self._freeable),
            states={state.value: count for state, count in sorted(self._states.items())},
            stores=self._stores,
        )
        silent = not (self._answer.errors or self._answer.warnings)
        if self._nothing and not self._states and silent:
            self._answer.note("no stores in /dev/shm; name one, or set HWCTL_ROOTS")

    def _rows(
        self,
        store: Store,
        rows: Sequence[Row],
        on_terminal: bool,
        extra: Mapping[str, object] | None = None,
        *,
        named: bool = False,
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
                answer.record(*record(row), problem=row.artifact.state in UNFIT)
                for name, data in documents.items():
                    answer.record("document", row.artifact.key, name, _plain(parsed(data)))
        if on_terminal and rows:
            from hwctl.cli.view_rows import drawn

            answer.block(
                drawn(rows, colour=answer.output.out.colour, whole=named or bool(answer.output.verbose))
            )
            self._documents(store, rows)

    def _documents(self, store: Store, rows: Sequence[Row]) -> None:
        for row in rows if self._manifest else ():
            for name, data in store.documents(row.artifact).items():
                self._answer.line(Styled(f"{row.artifact.key} {name}", Style.STRONG))
                for line in _indented(data):
                    self._answer.line(Whole(line))


def _indented(data: bytes) -> list[str]:
    """A document as JSON for reading, or as it lies there where it is nested too deep for that."""
    try:
        return json.dumps(parsed(data), indent=2, ensure_ascii=False).splitlines()
    except RecursionError:
        return [data.decode("utf-8", "backslashreplace")]


def usage(view: View) -> str:
    """What the store takes, and a bar: of its budget where it has one, else of where it lies."""
    room, taken = view.room, view.room.total_bytes - view.room.free_bytes
    free = f"{text.size(room.free_bytes)} of {text.size(room.total_bytes)} free"
    here = f"{text.size(view.size.bytes)} here, {text.size(view.size.allocated)} allocated"
    if view.budget is not None:
        budget = f"budget {_bar(view.size.bytes, view.budget)} of {text.size(view.budget)}"
        return f"{here}; {budget}; {room.binding} {free}"
    return f"{here}; {room.binding} {_bar(taken, room.total_bytes)}, {free}"


def _bar(used: int, whole: int) -> str:
    """Left out where a line has no room for it."""
    words = f"{_percent(used, whole)} used"
    return words if columns_there() < _BAR_FROM else f"{text.bar(used, whole, _BAR)} {words}"


def _percent(used: int, whole: int) -> str:
    share = 100 * used / whole if whole > 0 else 100
    return f"{share:.0f}%" if not 0 < share < 1 else "<1%"


def summary(view: View) -> str:
    """At a glance: what is ready, damaged, stale, held, and what could be freed."""
    words = [f"{count} {state.value}" for state, count in sorted(view.states.items())]
    stale = sum(row.stale for row in view.rows)
    held = sum(1 for row in view.rows if row.artifact.leases.shared or row.artifact.leases.exclusive)
    if stale:
        words.append(f"{stale} stale")
    if held:
        words.append(f"{held} in use")
    return ", ".join(words) or "empty"


def freeable(parts: Freeable) -> str:
    """How much can be freed, and by which calls; nothing where nothing can."""
    calls = (
        (parts.reclaim_stale, "reclaim-stale"),
        (parts.evict, "evict"),
        (parts.evict_quarantined, "evict --quarantined"),
    )
    words = [(text.size(count), f"by {call}") for count, call in calls if count]
    if len(words) == 1:
        return f"up to {words[0][0]} can be freed {words[0][1]}"
    each = ", ".join(map(" ".join, words))
    return f"up to {text.size(parts.total)} can be freed: {each}" if words else ""


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


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)
