"""The lease of a staging root: who is making the tree, and how far hwctl's own conversion has come.

Owns the document ``kt-ephemeral-staging-lease.json``: reading it strictly, writing it. Pure but for writing.
Whether the producer lives is ``staleness``. Beside upstream's four keys hwctl writes one, ``hwctl``: the
identity that tells the producer from a later process of the same pid (REC-01), and the progress of a
conversion, one digest for every finished layer, from which an interrupted one goes on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from hwctl.errors import Finding
from hwctl.fs.atomic import replace_document
from hwctl.fs.liveness import Process
from hwctl.stores.ktint8 import layout
from hwctl.stores.ktint8.json_text import BadJson, dump, parse_object
from hwctl.stores.ktint8.values import identity_object, is_count, is_index, is_integer, parse_identity, shown
from hwctl.weights.amx import Geometry

SCHEMA = 1
SIZE_LIMIT = 16 << 20
PID_LIMIT = 2**31

_DIGEST = re.compile(r"[0-9a-f]{64}")
_LAYER = re.compile(r"0|[1-9][0-9]{0,9}")
_GEOMETRY = ("hidden", "intermediate", "experts", "parts")


@dataclass(frozen=True, slots=True)
class Progress:
    """What a conversion has finished. ``layers`` maps a layer to the SHA-256 over its files' digests in
    the order of ``layout.layer_paths``; ``source`` names what is being converted."""

    source: str
    geometry: Geometry
    layers: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StagingLease:
    """A sound lease. ``producer`` is None when upstream's program wrote it: a pid and nothing more."""

    run_id: str
    owner_uid: int
    producer_pid: int
    producer: Process | None = None
    progress: Progress | None = None


def parse(data: bytes, run_id: str, owner_uid: int) -> StagingLease | tuple[Finding, ...]:
    """Judge a lease's bytes against the root they lie in: its run and the uid that owns it."""
    try:
        value = parse_object(data)
    except BadJson as exc:
        return (Finding("lease-json", f"the lease {exc}", layout.LEASE),)
    found = list(_faults(value, run_id, owner_uid))
    pid = value.get("producer_pid")
    producer: Process | None = None
    progress: Progress | None = None
    if "hwctl" in value:
        own = value["hwctl"]
        identity = parse_identity(own, pid if is_integer(pid) else 0)
        if isinstance(identity, str):
            found.append(f"hwctl {identity}")
        else:
            producer = identity
        progress = _progress(own)
    if found or not is_count(pid, PID_LIMIT):
        return tuple(Finding("lease-value", f"the lease's {fault}", layout.LEASE) for fault in found)
    return StagingLease(run_id, owner_uid, pid, producer, progress)


def _faults(value: Mapping[str, object], run_id: str, owner_uid: int) -> list[str]:
    found = []
    for key, wanted in (("schema_version", SCHEMA), ("run_id", run_id), ("owner_uid", owner_uid)):
        actual = value.get(key)
        if actual != wanted or type(actual) is not type(wanted):
            found.append(f"{key} is {shown(actual)}, not {wanted!r}")
    pid = value.get("producer_pid")
    if not is_count(pid, PID_LIMIT):
        found.append(f"producer_pid is {shown(pid)}, which can be no process")
    return found


def _progress(own: object) -> Progress | None:
    """The progress record, None when there is none or it is not to be trusted: then nothing is kept."""
    record = own.get("progress") if isinstance(own, dict) else None
    if not isinstance(record, dict):
        return None
    source, shape, layers = (record.get(key) for key in ("source", "geometry", "layers"))
    if not (isinstance(source, str) and isinstance(shape, dict) and isinstance(layers, dict)):
        return None
    sizes = [shape.get(key) for key in _GEOMETRY]
    counts = [size for size in sizes if is_count(size)]
    if len(counts) != len(_GEOMETRY):
        return None
    done: dict[int, str] = {}
    for key, digest in layers.items():
        sound = _LAYER.fullmatch(key) and isinstance(digest, str) and _DIGEST.fullmatch(digest)
        if not sound or not is_index(int(key)):
            return None
        done[int(key)] = digest
    return Progress(source, Geometry(*counts), done)


def compose(lease: StagingLease) -> bytes:
    """The document for a lease."""
    value: dict[str, object] = {
        "schema_version": SCHEMA,
        "run_id": lease.run_id,
        "owner_uid": lease.owner_uid,
        "producer_pid": lease.producer_pid,
    }
    if lease.producer is not None:
        own = identity_object(lease.producer)
        if lease.progress is not None:
            own["progress"] = {
                "source": lease.progress.source,
                "geometry": {key: getattr(lease.progress.geometry, key) for key in _GEOMETRY},
                "layers": {str(layer): digest for layer, digest in sorted(lease.progress.layers.items())},
            }
        value["hwctl"] = own
    return dump(value).encode("ascii")


def write(root_fd: int, lease: StagingLease) -> None:
    """Put the lease into a staging root, replacing the one that is there. OSErrors are raised as they are.

    The temporary's name is unique: one of the same pid, left by a dead process, must not stand in the way.
    """
    replace_document(root_fd, layout.LEASE, compose(lease))
