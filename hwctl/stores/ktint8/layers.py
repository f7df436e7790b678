"""One layer of a finished tree as its manifest records it: how far it was consumed, its files, their digests.

Pure. A sound layer lists exactly the files its geometry asks for, so nothing but their digests is kept of it:
a tree of 180,000 files must not cost more than some hundred bytes a file. Only a layer that lists something
else keeps its paths, for a cleanup.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hwctl.errors import Finding
from hwctl.stores.ktint8 import layout
from hwctl.weights.amx import Geometry


class LayerState(enum.StrEnum):
    """How far a layer's consumption has gone."""

    READY = "ready"
    CONSUMING = "consuming"
    CONSUMED = "consumed"


@dataclass(frozen=True, slots=True)
class LayerRecord:
    """A layer as its manifest tells it.

    ``digests`` holds the SHA-256 of every file in the order of ``layout.layer_paths``, None where the
    manifest has none. ``listed`` is None when the layer lists exactly its files; otherwise the paths it
    lists that lie where this layer's files may lie.
    """

    index: int
    state: LayerState
    size: int
    digests: tuple[bytes | None, ...] = ()
    listed: tuple[str, ...] | None = None

    @property
    def ready(self) -> bool:
        return self.state is LayerState.READY

    def paths(self, geometry: Geometry) -> Iterator[str]:
        """The paths it lists, relative to the root."""
        return layout.layer_paths(geometry, self.index) if self.listed is None else iter(self.listed)

    def wrong_digests(self, geometry: Geometry, read: Mapping[int, bytes]) -> list[Finding]:
        """What was read and is not what was published; ``read`` by the files' places, as ``digests``."""
        wrong = [at for at, digest in read.items() if self.digests and self.digests[at] not in (None, digest)]
        paths = list(layout.layer_paths(geometry, self.index)) if wrong else []
        words = "its bytes are not those that were published (SHA-256 differs)"
        return [
            Finding("digest-mismatch", words, paths[at], (self.digests[at] or b"").hex(), read[at].hex())
            for at in wrong
        ]
