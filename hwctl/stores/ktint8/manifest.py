"""The two manifests of a kt-int8 tree as values: schema 1 (ephemeral) and schema 2 (persistent).

Owns what a manifest says once it was understood, and whether it is that of its root. Reading one is
``manifest_reader``, writing one ``manifest_text``; whether the tree agrees is ``tree``.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from hwctl.errors import Finding
from hwctl.fs.liveness import Process
from hwctl.stores.ktint8 import layout
from hwctl.stores.ktint8.json_text import Outline
from hwctl.stores.ktint8.layers import LayerRecord, LayerState
from hwctl.weights.amx import Geometry

BACKEND = "AMXINT8"
WEIGHT_FORMAT = "int8"

SCHEMA_UNKNOWN = "manifest-schema"
"""The finding that means "another version may know this", not "damaged"."""


class Schema(enum.IntEnum):
    """Which manifest, hence which rules: a run's tree in memory, or a store to keep."""

    EPHEMERAL = 1
    PERSISTENT = 2

    @property
    def document(self) -> str:
        """The file's name in the root."""
        return layout.EPHEMERAL_MANIFEST if self is Schema.EPHEMERAL else layout.PERSISTENT_MANIFEST


@dataclass(frozen=True, slots=True)
class Manifest:
    """A manifest as far as it could be understood; sound only when its findings are none.

    ``producer`` is hwctl's own record of who made the tree (None in upstream's), ``source`` the digest that
    names what it was made from. ``layers`` stand in the manifest's order.
    """

    schema: Schema
    geometry: Geometry
    layers: tuple[LayerRecord, ...]
    bytes: int
    run_id: str | None = None
    owner_uid: int | None = None
    producer_pid: int | None = None
    created_ns: int | None = None
    producer: Process | None = None
    source: str | None = None

    @property
    def indices(self) -> tuple[int, ...]:
        return tuple(sorted(layer.index for layer in self.layers))

    @property
    def half_consumed(self) -> bool:
        return any(not layer.ready for layer in self.layers)

    @property
    def removal_begun(self) -> bool:
        """Whether hwctl began to remove the tree: then it marks every layer as being consumed, and whoever
        consumes one marks one at a time. A single layer does not tell which."""
        return len(self.layers) > 1 and all(layer.state is LayerState.CONSUMING for layer in self.layers)


@dataclass(frozen=True, slots=True)
class Parsed:
    """``manifest`` is None when nothing can be said about the tree, ``outline`` when it is no JSON."""

    manifest: Manifest | None
    findings: tuple[Finding, ...]
    outline: Outline | None = None


def matching(manifest: Manifest, run_id: str, uid: int) -> list[Finding]:
    """Whether an ephemeral manifest is that of the root it lies in: the run it is named for, its owner."""
    found = []
    document = manifest.schema.document
    if manifest.run_id != run_id:
        words = f"run_id is {manifest.run_id}, the root is named for {run_id}"
        found.append(Finding("run-id", words, document, run_id, manifest.run_id))
    if manifest.owner_uid != uid:
        words = f"owner_uid is {manifest.owner_uid}, the root belongs to {uid}"
        found.append(Finding("owner", words, document, uid, manifest.owner_uid))
    return found
