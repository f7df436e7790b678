"""Canonical JSON: the one encoding of everything a host weight store hashes or writes.

Owns bytes <-> value and nothing of what the values mean. The standard library's json is used throughout:
other encoders do not escape non-ASCII text, spell exponents differently, refuse lone surrogates and turn
large integers into floats, and each of those changes a key for ever.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import NoReturn

from hwctl.errors import Finding

DEEPEST = 200
"""How deep a value that is written may be nested. vLLM-Omni reads 480 levels and fails at 600, in a way that
keeps its lock until the process ends."""

_ENCODER = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False, check_circular=False
)


class BadDocument(ValueError):
    """Bytes that are no usable JSON document; ``code`` is the finding they stand for."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code

    def finding(self, file: str) -> Finding:
        return Finding(self.code, f"{file} {self}", file)


@dataclass(frozen=True, slots=True)
class Parsed:
    """A document as read: its value, and the canonical bytes of that value, which are what is hashed."""

    value: object
    canonical: bytes


def encode(value: object) -> bytes:
    """The canonical bytes of a value made of JSON types with text keys only.

    ValueError for NaN and infinities, RecursionError for nesting past the interpreter's limit. Values from
    outside go through ``validated`` first: the encoder itself would turn a key of 1 into "1".
    """
    return _ENCODER.encode(value).encode("ascii")


def validated(value: object) -> object:
    """The value rebuilt from plain JSON types, tuples as lists.

    TypeError for anything else and for keys that are not text; ValueError for NaN, infinities and nesting
    that not every reader can follow.
    """
    rebuilt = _rebuild(value, DEEPEST)
    encode(rebuilt)
    return rebuilt


def _rebuild(value: object, levels: int) -> object:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if not levels:
        raise ValueError(f"is nested deeper than {DEEPEST}")
    if isinstance(value, (list, tuple)):
        return [_rebuild(item, levels - 1) for item in value]
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"a JSON object's key must be text, not {type(key).__name__}")
        return {key: _rebuild(item, levels - 1) for key, item in value.items()}
    raise TypeError(f"{type(value).__name__} is no JSON value")


def parse(data: bytes) -> Parsed:
    """Read one document strictly, or raise BadDocument.

    White space, key order, raw UTF-8, a byte order mark and UTF-16 or UTF-32 are accepted, since upstream
    accepts them. A repeated key is refused: readers disagree about which of the two counts.
    """
    try:
        value = json.loads(data, parse_constant=_no_constant)
        canonical = encode(value)
        if canonical != data:
            # Canonical bytes cannot hold a key twice; only other spellings need the slower second look.
            json.loads(data, object_pairs_hook=_without_repetition)
    except BadDocument:
        raise
    except RecursionError:
        raise BadDocument("json-too-deep", "is nested too deeply to be read") from None
    except ValueError as exc:
        # JSONDecodeError, UnicodeDecodeError, integers past 4300 digits, numbers that overflow.
        raise BadDocument("not-json", f"is not valid JSON: {exc}") from None
    return Parsed(value, canonical)


def _no_constant(name: str) -> NoReturn:
    raise BadDocument("not-json", f"holds {name}, which is no JSON number")


def _without_repetition(pairs: list[tuple[str, object]]) -> dict[str, object]:
    out = dict(pairs)
    if len(out) != len(pairs):
        seen: set[str] = set()
        repeated = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise BadDocument("duplicate-key", f"holds the key {repeated!r} twice")
    return out
