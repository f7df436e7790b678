"""The records of a host weight artifact: manifest, tensor and file entries, READY marker.

Owns their shapes, their JSON form and the digests over them. Reading them from untrusted bytes is
``manifest``'s work.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hwctl.stores.hostweights import canonical
from hwctl.stores.hostweights.fields import SCHEMA
from hwctl.stores.hostweights.identity import Identity

INTEGRITY_MODE = "full_checksum"
TENSOR_KINDS = frozenset({"parameter", "buffer"})

_PLACEMENT = ("file_name", "storage_key")
"""Where a tensor lies is no part of the content digest, so that it survives another split into files."""


class TensorEntry(NamedTuple):
    """One tensor as the manifest describes it. ``dtype`` is torch's text, ``sha256`` of the raw bytes.

    A tuple rather than a dataclass: there are as many as tensors, and making one is several times cheaper.
    """

    name: str
    kind: str
    role: str
    file_name: str
    storage_key: str
    shape: tuple[int, ...]
    dtype: str
    stride: tuple[int, ...]
    nbytes: int
    sha256: str


class FileEntry(NamedTuple):
    """One payload file: its size in bytes and the digest of all of them."""

    file_name: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """A manifest whose fields are all well-formed. ``tensors`` by name, ``files`` by file name."""

    schema_version: int
    artifact_key: str
    identity: Identity
    producer_schema: str
    restorer_schema: str
    tensors: tuple[TensorEntry, ...]
    files: tuple[FileEntry, ...]
    artifact_content_sha256: str
    format_metadata: object

    def document(self) -> dict[str, object]:
        """The manifest as JSON-ready values."""
        return self._head() | {"tensors": [entry._asdict() for entry in self.tensors]}

    def canonical(self) -> bytes:
        """``canonical.encode`` of the document, one entry after the other: there may be 200,000 of them."""
        out = bytearray(canonical.encode(self._head() | {"tensors": []}).removesuffix(b"]}"))
        between = b""
        for entry in self.tensors:  # the list is the last member: its key sorts behind all others
            out += between + canonical.encode(entry._asdict())
            between = b","
        out += b"]}"
        return bytes(out)

    def _head(self) -> dict[str, object]:
        return {
            "schema_version": self.schema_version,
            "artifact_key": self.artifact_key,
            "identity": self.identity.document(),
            "producer_schema": self.producer_schema,
            "restorer_schema": self.restorer_schema,
            "files": [entry._asdict() for entry in self.files],
            "artifact_content_sha256": self.artifact_content_sha256,
            "format_metadata": self.format_metadata,
        }


@dataclass(frozen=True, slots=True)
class Ready:
    """The publication marker, written last: it seals one manifest."""

    publication_id: str
    manifest_sha256: str
    artifact_content_sha256: str
    schema_version: int = SCHEMA
    integrity_mode: str = INTEGRITY_MODE

    def document(self) -> dict[str, object]:
        """The marker as JSON-ready values."""
        return {
            "schema_version": self.schema_version,
            "publication_id": self.publication_id,
            "manifest_sha256": self.manifest_sha256,
            "artifact_content_sha256": self.artifact_content_sha256,
            "integrity_mode": self.integrity_mode,
        }


@dataclass(frozen=True, slots=True)
class Sealed:
    """A manifest and a marker as bytes, ready to be written."""

    manifest: Manifest
    ready: Ready
    manifest_bytes: bytes
    ready_bytes: bytes


def content_digest(tensors: Iterable[TensorEntry]) -> str:
    """SHA-256 over the canonical entries, in name order, without where each tensor lies."""
    digest = hashlib.sha256()
    for entry in sorted(tensors, key=_by_name):
        fields = entry._asdict()
        for name in _PLACEMENT:
            del fields[name]
        digest.update(canonical.encode(fields))
    return digest.hexdigest()


def _by_name(entry: TensorEntry) -> str:
    return entry.name


def contiguous_stride(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides, in elements, of a fresh contiguous tensor in torch: a 0 dimension counts as 1."""
    out: list[int] = []
    step = 1
    for dimension in reversed(shape):
        out.append(step)
        step *= max(dimension, 1)
    return tuple(reversed(out))


def seal(
    identity: Identity,
    tensors: Iterable[TensorEntry],
    files: Iterable[FileEntry],
    format_metadata: object,
) -> Sealed:
    """The manifest and the marker of a new artifact, with a fresh publication id."""
    ordered = tuple(sorted(tensors, key=_by_name))
    manifest = Manifest(
        SCHEMA,
        identity.key,
        identity,
        identity.producer.manifest_schema,
        identity.producer.restorer_schema,
        ordered,
        tuple(sorted(files)),
        content_digest(ordered),
        format_metadata,
    )
    data = manifest.canonical()
    ready = Ready(uuid.uuid4().hex, hashlib.sha256(data).hexdigest(), manifest.artifact_content_sha256)
    return Sealed(manifest, ready, data, canonical.encode(ready.document()))
