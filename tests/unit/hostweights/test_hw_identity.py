"""Identity documents: exact fields, exact types, and a key that covers all of it."""

from __future__ import annotations

import copy
import hashlib
import json
from typing import Any

import make_hostweights
import pytest

from hwctl.errors import Finding
from hwctl.stores.hostweights import canonical
from hwctl.stores.hostweights.identity import (
    Adaptation,
    Component,
    Identity,
    Layout,
    Producer,
    Representation,
    Source,
    first_difference,
)
from hwctl.stores.hostweights.identity_document import read_identity

DOCUMENT: dict[str, Any] = make_hostweights.identity(3)
SECTIONS = ("source", "component", "representation", "layout", "adaptation", "producer")


def read(document: object) -> Identity | tuple[Finding, ...]:
    return read_identity(json.dumps(document).encode())


def test_the_key_is_the_digest_of_the_canonical_document() -> None:
    found = read(DOCUMENT)
    assert isinstance(found, Identity)
    assert found.key == hashlib.sha256(canonical.encode(DOCUMENT)).hexdigest() == make_hostweights.key_of(3)
    assert found.document() == DOCUMENT


def test_the_defaults_are_the_format_s() -> None:
    made = Identity(
        Source("org/model-3", "r", "f"),
        Component("c", "o"),
        Representation("raw", "torch.float32"),
        Layout("l"),
        Adaptation(),
        Producer("p", "1", "i", "m", "r"),
    )
    assert made == read(DOCUMENT)


@pytest.mark.parametrize("section", SECTIONS)
def test_a_missing_or_additional_field_is_named(section: str) -> None:
    for name in DOCUMENT[section]:
        less = copy.deepcopy(DOCUMENT)
        del less[section][name]
        found = read(less)
        assert isinstance(found, tuple) and [f.code for f in found] == ["missing-field"]
        assert name in found[0].message
    more = copy.deepcopy(DOCUMENT)
    more[section]["comment"] = 1
    found = read(more)
    assert isinstance(found, tuple) and [f.code for f in found] == ["unknown-field"]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("schema_version", 0),
        ("schema_version", True),
        ("schema_version", 1.0),
        ("schema_version", "1"),
        ("source.model_id", ""),
        ("source.revision", None),
        ("component.name", 1),
        ("layout.tensor_parallel_size", 0),
        ("layout.tensor_parallel_size", True),
        ("layout.tensor_parallel_rank", 1),
        ("layout.tensor_parallel_rank", -1),
        ("layout.sequence_parallel_size", 2.0),
        ("adaptation.kind", "lora"),
        ("adaptation.fingerprint", ""),
        ("adaptation.fingerprint", 5),
        ("producer.version", []),
        ("source", []),
        ("producer", None),
    ],
)
def test_a_wrong_value_is_refused(path: str, value: object) -> None:
    document = copy.deepcopy(DOCUMENT)
    *way, last = path.split(".")
    place = document
    for name in way:
        place = place[name]
    place[last] = value
    found = read(document)
    assert isinstance(found, tuple) and found
    assert all(finding.code == "bad-value" for finding in found)


def test_all_that_is_wrong_is_listed() -> None:
    document = copy.deepcopy(DOCUMENT)
    document["source"]["model_id"] = ""
    document["producer"]["version"] = 1
    del document["layout"]["name"]
    found = read(document)
    assert isinstance(found, tuple) and len(found) == 3


@pytest.mark.parametrize("data", [b"", b"[]", b"null", b'"x"', b"{}", b"\xff", b"[" * 10**5])
def test_rubbish_is_findings_never_an_exception(data: bytes) -> None:
    assert isinstance(read_identity(data), tuple)


def test_schema_two_and_any_metadata_are_taken() -> None:
    document = copy.deepcopy(DOCUMENT)
    document["schema_version"] = 2
    document["source"]["metadata"] = [1, "x", None, {"a": 1e16}]
    document["component"]["metadata"] = "text"
    found = read(document)
    assert isinstance(found, Identity) and found.key != make_hostweights.key_of(3)


def test_the_first_difference_is_named_by_its_path() -> None:
    other = copy.deepcopy(DOCUMENT)
    assert first_difference(DOCUMENT, other) is None
    other["representation"]["dtype"] = "torch.bfloat16"
    assert first_difference(DOCUMENT, other) == "representation.dtype"
    other["component"]["metadata"] = {"a": 1}
    assert first_difference(DOCUMENT, other) == "component.metadata.a"
