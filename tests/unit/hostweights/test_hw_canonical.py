"""Canonical JSON: the bytes keys are made of, and what is refused on the way in."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwctl.stores.hostweights import canonical

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"b": 1, "a": [True, None]}, b'{"a":[true,null],"b":1}'),
        ({"\U0001f9e9": 1, "\uff5e": 2}, b'{"\\uff5e":2,"\\ud83e\\udde9":1}'),
        ('a/b\x7f\x00\b\t\n\f\r"\\', b'"a/b\\u007f\\u0000\\b\\t\\n\\f\\r\\"\\\\"'),
        ("\ud800", b'"\\ud800"'),
        ([1.0, 0.1, 1e16, 1e-05, -0.0, 5e-324], b"[1.0,0.1,1e+16,1e-05,-0.0,5e-324]"),
        (12345678901234567890, b"12345678901234567890"),
    ],
)
def test_bytes(value: object, expected: bytes) -> None:
    assert canonical.encode(value) == expected
    assert canonical.parse(expected).canonical == expected


@given(JSON)
def test_reading_what_was_encoded_changes_nothing(value: Any) -> None:
    data = canonical.encode(value)
    parsed = canonical.parse(data)
    assert parsed.canonical == data
    assert canonical.parse(json.dumps(value, indent=2, ensure_ascii=False).encode("utf-8", "surrogatepass"))


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "not-json"),
        (b"{", "not-json"),
        (b'{"a":1,"a":1}', "duplicate-key"),
        (b'{"x":{"a":1,"b":2,"a":3}}', "duplicate-key"),
        (b"NaN", "not-json"),
        (b"[-Infinity]", "not-json"),
        (b"[1e999]", "not-json"),
        (b"1" * 5000, "not-json"),
        (b"[" * 200_000 + b"]" * 200_000, "json-too-deep"),
        (b"\xff\xfe", "not-json"),
        (b'"\xff"', "not-json"),
        (b" " * 1000, "not-json"),
    ],
)
def test_what_is_no_document_says_why(data: bytes, code: str) -> None:
    with pytest.raises(canonical.BadDocument) as bad:
        canonical.parse(data)
    assert bad.value.code == code
    assert bad.value.finding("READY.json").file == "READY.json"


def test_other_spellings_of_the_same_document_are_read() -> None:
    expected = canonical.encode({"a": "\u00e9", "b": 0.1})
    for text in ('{"b": 1e-1, "a": "\u00e9"}', '\ufeff{"a":"\\u00e9","b":0.10}'):
        for encoding in ("utf-8", "utf-16", "utf-32"):
            assert canonical.parse(text.lstrip("\ufeff").encode(encoding)).canonical == expected
    assert canonical.parse(b"1e-999").value == 0.0


def test_what_comes_from_outside_is_held_to_plain_types() -> None:
    assert canonical.validated({"a": (1, 2)}) == {"a": [1, 2]}
    for bad in ({1: 2}, {"a": {None: 1}}, [b"x"], object()):
        with pytest.raises(TypeError):
            canonical.validated(bad)
    with pytest.raises(ValueError):
        canonical.validated([math.nan])
