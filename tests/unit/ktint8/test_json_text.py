"""Strict JSON: what the bytes may not be, and that nothing but BadJson comes out of it (VER-09)."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwctl.stores.ktint8.json_text import BadJson, dump, outline, parse_object

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**18), 10**18)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is empty"),
        (b"   ", "is empty"),
        (b"[]", "is not a JSON object"),
        (b"null", "is not a JSON object"),
        (b'"x"', "is not a JSON object"),
        (b"\xef\xbb\xbf{}", "byte-order mark"),
        (b"{}x", "more bytes after its closing brace"),
        (b"{} {}", "more bytes after its closing brace"),
        (b'{"a":1,"a":2}', "the key 'a' twice"),
        (b'{"a":{"b":1,"b":2}}', "the key 'b' twice"),
        (b'{"layers":[],"layers":[]}', "the key 'layers' twice"),
        (b'{"a":NaN}', "NaN"),
        (b'{"a":-Infinity}', "Infinity"),
        (b'{"a":1e400}', "out of range"),
        (b'{"a":' + b"1" * 20 + b"}", "more than 19 digits"),
        (b'{"a":"\xff"}', "not UTF-8 (at byte 6)"),
        (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested deeper"),
        (b'{"a":' + b"[" * 16 + b"]" * 16 + b"}", "nested deeper"),
        (b'{"layers":[' + b"[" * 15 + b"]" * 15 + b"]}", "nested deeper"),
        (b'{"a":1', "ends too early"),
        (b'{"a"', "not JSON"),
        (b'{"a":', "ends too early"),
        (b'{"layers":[1,2', "ends too early"),
        (b'{"layers":[1 2]}', "not JSON"),
        (b"{a:1}", "a key should stand"),
        (b'{"a":1,}', "a key should stand"),
    ],
)
def test_refused(data: bytes, words: str) -> None:
    with pytest.raises(BadJson) as caught:
        outline(data, "layers")
    assert words in str(caught.value)


def test_depth_up_to_the_limit_is_taken() -> None:
    assert parse_object(b'{"a":' + b"[" * 15 + b"]" * 15 + b"}")


def test_the_list_is_left_as_spans() -> None:
    text = ' { "b" : [ 1 , {"x":2} ] , "layers" : [ {"i":1} , {"i":2} ] , "z" : null } '
    found = outline(text.encode(), "layers")
    assert found.members == {"b": [1, {"x": 2}], "z": None}
    assert found.elements is not None
    assert [found.decode(span) for span in found.elements] == [{"i": 1}, {"i": 2}]


@pytest.mark.parametrize("value", ["[]", "[ ]"])
def test_an_empty_list(value: str) -> None:
    assert outline(f'{{"layers":{value}}}'.encode(), "layers").elements == ()


def test_a_member_that_is_no_list_is_kept() -> None:
    found = outline(b'{"layers":{"a":1}}', "layers")
    assert found.elements is None
    assert found.members == {"layers": {"a": 1}}


@given(st.dictionaries(st.text(), VALUES, max_size=6), st.booleans())
def test_reads_what_the_standard_library_writes(value: dict[str, object], compact: bool) -> None:
    text = dump(value) if compact else json.dumps(value, indent=1, ensure_ascii=False)
    try:
        data = text.encode()
    except UnicodeEncodeError:
        return  # a lone surrogate is no UTF-8
    assert parse_object(data) == json.loads(data)


@given(st.binary(max_size=200))
@settings(max_examples=300)
def test_any_bytes_give_an_object_or_badjson(data: bytes) -> None:
    try:
        outline(data, "layers")
    except BadJson as exc:
        assert str(exc)


@given(st.data())
def test_a_damaged_document_gives_an_object_or_badjson(data: st.DataObject) -> None:
    whole = bytearray(dump({"a": [1, 2], "layers": [{"index": 3, "files": []}], "s": "x"}).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(whole) - 1))
        whole[at] = data.draw(st.integers(0, 255))
    try:
        found = outline(bytes(whole), "layers")
    except BadJson:
        return
    for span in found.elements or ():
        found.decode(span)
