"""The identity of an artifact, and the key that names it.

Owns the identity document: its sections, its exact fields, its key. Where an identity comes from (a file,
another artifact, a checkpoint) is the business of the publisher.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from hwctl.errors import Finding
from hwctl.stores.hostweights import canonical
from hwctl.stores.hostweights.fields import Problems, integer, section, text

IDENTITY_FILE = "identity"
"""The ``file`` of findings about an identity that was read on its own."""


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


_TOP = frozenset(
    {"schema_version", "source", "component", "representation", "layout", "adaptation", "producer"}
)
_SOURCE = frozenset({"model_id", "revision", "fingerprint", "metadata"})
_COMPONENT = frozenset({"name", "ownership", "metadata"})
_REPRESENTATION = frozenset({"name", "dtype", "metadata"})
_LAYOUT = frozenset(
    {
        "name",
        "tensor_parallel_size",
        "tensor_parallel_rank",
        "sequence_parallel_size",
        "sequence_parallel_backend",
        "metadata",
    }
)
_ADAPTATION = frozenset({"kind", "fingerprint", "metadata"})
_PRODUCER = frozenset(
    {"producer_id", "version", "implementation_fingerprint", "manifest_schema", "restorer_schema"}
)


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


def parse_identity(value: object, problems: Problems) -> Identity | None:
    """The identity a parsed document holds, or None with every reason noted in ``problems``."""
    before = len(problems.found)
    top = section(value, "identity", _TOP, problems)
    if top is None:
        return None
    version = integer(top, "schema_version", "identity", problems, 1)
    source = _source(top["source"], problems)
    component = _component(top["component"], problems)
    representation = _representation(top["representation"], problems)
    layout = _layout(top["layout"], problems)
    adaptation = _adaptation(top["adaptation"], problems)
    producer = _producer(top["producer"], problems)
    if len(problems.found) > before:
        return None
    if not (source and component and representation and layout and adaptation and producer):
        return None
    return Identity(source, component, representation, layout, adaptation, producer, version)


def read_identity(data: bytes, file: str = IDENTITY_FILE) -> Identity | tuple[Finding, ...]:
    """The identity in these bytes (an ``--identity`` file), or what is wrong with them."""
    try:
        parsed = canonical.parse(data)
    except canonical.BadDocument as exc:
        return (exc.finding(file),)
    problems = Problems(file)
    found = parse_identity(parsed.value, problems)
    return tuple(problems.found) if found is None else found


def _source(value: object, problems: Problems) -> Source | None:
    part = section(value, "identity.source", _SOURCE, problems)
    if part is None:
        return None
    return Source(
        text(part, "model_id", "identity.source", problems),
        text(part, "revision", "identity.source", problems),
        text(part, "fingerprint", "identity.source", problems),
        part["metadata"],
    )


def _component(value: object, problems: Problems) -> Component | None:
    part = section(value, "identity.component", _COMPONENT, problems)
    if part is None:
        return None
    return Component(
        text(part, "name", "identity.component", problems),
        text(part, "ownership", "identity.component", problems),
        part["metadata"],
    )


def _representation(value: object, problems: Problems) -> Representation | None:
    part = section(value, "identity.representation", _REPRESENTATION, problems)
    if part is None:
        return None
    return Representation(
        text(part, "name", "identity.representation", problems),
        text(part, "dtype", "identity.representation", problems),
        part["metadata"],
    )


def _layout(value: object, problems: Problems) -> Layout | None:
    where = "identity.layout"
    part = section(value, where, _LAYOUT, problems)
    if part is None:
        return None
    size = integer(part, "tensor_parallel_size", where, problems, 1)
    rank = integer(part, "tensor_parallel_rank", where, problems, 0)
    if rank >= size:
        problems.add("bad-value", f"{where}.tensor_parallel_rank {rank} is not below the size {size}")
    return Layout(
        text(part, "name", where, problems),
        size,
        rank,
        integer(part, "sequence_parallel_size", where, problems, 1),
        text(part, "sequence_parallel_backend", where, problems),
        part["metadata"],
    )


def _adaptation(value: object, problems: Problems) -> Adaptation | None:
    where = "identity.adaptation"
    part = section(value, where, _ADAPTATION, problems)
    if part is None:
        return None
    kind = text(part, "kind", where, problems)
    fingerprint = None if part["fingerprint"] is None else text(part, "fingerprint", where, problems)
    if fingerprint is None and kind != "base":
        problems.add("bad-value", f"{where}.fingerprint is required unless kind is 'base'")
    return Adaptation(kind, fingerprint, part["metadata"])


def _producer(value: object, problems: Problems) -> Producer | None:
    part = section(value, "identity.producer", _PRODUCER, problems)
    if part is None:
        return None
    return Producer(
        *(
            text(part, name, "identity.producer", problems)
            for name in (
                "producer_id",
                "version",
                "implementation_fingerprint",
                "manifest_schema",
                "restorer_schema",
            )
        )
    )


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
