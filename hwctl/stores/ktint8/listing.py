"""What a manifest lists of one layer, judged against the shape of the model.

Owns coverage, canonical paths, declared sizes and digests. Pure. What is kept of it is ``layers``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TypeGuard

from hwctl.errors import Finding
from hwctl.stores.ktint8 import layout
from hwctl.stores.ktint8.layers import LayerRecord, LayerState
from hwctl.stores.ktint8.values import WORD_LIMIT, is_count, is_index, is_integer, shown
from hwctl.weights.amx import Geometry

_DIGEST = re.compile(r"[0-9a-f]{64}")
_MISSING_SHOWN_LIMIT = 65536


def judge_layer(
    value: object, geometry: Geometry, document: str, *, digests_needed: bool
) -> tuple[LayerRecord | None, list[Finding]]:
    """Judge one element of ``layers``. None when it cannot even be told which layer it is."""
    if not isinstance(value, dict) or not is_index(index := value.get("index")):
        what = (
            shown(value) if not isinstance(value, dict) else f"an index that is {shown(value.get('index'))}"
        )
        return None, [Finding("manifest-value", f"layers holds {what}", document)]
    judge = _LayerJudge(index, geometry, document)
    return judge.record(value, digests_needed=digests_needed), judge.findings


class _LayerJudge:
    def __init__(self, index: int, geometry: Geometry, document: str) -> None:
        self._index = index
        self._geometry = geometry
        self._document = document
        self.findings: list[Finding] = []

    def _say(self, message: str, expected: object = None, actual: object = None, code: str = "") -> None:
        text = f"layer {self._index}: {message}"
        self.findings.append(Finding(code or "manifest-value", text, self._document, expected, actual))

    def record(self, value: Mapping[str, object], *, digests_needed: bool) -> LayerRecord:
        parts = value.get("numa_count")
        if not is_integer(parts) or parts != self._geometry.parts:
            self._say("numa_count is not threadpool_count", self._geometry.parts, shown(parts), "layer-parts")
        state = self._state(value.get("state"))
        files = value.get("files")
        total = 0
        digests: tuple[bytes | None, ...] = ()
        listed: tuple[str, ...] | None = ()
        if not isinstance(files, list):
            self._say(f"files must be a list, not {shown(files)}")
        else:
            total, digests, listed = self._files(files, digests_needed=digests_needed)
        declared = value.get("bytes")
        if not is_count(declared, WORD_LIMIT) or declared != total:
            self._say("bytes is not the sum of its files", total, shown(declared), "byte-total")
        return LayerRecord(self._index, state, total, digests, listed)

    def _state(self, value: object) -> LayerState:
        if isinstance(value, str) and value in tuple(LayerState):
            return LayerState(value)
        self._say(f"state is {shown(value)}", code="layer-state")
        return LayerState.CONSUMING  # whatever it is, nobody may take it for ready

    def _files(
        self, files: list[object], *, digests_needed: bool
    ) -> tuple[int, tuple[bytes | None, ...], tuple[str, ...] | None]:
        wanted = self._geometry.layer_files
        if len(files) != wanted:
            self._say(f"lists {len(files)} files where {wanted} belong", wanted, len(files), "file-count")
            if wanted > len(files) + _MISSING_SHOWN_LIMIT:
                # A hostile count must not make us build a table of that size.
                paths = [file.get("path") for file in files if isinstance(file, dict)]
                return 0, (), tuple(path for path in paths if self._is_safe(path))
        cover = _Coverage(self._geometry, self._index)
        total = 0
        for file in files:
            total += self._file(file, cover, digests_needed=digests_needed)
        for path in cover.missing():
            self._say(f"does not list {path}", code="file-not-listed")
        return total, cover.digests(), cover.listed()

    def _file(self, value: object, cover: _Coverage, *, digests_needed: bool) -> int:
        """Judge one file object and return its size."""
        if not isinstance(value, dict) or not isinstance(path := value.get("path"), str):
            self._say(f"files holds {shown(value)} where a file with a path belongs")
            return 0
        slot = cover.slot(path)
        if slot is None:
            self._say(f"lists {shown(path)}, which is no file of this layer", code="file-path")
            if self._is_safe(path):
                cover.add_odd(path)
        elif not cover.take(slot):
            self._say(f"lists {path} twice", code="file-path")
        size = self._size(value.get("size_bytes"), path, slot, cover)
        digest = value.get("sha256")
        if digest is None and "sha256" not in value and not digests_needed:
            return size
        if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
            self._say(f"{shown(path)} has the sha256 {shown(digest)}", code="declared-digest")
        elif slot is not None:
            cover.set_digest(slot, bytes.fromhex(digest))
        return size

    def _size(self, size: object, path: str, slot: int | None, cover: _Coverage) -> int:
        """The declared size of a file, 0 when it is none."""
        if not is_count(size, WORD_LIMIT):
            self._say(f"{shown(path)} has the size_bytes {shown(size)}", code="declared-size")
            return 0
        if slot is not None and size != cover.size(slot):
            self._say(f"{path} has the wrong size_bytes", cover.size(slot), size, "declared-size")
        return size

    def _is_safe(self, path: object) -> TypeGuard[str]:
        """Whether a path that is no file of the layer still lies in one of its part folders."""
        if not isinstance(path, str) or "\0" in path:
            return False
        folder, _, rest = path.partition("/")
        part, _, name = rest.partition("/")
        return (
            folder == layout.layer_dir(self._index)
            and layout.parse_part_dir(part) is not None
            and name not in ("", ".", "..")
            and "/" not in name
        )


class _Coverage:
    """Which of a layer's files were listed; a slot is a file's place in ``layout.layer_paths``."""

    def __init__(self, geometry: Geometry, layer: int) -> None:
        self._geometry = geometry
        self._layer = layer
        self._files = layout.part_files(geometry)
        self._places = {name: place for place, name in enumerate(self._files)}
        self._sizes = [file.size for file in self._files.values()]
        folder = layout.layer_dir(layer)
        self._folders = {f"{folder}/{layout.part_dir(part)}": part for part in range(geometry.parts)}
        self._taken = bytearray(geometry.layer_files)
        self._digests: list[bytes | None] = [None] * geometry.layer_files
        self._odd: list[str] = []

    def slot(self, path: str) -> int | None:
        folder, _, name = path.rpartition("/")
        part = self._folders.get(folder)
        place = self._places.get(name)
        return None if part is None or place is None else part * len(self._sizes) + place

    def take(self, slot: int) -> bool:
        """Mark a slot as listed; False if it was already."""
        first = not self._taken[slot]
        self._taken[slot] = 1
        return first

    def add_odd(self, path: str) -> None:
        self._odd.append(path)

    def size(self, slot: int) -> int:
        return self._sizes[slot % len(self._sizes)]

    def set_digest(self, slot: int, digest: bytes) -> None:
        self._digests[slot] = digest

    def missing(self) -> Iterator[str]:
        if not all(self._taken):
            yield from (path for path, taken in self._listing() if not taken)

    def digests(self) -> tuple[bytes | None, ...]:
        return tuple(self._digests) if any(self._digests) else ()

    def listed(self) -> tuple[str, ...] | None:
        if all(self._taken) and not self._odd:
            return None
        return (*(path for path, taken in self._listing() if taken), *self._odd)

    def _listing(self) -> Iterator[tuple[str, int]]:
        return zip(layout.layer_paths(self._geometry, self._layer), self._taken, strict=True)
