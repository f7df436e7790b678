"""Strict JSON for the family's documents: what a reader may not guess about is an error with a reason.

Owns the grammar and its bounds (duplicate keys, byte-order mark, trailing bytes, nesting, digits, NaN).
What the values mean is ``manifest`` and ``lease``. A manifest lists every file of a tree, so its layers are
found as spans of the text and decoded one at a time: memory stays at the text itself plus one layer.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

SIZE_LIMIT = 256 << 20
"""Bytes of a document that is still read; 180,000 files with digests take 30 MiB."""

DEPTH_LIMIT = 16
"""Objects and lists inside each other; a manifest itself needs five."""

DIGIT_LIMIT = 19
"""Digits of an integer: everything that fits 64 bits."""

_CONTAINERS = (dict, list)
_SPACE = re.compile(r"[ \t\n\r]*")


class BadJson(ValueError):
    """The bytes are not the JSON we take; the text says why. Raised and caught inside this family."""


Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Outline:
    """An object taken apart at its top: all members decoded but one list, whose elements are spans."""

    text: str
    members: dict[str, object]
    elements: tuple[Span, ...] | None

    def decode(self, span: Span) -> object:
        """The value of one element of the list, which was checked when the outline was made."""
        return _Scanner(self.text).decoder.raw_decode(self.text, span[0])[0]


def parse_object(data: bytes) -> dict[str, object]:
    """The one JSON object that these bytes are."""
    return outline(data, None).members


def outline(data: bytes, list_key: str | None) -> Outline:
    """Take an object apart; the list under ``list_key`` is checked but left as spans.

    Raises BadJson for everything that is not exactly one object. A ``list_key`` whose value is no list is
    decoded like any other member, so that the caller can say what it is instead.
    """
    text = _decode(data)
    scanner = _Scanner(text)
    members: dict[str, object] = {}
    elements: tuple[Span, ...] | None = None
    at = scanner.skip(0)
    if text[at : at + 1] != "{":
        raise BadJson("is not a JSON object" if at < len(text) else "is empty")
    for key, begin in scanner.keys(at):
        if key in members or (key == list_key and elements is not None):
            raise BadJson(f"has the key {key!r} twice")
        if key == list_key and text[begin] == "[":
            elements = tuple(scanner.elements(begin))
        else:
            members[key], scanner.at = scanner.value(begin, depth=1)
    if scanner.skip(scanner.at) != len(text):
        raise BadJson(f"has more bytes after its closing brace (at character {scanner.at})")
    return Outline(text, members, elements)


def dump(value: object) -> str:
    """A document as upstream writes it: sorted keys, no spaces, no newline, ASCII only."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _decode(data: bytes) -> str:
    if data.startswith(b"\xef\xbb\xbf"):
        raise BadJson("starts with a byte-order mark")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as exc:
        raise BadJson(f"is not UTF-8 (at byte {exc.start})") from None


class _Scanner:
    """A place in the text; values are left to the standard decoder, whose gaps are closed by hooks."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.decoder = json.JSONDecoder(
            object_pairs_hook=_unique, parse_int=_integer, parse_float=_real, parse_constant=_no_constant
        )

    def skip(self, at: int) -> int:
        match = _SPACE.match(self.text, at)
        assert match is not None
        return match.end()

    def value(self, at: int, *, depth: int) -> tuple[object, int]:
        """The value at ``at`` and where it ends; ``depth`` containers are open around it."""
        try:
            value, end = self.decoder.raw_decode(self.text, at)
        except json.JSONDecodeError as exc:
            raise BadJson(f"is not JSON: {exc.msg} (at character {exc.pos})") from None
        except RecursionError:
            raise BadJson(f"is nested deeper than {DEPTH_LIMIT}") from None
        if not _shallow(value, DEPTH_LIMIT - depth):
            raise BadJson(f"is nested deeper than {DEPTH_LIMIT}")
        return value, end

    def keys(self, at: int) -> Iterator[tuple[str, int]]:
        """Each key of the object at ``at`` with the place of its value; the caller moves ``self.at``."""
        at = self.skip(at + 1)
        if self.text[at : at + 1] == "}":
            self.at = at + 1
            return
        while True:
            if self.text[at : at + 1] != '"':
                raise BadJson(f"is not JSON: a key should stand at character {at}")
            key, end = self.value(at, depth=1)
            assert isinstance(key, str)
            end = self.skip(end)
            if self.text[end : end + 1] != ":":
                raise BadJson(f"is not JSON: ':' should stand at character {end}")
            begin = self.skip(end + 1)
            if begin == len(self.text):
                raise BadJson("ends too early")
            yield key, begin
            if not self._more("}"):
                return
            at = self.skip(self.at)

    def elements(self, at: int) -> Iterator[Span]:
        """The span of each element of the list at ``at``, checked; ``self.at`` ends behind the list."""
        at = self.skip(at + 1)
        if self.text[at : at + 1] == "]":
            self.at = at + 1
            return
        while True:
            _value, self.at = self.value(at, depth=2)
            yield at, self.at
            if not self._more("]"):
                return
            at = self.skip(self.at)

    def _more(self, closing: str) -> bool:
        """Step over the comma or the closing mark after a value."""
        at = self.skip(self.at)
        mark = self.text[at : at + 1]
        if mark not in (",", closing) or not mark:
            raise BadJson("ends too early" if not mark else f"is not JSON: {mark!r} at character {at}")
        self.at = at + 1
        return mark == ","


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    value = dict(pairs)
    if len(value) != len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise BadJson(f"has the key {twice!r} twice")
    return value


def _integer(digits: str) -> int:
    if len(digits.lstrip("-")) > DIGIT_LIMIT:
        raise BadJson(f"holds an integer of more than {DIGIT_LIMIT} digits")
    return int(digits)


def _real(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise BadJson("holds a number that is out of range")
    return value


def _no_constant(name: str) -> object:
    raise BadJson(f"holds {name}, which is not JSON")


def _shallow(value: object, left: int) -> bool:
    """Whether no more than ``left`` containers lie inside each other."""
    if isinstance(value, dict):
        inner = [child for child in value.values() if type(child) in _CONTAINERS]
    elif isinstance(value, list):
        inner = [child for child in value if type(child) in _CONTAINERS]
    else:
        return True
    # Most are the objects of files, which hold none.
    return left > 0 and (not inner or all(_shallow(child, left - 1) for child in inner))
