"""The JSON of a safetensors header, read one entry at a time from hostile bytes.

Owns the grammar: which bytes are JSON, which JSON the safetensors library takes for a header, and the
bounds on depth, number size and count. Whether the offsets and shapes make sense is judged in
safetensors_file. A general JSON parser is no use here: one that builds the document needs twenty times
the header in memory, keeps silent about repeated keys, and ends in RecursionError on nested lists (VER-04).
"""

from __future__ import annotations

import codecs
import json
import math
import re
from collections.abc import Iterator
from typing import NamedTuple

MAX_DEPTH = 127
"""Containers that may be open at once; the safetensors library gives up at the next one."""

MAX_DIMENSIONS = 1024
"""Longer shapes are refused. No tensor library goes beyond 64; the bound keeps a hostile header cheap."""

MAX_METADATA = 1_000_000
"""Entries of ``__metadata__``, bounded for the same reason."""

METADATA_KEY = "__metadata__"

_SPACE = rb"[ \t\n\r]*"
_UNSIGNED = rb"(?:0|[1-9][0-9]{0,19})"
_INTEGERS = rb"(?:%b%b(?:%b,%b%b){0,%d})?%b" % (
    _SPACE,
    _UNSIGNED,
    _SPACE,
    _SPACE,
    _UNSIGNED,
    MAX_DIMENSIONS - 1,
    _SPACE,
)
_WHITE = re.compile(_SPACE)
_PLAIN_STRING = re.compile(rb'"([^"\\\x00-\x1f]*)"')
_STRING_RUN = re.compile(rb'(?:[^"\\\x00-\x1f]+|\\(?:["\\/bfnrt]|u[0-9A-Fa-f]{4})){1,4096}')
_NUMBER = re.compile(rb"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_WORD = re.compile(rb"true|false|null")
_SHAPE = re.compile(rb"\[(%b)\]" % _INTEGERS)
_FIELD = re.compile(
    rb'%b"(dtype|shape|data_offsets)"%b:%b(?:"([A-Z0-9_]+)"|\[(%b)\])%b([,}])'
    % (_SPACE, _SPACE, _SPACE, _INTEGERS, _SPACE)
)
"""One well-formed field of an entry: what all but hand-made headers consist of."""

_KNOWN = ("dtype", "shape", "data_offsets")
_U64_MAX = 2**64 - 1


class Malformed(Exception):
    """Raised inside this room only; ``code`` is the finding's code, ``at`` the byte in the header."""

    def __init__(self, code: str, message: str, at: int) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.at = at


class RawEntry(NamedTuple):
    """One tensor as the header says it, types checked and nothing else.

    ``repeated`` names a field that stood twice and was not one of the three (those are refused).
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    repeated: str | None = None


class RawMetadata(NamedTuple):
    """``__metadata__``, with the first key that stood twice, if any."""

    values: dict[str, str]
    repeated: str | None


def read_entries(header: bytes) -> Iterator[RawEntry | RawMetadata]:
    """The header's members in their order; Malformed at the first thing the library would not take."""
    _check_utf8(header)
    cursor = _Cursor(header)
    if cursor.peek() != b"{":
        raise cursor.wrong_type("an object")
    seen_metadata = False
    for name in cursor.members(depth=1):
        if name != METADATA_KEY:
            yield cursor.entry(name)
            continue
        if seen_metadata:
            raise Malformed("header-duplicate-key", f"{METADATA_KEY} stands twice", cursor.at)
        seen_metadata = True
        yield cursor.metadata()
    cursor.end()


def _check_utf8(header: bytes) -> None:
    """In pieces: one character beyond Latin-1 would make the whole text four bytes a character."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    piece = 1 << 20
    for start in range(0, len(header), piece):
        try:
            decoder.decode(header[start : start + piece], final=start + piece >= len(header))
        except UnicodeDecodeError as exc:
            raise Malformed("header-not-json", "not UTF-8", start + exc.start) from None


class _Cursor:
    """A place in the header's bytes, with one method for each thing that may stand there."""

    __slots__ = ("at", "data")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def peek(self) -> bytes:
        """The next byte that is not white space, empty at the end."""
        match = _WHITE.match(self.data, self.at)
        assert match is not None
        self.at = match.end()
        return self.data[self.at : self.at + 1]

    def expect(self, byte: bytes) -> None:
        if self.peek() != byte:
            raise self.not_json(f"expected {byte.decode()!r}")
        self.at += 1

    def end(self) -> None:
        if self.peek():
            raise self.not_json("bytes after the closing brace that are not white space")

    def not_json(self, message: str) -> Malformed:
        if self.at >= len(self.data):
            return Malformed("header-not-json", "the JSON ends too early", self.at)
        return Malformed("header-not-json", message, self.at)

    def wrong_type(self, wanted: str) -> Malformed:
        """For JSON of another type than the format wants; plain rubbish is told apart from it."""
        if self.peek() in (b"{", b"[", b'"', b"t", b"f", b"n", b"-", *(b"%d" % n for n in range(10))):
            return Malformed("header-type", f"expected {wanted}", self.at)
        return self.not_json(f"expected {wanted}")

    def members(self, depth: int) -> Iterator[str]:
        """The keys of the object that starts here; the caller reads each value before the next key."""
        self.expect(b"{")
        if depth > MAX_DEPTH:
            raise Malformed("header-not-json", f"nested deeper than {MAX_DEPTH}", self.at)
        if self.peek() == b"}":
            self.at += 1
            return
        while True:
            self.peek()
            key = self.string()
            self.expect(b":")
            self.peek()
            yield key
            if self.peek() == b"}":
                self.at += 1
                return
            self.expect(b",")

    def string(self) -> str:
        match = _PLAIN_STRING.match(self.data, self.at)
        if match is not None:
            self.at = match.end()
            return match[1].decode()
        start = self.at
        self.skip_string()
        text: str = json.loads(self.data[start : self.at])
        try:
            text.encode()
        except UnicodeEncodeError:
            raise Malformed("header-not-json", "half a surrogate pair in a string", start) from None
        return text

    def skip_string(self) -> None:
        if self.data[self.at : self.at + 1] != b'"':
            raise self.not_json("expected a string")
        self.at += 1
        while (match := _STRING_RUN.match(self.data, self.at)) is not None:
            self.at = match.end()
        if self.data[self.at : self.at + 1] != b'"':
            raise self.not_json("a string with a control character or an unknown escape")
        self.at += 1

    def metadata(self) -> RawMetadata:
        """An object of text, or null, which the library takes for none."""
        if self.data.startswith(b"null", self.at):
            self.at += 4
            return RawMetadata({}, None)
        if self.peek() != b"{":
            raise self.wrong_type(f"an object in {METADATA_KEY}")
        values: dict[str, str] = {}
        repeated = None
        for key in self.members(depth=2):
            if self.peek() != b'"':
                raise self.wrong_type(f"text in {METADATA_KEY}")
            if key in values:
                repeated = key
            values[key] = self.string()
            if len(values) > MAX_METADATA:
                raise Malformed("header-type", f"more than {MAX_METADATA} entries in {METADATA_KEY}", self.at)
        return RawMetadata(values, repeated)

    def entry(self, name: str) -> RawEntry:
        """The three fields of a tensor, in any order, or (as the library allows) as a bare list."""
        first = self.peek()
        if first == b"[":
            return self._entry_list(name)
        if first != b"{":
            raise self.wrong_type("an object for a tensor")
        dtype: str | None = None
        shape: tuple[int, ...] | None = None
        offsets: tuple[int, ...] | None = None
        at = self.at + 1
        while (match := _FIELD.match(self.data, at)) is not None:
            field, text, integers, closing = match.groups()
            if field == b"dtype" and text is not None and dtype is None:
                dtype = text.decode()
            elif field == b"shape" and integers is not None and shape is None:
                shape = _integers(integers)
            elif field == b"data_offsets" and integers is not None and offsets is None:
                offsets = _integers(integers)
            else:
                break
            at = match.end()
            if closing == b"}":
                if dtype is None or shape is None or offsets is None:
                    break
                if len(offsets) != 2 or not _in_range(shape, offsets):
                    break
                self.at = at
                return RawEntry(name, dtype, shape, offsets)
        return self._odd_entry(name)

    def _odd_entry(self, name: str) -> RawEntry:
        """An object with further fields, escaped keys or something wrong: slower, and it says what."""
        dtype: str | None = None
        shape: tuple[int, ...] | None = None
        offsets: tuple[int, ...] | None = None
        others: set[str] = set()
        known: set[str] = set()
        repeated = None
        for field in self.members(depth=2):
            if field in known:
                raise Malformed("header-duplicate-key", f"{field} stands twice in one tensor", self.at)
            if field == "dtype":
                dtype = self._dtype()
            elif field == "shape":
                shape = self._unsigned("a shape", "tensor-shape")
            elif field == "data_offsets":
                offsets = self._offsets()
            else:
                self._skip_value(depth=2)
                if field in others:
                    repeated = field
                others.add(field)
                continue
            known.add(field)
        if dtype is None or shape is None or offsets is None:
            missing = ", ".join(field for field in _KNOWN if field not in known)
            raise Malformed("header-type", f"a tensor without {missing}", self.at)
        return RawEntry(name, dtype, shape, offsets, repeated)

    def _entry_list(self, name: str) -> RawEntry:
        self.expect(b"[")
        self.peek()
        dtype = self._dtype()
        self.expect(b",")
        shape = self._unsigned("a shape", "tensor-shape")
        self.expect(b",")
        offsets = self._offsets()
        self.expect(b"]")
        return RawEntry(name, dtype, shape, offsets)

    def _dtype(self) -> str:
        """A text, or ``{"U8": null}``: the library takes its enumeration in either spelling."""
        first = self.peek()
        if first == b'"':
            return self.string()
        if first != b"{":
            raise self.wrong_type("a dtype")
        dtype = ""
        for count, key in enumerate(self.members(depth=3)):
            if count or not self.data.startswith(b"null", self.at):
                raise self.wrong_type("a dtype")
            self.at += 4
            dtype = key
        return dtype

    def _unsigned(self, what: str, code: str) -> tuple[int, ...]:
        if self.peek() != b"[":
            raise self.wrong_type(f"a list for {what}")
        match = _SHAPE.match(self.data, self.at)
        values = None if match is None else _integers(match[1])
        if match is None or values is None or not _in_range(values):
            start = self.at
            self._skip_value(depth=2)  # what is no JSON at all says so itself
            raise Malformed(code, f"{what} that is not a list of unsigned 64-bit integers", start)
        self.at = match.end()
        return values

    def _offsets(self) -> tuple[int, ...]:
        offsets = self._unsigned("data_offsets", "tensor-offsets")
        if len(offsets) != 2:
            raise Malformed("tensor-offsets", f"{len(offsets)} data_offsets where two belong", self.at)
        return offsets

    def _skip_value(self, depth: int) -> None:
        """Pass over any JSON value without building it; ``depth`` containers are open around it."""
        open_: list[bytes] = []
        while True:
            first = self.peek()
            if first in (b"{", b"["):
                self.at += 1
                open_.append(b"}" if first == b"{" else b"]")
                if depth + len(open_) > MAX_DEPTH:
                    raise Malformed("header-not-json", f"nested deeper than {MAX_DEPTH}", self.at)
                if self.peek() != open_[-1]:
                    if first == b"{":
                        self._skip_key()
                    continue
            else:
                self._skip_scalar(first)
            if not self._close(open_):
                return

    def _close(self, open_: list[bytes]) -> bool:
        """After a value: close what closes here. True when another value follows inside."""
        while open_:
            if self.peek() == open_[-1]:
                self.at += 1
                open_.pop()
                continue
            self.expect(b",")
            if open_[-1] == b"}":
                self._skip_key()
            return True
        return False

    def _skip_key(self) -> None:
        self.peek()
        self.string()
        self.expect(b":")

    def _skip_scalar(self, first: bytes) -> None:
        if first == b'"':
            self.string()
            return
        match = _WORD.match(self.data, self.at) or _NUMBER.match(self.data, self.at)
        if match is None:
            raise self.not_json("expected a value")
        if first not in (b"t", b"f", b"n") and math.isinf(float(match[0])):
            raise Malformed("header-not-json", "a number out of range", self.at)
        self.at = match.end()


def _integers(text: bytes) -> tuple[int, ...]:
    return tuple(map(int, text.split(b","))) if text.strip() else ()


def _in_range(*lists: tuple[int, ...]) -> bool:
    return all(value <= _U64_MAX for values in lists for value in values)
