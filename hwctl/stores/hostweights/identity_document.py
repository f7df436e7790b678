"""An identity as a document has it: exactly its sections and fields, or every reason why it is none."""

from __future__ import annotations

from typing import Any, TypeVar

from hwctl.errors import Finding
from hwctl.stores.hostweights import canonical
from hwctl.stores.hostweights.fields import Problems, integer, section, text
from hwctl.stores.hostweights.identity import (
    Adaptation,
    Component,
    Identity,
    Layout,
    Producer,
    Representation,
    Source,
)

IDENTITY_FILE = "identity"
"""The ``file`` of findings about an identity that was read on its own."""

_TOP = frozenset(
    {"schema_version", "source", "component", "representation", "layout", "adaptation", "producer"}
)

_OfTexts = TypeVar("_OfTexts", Source, Component, Representation, Producer)


def read_identity(data: bytes, file: str = IDENTITY_FILE) -> Identity | tuple[Finding, ...]:
    """The identity in these bytes (an ``--identity`` file), or what is wrong with them."""
    try:
        parsed = canonical.parse(data)
    except canonical.BadDocument as exc:
        return (exc.finding(file),)
    problems = Problems(file)
    found = parse_identity(parsed.value, problems)
    return tuple(problems.found) if found is None else found


def parse_identity(value: object, problems: Problems) -> Identity | None:
    """The identity a parsed document holds, or None with every reason noted in ``problems``."""
    before = len(problems.found)
    top = section(value, "identity", _TOP, problems)
    if top is None:
        return None
    version = integer(top, "schema_version", "identity", problems, 1)
    source = _texts(top["source"], Source, "identity.source", problems)
    component = _texts(top["component"], Component, "identity.component", problems)
    representation = _texts(top["representation"], Representation, "identity.representation", problems)
    layout = _layout(top["layout"], problems)
    adaptation = _adaptation(top["adaptation"], problems)
    producer = _texts(top["producer"], Producer, "identity.producer", problems)
    if len(problems.found) > before:
        return None
    if not (source and component and representation and layout and adaptation and producer):
        return None
    return Identity(source, component, representation, layout, adaptation, producer, version)


def _texts(value: object, cls: type[_OfTexts], where: str, problems: Problems) -> _OfTexts | None:
    """A section of texts; what its metadata holds is free."""
    part = section(value, where, frozenset(cls.__slots__), problems)
    if part is None:
        return None
    values: dict[str, Any] = {
        name: part[name] if name == "metadata" else text(part, name, where, problems)
        for name in cls.__slots__
    }
    return cls(**values)


def _layout(value: object, problems: Problems) -> Layout | None:
    where = "identity.layout"
    part = section(value, where, frozenset(Layout.__slots__), problems)
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
    part = section(value, where, frozenset(Adaptation.__slots__), problems)
    if part is None:
        return None
    kind = text(part, "kind", where, problems)
    fingerprint = None if part["fingerprint"] is None else text(part, "fingerprint", where, problems)
    if fingerprint is None and kind != "base":
        problems.add("bad-value", f"{where}.fingerprint is required unless kind is 'base'")
    return Adaptation(kind, fingerprint, part["metadata"])
