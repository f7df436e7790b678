"""JSON documents: valid whatever a store holds, lossless for names, exact for numbers (CLI-03)."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path

import orjson
from hypothesis import given
from hypothesis import strategies as st

from hwctl.cli.document import artifact_fields, dumps, finding_fields, named, time_text
from hwctl.errors import Finding
from hwctl.stores.base import Artifact, Family, State

_LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(categories=None))
) | st.binary()
_VALUES = st.recursive(
    _LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20
)


@given(_VALUES)
def test_any_value_is_one_line_of_ascii_that_strict_parsers_take(value: object) -> None:
    text = dumps({"value": value})
    assert text.count(b"\n") == 1
    assert text.endswith(b"\n")
    assert all(0x20 <= byte < 0x7F for byte in text[:-1])
    json.loads(text)


@given(st.text(st.characters(categories=None)))
def test_text_is_never_a_lone_surrogate(value: str) -> None:
    orjson.loads(dumps([value]))


def test_not_a_number_is_text_and_large_integers_are_exact() -> None:
    assert json.loads(dumps([float("nan"), float("inf"), 2**70])) == ["nan", "inf", 2**70]


def test_nested_without_end_is_cut_and_not_fatal() -> None:
    endless: list[object] = []
    endless.append(endless)
    assert b"\\u2026" in dumps({"value": endless})


def test_iterators_are_lists_wherever_they_lie() -> None:
    value = {"a": iter([1, {"b": iter([{"c": 2}])}]), "d": iter(()), "e": {}, "f": {"g": iter("x")}}
    assert json.loads(dumps(value)) == {
        "a": [1, {"b": [{"c": 2}]}],
        "d": [],
        "e": {},
        "f": {"g": ["x"]},
    }


def test_a_name_that_is_not_utf8_is_lossless() -> None:
    raw = b"mod\xffel"
    fields = named("path", Path(os.fsdecode(raw)))
    assert base64.b64decode(str(fields["path_b64"])) == raw
    assert json.loads(dumps(fields))["path"] == "mod\ufffdel"
    assert named("path", "plain") == {"path": "plain"}
    assert named("file", None) == {"file": None}
    finding = finding_fields(Finding("extra-file", "odd", os.fsdecode(raw)))
    assert base64.b64decode(str(finding["file_b64"])) == raw


def test_times_are_rfc3339_in_utc() -> None:
    assert time_text(1_700_000_000_123_456_789) == "2023-11-14T22:13:20.123Z"
    assert time_text(-1) == "1969-12-31T23:59:59.999Z"
    assert time_text(None) is None
    assert time_text(10**30) is None


def test_artifact_fields_are_those_of_the_contract() -> None:
    artifact = Artifact(Family.KTINT8, Path("/dev/shm"), "job-4711", Path("/dev/shm/k"), State.READY)
    assert {
        "family",
        "store",
        "key",
        "path",
        "state",
        "bytes",
        "files",
        "created",
        "last_used",
        "leases",
    } <= artifact_fields(artifact).keys()
    assert artifact_fields(artifact)["leases"] == {"shared": 0, "exclusive": 0, "pids": []}
