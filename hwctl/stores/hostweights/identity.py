"""The identity of an artifact, and the key that names it.

Owns the sections, their fields and the key. How one is read from a document is ``identity_document``'s work,
where it comes from (a file, another artifact, a checkpoint) the publisher's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from hwctl.stores.hostweights import canonical


@dataclass(frozen=True, slots=True)
class Source:
    model_id: str
    revision: str
    fingerprint: str
    metadata: object = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Component:
    name: str
    ownership: str
    metadata: object = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Representation:
    name: str
    dtype: str
    metadata: object = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Layout:
    name: str
    tensor_parallel_size: int = 1
    tensor_parallel_rank: int = 0
    sequence_parallel_size: int = 1
    sequence_parallel_backend: str = "none"
    metadata: object = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Adaptation:
    kind: str = "base"
    fingerprint: str | None = None
    metadata: object = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Producer:
    producer_id: str
    version: str
    implementation_fingerprint: str
    manifest_schema: str
    restorer_schema: str


@dataclass(frozen=True, slots=True)
class Identity:
    """A complete identity. ``key`` is the SHA-256 of its canonical form, in lower-case hex.

    All sections and all metadata count for the key, which is permanent. Metadata is any JSON value; build
    it from plain types (``canonical.validated``).
    """

    source: Source
    component: Component
    representation: Representation
    layout: Layout
    adaptation: Adaptation
    producer: Producer
    schema_version: int = 1
    key: str = field(init=False)

    def __post_init__(self) -> None:
        # Identities of real models run to megabytes, so the key is computed once.
        digest = hashlib.sha256(canonical.encode(self.document())).hexdigest()
        object.__setattr__(self, "key", digest)

    def document(self) -> dict[str, object]:
        """The identity as JSON-ready values."""
        return {
            "schema_version": self.schema_version,
            "source": _fields(self.source),
            "component": _fields(self.component),
            "representation": _fields(self.representation),
            "layout": _fields(self.layout),
            "adaptation": _fields(self.adaptation),
            "producer": _fields(self.producer),
        }


def _fields(part: Source | Component | Representation | Layout | Adaptation | Producer) -> dict[str, object]:
    return {name: getattr(part, name) for name in part.__slots__}


def first_difference(
    wanted: Mapping[str, object], found: Mapping[str, object], where: str = ""
) -> str | None:
    """The dotted name of the first field in which two identity documents differ, None when they agree."""
    for name in sorted(wanted.keys() | found.keys()):
        path = f"{where}.{name}" if where else name
        left, right = wanted.get(name), found.get(name)
        if isinstance(left, dict) and isinstance(right, dict):
            inner = first_difference(left, right, path)
            if inner is not None:
                return inner
        elif canonical.encode(left) != canonical.encode(right):
            return path
    return None
