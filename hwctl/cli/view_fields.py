"""What inspect says in words, documents and metrics about stores, entries and files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

from hwctl.cli.document import artifact_fields, finding_fields, missing_fields, named, time_text
from hwctl.cli.metrics import Gauge
from hwctl.core.inspect import FileView, Row, View
from hwctl.fs.walk import allocated
from hwctl.stores.base import Death, State
from hwctl.weights.tensor_layout import TensorEntry


def row_fields(row: Row) -> dict[str, object]:
    staleness = row.staleness
    stale = None
    if staleness is not None:
        stale = {"verdict": staleness.death.value, "evidence": list(staleness.evidence)}
    return {**artifact_fields(row.artifact), "model": row.model, "stale": stale, "error": None}


def remark(row: Row) -> str:
    """The reason of its state, and whether it is stale, with the evidence."""
    words = [row.artifact.reason] if row.artifact.reason else []
    if row.staleness is not None and row.staleness.death is not Death.NOT_STALE:
        words.append(f"{row.staleness.death.value}: {'; '.join(row.staleness.evidence)}")
    return "; ".join(words)


def store_fields(view: View) -> dict[str, object]:
    """A store's line in the totals; sizes in bytes."""
    room = view.room
    return {
        "family": view.store.family.value,
        **named("store", view.store.root),
        "owner_uid": view.store.owner_uid,
        "bytes": view.size.bytes,
        "allocated_bytes": view.size.allocated,
        "budget_bytes": view.budget,
        "freeable_bytes": view.freeable.total,
        "freeable": asdict(view.freeable),
        "file_system": {
            "type": view.mount.fs_type,
            "free_bytes": room.free_bytes,
            "total_bytes": room.total_bytes,
            "free_inodes": room.free_inodes,
            "binding": room.binding,
        },
        "states": {state.value: count for state, count in sorted(view.states.items())},
    }


def file_fields(view: FileView, state: State, tensors: Sequence[TensorEntry]) -> dict[str, object]:
    """The row of a file outside of any store. Its tensors are written one by one, however many there are."""
    header = view.header
    return {
        **missing_fields(view.path, state),
        **named("key", view.path.name),
        "bytes": view.stat.st_size,
        "allocated_bytes": allocated(view.stat),
        "files": 1,
        "created": time_text(view.stat.st_mtime_ns),
        "owner_uid": view.stat.st_uid,
        "reason": view.findings[0].message if view.findings else None,
        "findings": [finding_fields(finding) for finding in view.findings],
        "metadata": None if header is None else dict(header.metadata),
        "tensor_count": None if header is None else len(header.tensors),
        "tensors": None if header is None else _tensors(tensors),
        "model": None,
        "stale": None,
        "error": None,
    }


def _tensors(tensors: Sequence[TensorEntry]) -> Iterator[dict[str, object]]:
    for tensor in tensors:
        yield {
            "name": tensor.name,
            "dtype": tensor.dtype,
            "shape": tensor.shape,
            "bytes": tensor.nbytes,
            "offsets": [tensor.begin, tensor.end],
        }


def gauges(view: View) -> list[Gauge]:
    labels = {"family": view.store.family.value, "store": str(view.store.root)}
    found = [
        Gauge("store_bytes", "Bytes in the store as its family counts them.", view.size.bytes, labels),
        Gauge("store_allocated_bytes", "What the disk gave for them.", view.size.allocated, labels),
        Gauge(
            "store_freeable_bytes", "What reclaiming and evicting could free.", view.freeable.total, labels
        ),
        Gauge("store_free_bytes", "Room left where the store lies.", view.room.free_bytes, labels),
        Gauge("store_stale", "Leftovers of dead producers.", sum(row.stale for row in view.rows), labels),
    ]
    if view.budget is not None:
        found.append(Gauge("store_budget_bytes", "What the store is to stay below.", view.budget, labels))
    artifacts = [row.artifact for row in view.rows]
    for state in State:
        here = [artifact for artifact in artifacts if artifact.state is state]
        if here:
            by_state = {**labels, "state": state.value}
            found.append(Gauge("store_entries", "Entries by state.", len(here), by_state))
            size = sum(artifact.bytes for artifact in here)
            found.append(Gauge("store_entry_bytes", "Bytes of entries by state.", size, by_state))
    return found


def shown(documents: Mapping[str, bytes], wanted: bool) -> dict[str, object]:
    if not wanted:
        return {}
    return {"documents": {name: parsed(data) for name, data in documents.items()}}


def parsed(data: bytes) -> object:
    """A document as JSON where it is that, else as the text it is: this is for looking, not for judging."""
    try:
        parsed: object = json.loads(data)
    except (ValueError, RecursionError):
        return data.decode("utf-8", "backslashreplace")
    return parsed
