"""A place in hostile JSON bytes, with one step for each thing that may stand there.

Strict JSON as the safetensors library reads it, without recursion and without building what nobody wants:
memory stays with the input's size whatever its nesting. What the members mean is the caller's business.
"""

from __future__ import annotations

import codecs
import json
import math
import re
from collections.abc import Iterator

MAX_DEPTH = 127
"""Containers that may be open at once; the safetensors library gives up at the next one."""

SPACE = rb"[ \t\n\r]*"
_WHITE = re.compile(SPACE)
_PLAIN_STRING = re.compile(rb'"([^"\\\x00-\x1f]*)"')
# A bounded number of pieces a match: the regex engine would remember every one of a hundred million escapes.
_STRING_RUN = re.compile(rb'(?:[^"\\\x00-\x1f]+|\\(?:["\\/bfnrt]|u[0-9A-Fa-f]{4})){1,4096}')
_NUMBER = re.compile(rb"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_WORD = re.compile(rb"true|false|null")
_SIMPLE = rb'(?:[0-9]|[1-9][0-9]{1,14}|"[^"\\\x00-\x1f]*"|\[%b\]|\{%b\}|true|false|null)' % (SPACE, SPACE)
_KEY = rb'"[^"\\\x00-\x1f]*"'
# Inside a list or an object: many plain values at one go, each with all that stands before the next value.
# Without them a hostile header would keep the skipping busy for a minute.
_RUNS = {
    b"]": re.compile(rb"(?:%b%b,%b){1,4096}" % (_SIMPLE, SPACE, SPACE)),
    b"}": re.compile(rb"(?:%b%b,%b%b%b:%b){1,4096}" % (_SIMPLE, SPACE, SPACE, _KEY, SPACE, SPACE)),
}
_VALUE_STARTS = frozenset(bytes([byte]) for byte in b'{["tfn-0123456789')
_CHUNK = 1 << 20


class Malformed(Exception):
    """Raised inside this room only; ``code`` is the finding's code, ``at`` the byte where it was met."""

    def __init__(self, code: str, message: str, at: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message if at is None else f"at byte {at}: {message}"


def check_utf8(data: bytes) -> None:
    """In pieces: one character beyond Latin-1 would make the whole text four bytes a character."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    for start in range(0, len(data), _CHUNK):
        try:
            decoder.decode(data[start : start + _CHUNK], final=start + _CHUNK >= len(data))
        except UnicodeDecodeError:
            raise Malformed("header-not-json", "not UTF-8", start) from None


class JsonCursor:
    """Reads ``data``, which must be UTF-8 (check_utf8), forward from ``at``."""

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
        """Nothing but white space follows."""
        if self.peek():
            raise self.not_json("bytes after the closing brace that are not white space")

    def null(self) -> bool:
        """Whether ``null`` stands here; it is passed over."""
        self.peek()
        if not self.data.startswith(b"null", self.at):
            return False
        self.at += 4
        return True

    def not_json(self, message: str) -> Malformed:
        if self.at >= len(self.data):
            message = "the JSON ends too early"
        return Malformed("header-not-json", message, self.at)

    def wrong_type(self, wanted: str) -> Malformed:
        """For JSON of another type than the format wants; plain rubbish is told apart from it."""
        if self.peek() in _VALUE_STARTS:
            return Malformed("header-type", f"expected {wanted}", self.at)
        return self.not_json(f"expected {wanted}")

    def members(self) -> Iterator[str]:
        """The keys of the object that starts here; the caller reads each value before asking for the next."""
        self.expect(b"{")
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
        self._pass_string()
        text: str = json.loads(self.data[start : self.at])
        try:
            text.encode()
        except UnicodeEncodeError:
            raise Malformed("header-not-json", "half a surrogate pair in a string", start) from None
        return text

    def _pass_string(self) -> None:
        if self.data[self.at : self.at + 1] != b'"':
            raise self.not_json("expected a string")
        self.at += 1
        while (match := _STRING_RUN.match(self.data, self.at)) is not None:
            self.at = match.end()
        if self.data[self.at : self.at + 1] != b'"':
            raise self.not_json("a string with a control character or an unknown escape")
        self.at += 1

    def skip_value(self, depth: int) -> None:
        """Pass over any value; ``depth`` containers are open around it."""
        closers = bytearray()
        while True:
            first = self.peek()
            if closers and (run := _RUNS[bytes(closers[-1:])].match(self.data, self.at)) is not None:
                self.at = run.end()
                continue
            if first in (b"{", b"["):
                self.at += 1
                closers += b"}" if first == b"{" else b"]"
                if depth + len(closers) > MAX_DEPTH:
                    raise Malformed("header-not-json", f"nested deeper than {MAX_DEPTH}", self.at)
                if self.peek() != closers[-1:]:
                    if first == b"{":
                        self._skip_key()
                    continue
            else:
                self._skip_scalar(first)
            if not self._another(closers):
                return

    def _another(self, closers: bytearray) -> bool:
        """After a value: close what closes here. True when another value follows inside."""
        while closers:
            if self.peek() == closers[-1:]:
                self.at += 1
                closers.pop()
                continue
            self.expect(b",")
            if closers[-1:] == b"}":
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
        word = _WORD.match(self.data, self.at)
        match = word or _NUMBER.match(self.data, self.at)
        if match is None:
            raise self.not_json("expected a value")
        if word is None and math.isinf(float(match[0])):
            raise Malformed("header-not-json", "a number out of range", self.at)
        self.at = match.end()
