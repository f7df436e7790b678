"""The JSON of a safetensors header, read one entry at a time from hostile bytes.

Owns what the library takes for a header: which fields, of which types, in which spellings. Whether offsets
and shapes make sense is judged in tensor_layout. A parser that builds the document is no use here: it needs
twenty times the header in memory and keeps silent about repeated keys (VER-04).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from hwctl.weights.json_cursor import SPACE, JsonCursor, Malformed, check_utf8

MAX_DIMENSIONS = 1024
"""Longer shapes are refused. No tensor library goes beyond 64; the bound keeps a hostile header cheap."""

MAX_METADATA = 1_000_000
"""Entries of ``__metadata__``, bounded for the same reason."""

METADATA_KEY = "__metadata__"

_FIELDS = ("dtype", "shape", "data_offsets")
_U64_MAX = 2**64 - 1
_UNSIGNED = rb"(?:0|[1-9][0-9]{0,19})"
_INTEGERS = rb"(?:%b%b(?:%b,%b%b){0,%d})?%b" % (
    *(SPACE, _UNSIGNED),
    *(SPACE, SPACE, _UNSIGNED, MAX_DIMENSIONS - 1),
    SPACE,
)
_LIST = re.compile(rb"\[(%b)\]" % _INTEGERS)
_FIELD = re.compile(
    rb'%b"(dtype|shape|data_offsets)"%b:%b(?:"([A-Z0-9_]+)"|\[(%b)\])%b([,}])'
    % (SPACE, SPACE, SPACE, _INTEGERS, SPACE)
)
"""One well-formed field of an entry: what all but hand-made headers consist of."""


class RawEntry(NamedTuple):
    """One tensor as the header says it, types checked and nothing else.

    ``repeated`` names a field that stood twice and was not one of the three (those are refused).
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int
    repeated: str | None = None


class RawMetadata(NamedTuple):
    """``__metadata__``, with the first key that stood twice, if any."""

    values: dict[str, str]
    repeated: str | None


def read_entries(header: bytes) -> Iterator[RawEntry | RawMetadata]:
    """The header's members in their order; Malformed at the first thing the library would not take."""
    check_utf8(header)
    cursor = JsonCursor(header)
    if cursor.peek() != b"{":
        raise cursor.wrong_type("an object")
    seen_metadata = False
    for name in cursor.members():
        if name != METADATA_KEY:
            yield _entry(cursor, name)
            continue
        if seen_metadata:
            raise Malformed("header-duplicate-key", f"{METADATA_KEY} stands twice", cursor.at)
        seen_metadata = True
        yield _metadata(cursor)
    cursor.end()


def _metadata(cursor: JsonCursor) -> RawMetadata:
    """An object of text, or null, which the library takes for none."""
    values: dict[str, str] = {}
    repeated = None
    if cursor.null():
        return RawMetadata(values, None)
    if cursor.peek() != b"{":
        raise cursor.wrong_type(f"an object in {METADATA_KEY}")
    for key in cursor.members():
        if cursor.peek() != b'"':
            raise cursor.wrong_type(f"text in {METADATA_KEY}")
        if key in values and repeated is None:
            repeated = key
        values[key] = cursor.string()
        if len(values) > MAX_METADATA:
            raise Malformed("header-type", f"more than {MAX_METADATA} entries in {METADATA_KEY}", cursor.at)
    return RawMetadata(values, repeated)


def _entry(cursor: JsonCursor, name: str) -> RawEntry:
    """The three fields of a tensor, in any order, or (as the library allows) as a bare list."""
    first = cursor.peek()
    if first == b"[":
        return _entry_list(cursor, name)
    if first != b"{":
        raise cursor.wrong_type("an object for a tensor")
    return _plain_entry(cursor, name) or _odd_entry(cursor, name)


def _plain_entry(cursor: JsonCursor, name: str) -> RawEntry | None:
    """The quick way: exactly the three fields, plainly spelled. None sends the entry the slow way."""
    found: dict[bytes, bytes] = {}
    at = cursor.at + 1
    while (match := _FIELD.match(cursor.data, at)) is not None:
        field, text, integers, closing = match.groups()
        value = text if field == b"dtype" else integers
        if value is None or field in found:
            return None
        found[field] = value
        at = match.end()
        if closing == b"}":
            break
    if len(found) != len(_FIELDS) or cursor.data[at - 1 : at] != b"}":
        return None
    shape, offsets = _integers(found[b"shape"]), _integers(found[b"data_offsets"])
    if len(offsets) != 2 or max(shape, default=0) > _U64_MAX or max(offsets) > _U64_MAX:
        return None
    cursor.at = at
    return RawEntry(name, found[b"dtype"].decode(), shape, offsets[0], offsets[1])


def _odd_entry(cursor: JsonCursor, name: str) -> RawEntry:
    """An object with further fields, escaped keys or something wrong: slower, and it says what."""
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    offsets: tuple[int, int] | None = None
    seen: set[str] = set()
    repeated = None
    for field in cursor.members():
        if field in seen:
            if field in _FIELDS:
                raise Malformed("header-duplicate-key", f"{field} stands twice in one tensor", cursor.at)
            repeated = field
        seen.add(field)
        if field == "dtype":
            dtype = _dtype(cursor)
        elif field == "shape":
            shape = _shape(cursor)
        elif field == "data_offsets":
            offsets = _offsets(cursor)
        else:
            cursor.skip_value(depth=2)
    if dtype is None or shape is None or offsets is None:
        missing = ", ".join(field for field in _FIELDS if field not in seen)
        raise Malformed("header-type", f"a tensor without {missing}", cursor.at)
    return RawEntry(name, dtype, shape, *offsets, repeated)


def _entry_list(cursor: JsonCursor, name: str) -> RawEntry:
    cursor.expect(b"[")
    dtype = _dtype(cursor)
    cursor.expect(b",")
    shape = _shape(cursor)
    cursor.expect(b",")
    offsets = _offsets(cursor)
    if cursor.peek() != b"]":
        raise cursor.wrong_type("a tensor's list to end after three members")
    cursor.at += 1
    return RawEntry(name, dtype, shape, *offsets)


def _dtype(cursor: JsonCursor) -> str:
    """A text, or ``{"U8": null}``: the library takes its enumeration in either spelling."""
    first = cursor.peek()
    if first == b'"':
        return cursor.string()
    if first != b"{":
        raise cursor.wrong_type("a dtype")
    keys: list[str] = []
    for key in cursor.members():
        if keys or not cursor.null():
            raise cursor.wrong_type("a dtype")
        keys.append(key)
    if not keys:
        raise Malformed("header-type", "expected a dtype", cursor.at)
    return keys[0]


def _shape(cursor: JsonCursor) -> tuple[int, ...]:
    return _unsigned(cursor, "a shape", "tensor-shape")


def _offsets(cursor: JsonCursor) -> tuple[int, int]:
    offsets = _unsigned(cursor, "data_offsets", "tensor-offsets")
    if len(offsets) != 2:
        raise Malformed("tensor-offsets", f"{len(offsets)} data_offsets where two belong", cursor.at)
    return offsets[0], offsets[1]


def _unsigned(cursor: JsonCursor, what: str, code: str) -> tuple[int, ...]:
    if cursor.peek() != b"[":
        raise cursor.wrong_type(f"a list for {what}")
    match = _LIST.match(cursor.data, cursor.at)
    values = None if match is None else _integers(match[1])
    if match is None or values is None or max(values, default=0) > _U64_MAX:
        start = cursor.at
        cursor.skip_value(depth=2)  # what is no JSON at all says so itself
        wanted = f"at most {MAX_DIMENSIONS} unsigned 64-bit integers"
        raise Malformed(code, f"{what} that is not a list of {wanted}", start)
    cursor.at = match.end()
    return values


def _integers(text: bytes) -> tuple[int, ...]:
    return tuple(map(int, text.split(b","))) if text.strip() else ()
