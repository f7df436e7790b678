"""Writing a manifest, and rewriting the state of one layer without touching the rest.

Owns the text only; which directory it goes to, and when, is for ``publish``, ``adoption`` and ``consume``.
The layers are composed one by one and kept as pieces of text: consuming a layer re-reads and re-writes that
layer's piece alone, and every key that anybody put into the document stays (section 7 of the format).
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hwctl.fs.liveness import Process
from hwctl.stores.ktint8 import layout
from hwctl.stores.ktint8.json_text import Outline, dump
from hwctl.stores.ktint8.layers import LayerState
from hwctl.stores.ktint8.manifest import BACKEND, WEIGHT_FORMAT, Schema
from hwctl.stores.ktint8.values import identity_object
from hwctl.weights.amx import LAYOUT, Geometry


@dataclass(frozen=True, slots=True)
class Origin:
    """Who made a tree, for which run, from what. ``source`` names the source, None if it is not known."""

    run_id: str
    owner_uid: int
    producer: Process
    source: str | None


def layer_text(geometry: Geometry, layer: int, digests: Sequence[bytes]) -> str:
    """A ready layer's object; ``digests`` in the order of ``layout.layer_paths``, one per file."""
    sizes = [file.size for file in layout.part_files(geometry).values()] * geometry.parts
    paths = layout.layer_paths(geometry, layer)
    files = [
        {"path": path, "size_bytes": size, "sha256": digest.hex()}
        for path, size, digest in zip(paths, sizes, digests, strict=True)
    ]
    files.sort(key=lambda file: str(file["path"]))
    return dump(
        {
            "index": layer,
            "numa_count": geometry.parts,
            "state": LayerState.READY,
            "files": files,
            "bytes": geometry.layer_bytes,
        }
    )


def ephemeral_text(geometry: Geometry, layers: Mapping[int, str], origin: Origin) -> bytes:
    """Schema 1 from the texts of its layers, with hwctl's own key."""
    head = _head(Schema.EPHEMERAL, geometry, layers, origin) | {
        "run_id": origin.run_id,
        "owner_uid": origin.owner_uid,
        "backend": BACKEND,
    }
    return _compose(head, layers)


def persistent_text(geometry: Geometry, layers: Mapping[int, str], origin: Origin) -> bytes:
    """Schema 2: no run and no owner, since anybody may read such a store."""
    head = _head(Schema.PERSISTENT, geometry, layers, origin) | {"layout": LAYOUT, "backend": "INT8"}
    return _compose(head, layers)


def _head(schema: Schema, geometry: Geometry, layers: Mapping[int, str], origin: Origin) -> dict[str, object]:
    own: dict[str, object] = {"producer": identity_object(origin.producer)}
    if origin.source is not None:
        own["source"] = origin.source
    return {
        "schema_version": int(schema),
        "state": "ready",
        "producer_pid": origin.producer.pid,
        "created_unix_ns": time.time_ns(),
        "expert_weight_format": WEIGHT_FORMAT,
        "threadpool_count": geometry.parts,
        "expert_num": geometry.experts,
        "hidden_size": geometry.hidden,
        "intermediate_size": geometry.intermediate,
        "bytes": geometry.layer_bytes * len(layers),
        "hwctl": own,
    }


def _compose(head: Mapping[str, object], layers: Mapping[int, str]) -> bytes:
    """The document with its layers in ascending order, keys sorted as upstream sorts them."""
    texts = {key: dump(value) for key, value in head.items()}
    texts["layers"] = f"[{','.join(layers[index] for index in sorted(layers))}]"
    return "{{{}}}".format(",".join(f"{dump(key)}:{texts[key]}" for key in sorted(texts))).encode("ascii")


class Rewriter:
    """A manifest in pieces, in which the state of a layer can be changed."""

    def __init__(self, outline: Outline, indices: Sequence[int]) -> None:
        """``indices`` are the layers' numbers in the order of the outline's elements."""
        if outline.elements is None or len(outline.elements) != len(indices):
            raise ValueError("the outline has other layers than the manifest")
        self._pieces: list[bytes] = []
        self._at: dict[int, int] = {}
        end = 0
        for index, (begin, stop) in zip(indices, outline.elements, strict=True):
            self._pieces.append(outline.text[end:begin].encode())
            self._at[index] = len(self._pieces)
            self._pieces.append(outline.text[begin:stop].encode())
            end = stop
        self._pieces.append(outline.text[end:].encode())

    def set_state(self, layer: int, state: LayerState) -> None:
        """Change one layer's state; its other keys stay as they are."""
        at = self._at[layer]
        value = json.loads(self._pieces[at])
        value["state"] = state
        self._pieces[at] = dump(value).encode("ascii")

    def document(self) -> bytes:
        return b"".join(self._pieces)
