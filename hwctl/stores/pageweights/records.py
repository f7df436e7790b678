"""The two JSON forms of the cache's documents, and the reading of signed records.

*Canonical* bytes are only ever hashed; *stored* bytes are what lies on disk. A record's signature is taken
over the canonical form of what was parsed, so layout and key order on disk do not matter. The parser takes
what the cache's own program takes (the last of two equal keys, NaN, lone surrogates), but ends in a finding
where that one ends in a traceback: deep nesting and numbers beyond all measure.

What the fields of a locator or a receipt must say is judged in ``documents``.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping

from hwctl.errors import Finding

LOCATOR_SCHEMA = "nnf.resynthesis.none_shared_page_weights_cache_locator.v1"
RECEIPT_SCHEMA = "nnf.resynthesis.none_shared_page_weights_cache.v1"
SIGNATURE = "recordPayloadSha256"

DOCUMENT_LIMIT = 1 << 20
"""Bytes of a document that are read at most; the cache's own stay below 3 KiB."""

DEPTH_LIMIT = 64
"""Containers that may be open at once; a receipt needs four."""

# A string that never ends swallows the rest: restarting behind each escaped quote would be quadratic.
_BRACKETS = re.compile(r'"(?:[^"\\]+|\\.)*+"?|([\[{])|([\]}])', re.DOTALL)

Record = Mapping[str, object]


def canonical(value: object) -> bytes:
    """The hashed form: keys by code point, no blanks, everything outside ASCII escaped, no newline."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def digest(value: object) -> str:
    """Lower-case hex SHA-256 of the canonical form."""
    return hashlib.sha256(canonical(value)).hexdigest()


def stored(value: object) -> bytes:
    """The form on disk: keys sorted, compact, raw UTF-8, one newline.

    The writer's values must fit what the cache's own encoder can hold (integers within 64 bits, no lone
    surrogates); ``authority.unwritable`` asks that before anything is written.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


def signed(record: Record) -> dict[str, object]:
    """The record with its signature field set, whatever was there before."""
    body = _unsigned(record)
    return {**body, SIGNATURE: digest(body)}


def _unsigned(record: Record) -> dict[str, object]:
    return {name: value for name, value in record.items() if name != SIGNATURE}


def parse_json(raw: bytes) -> object:
    """Parse as the cache's own program does; ValueError, with words, for all that is not to be parsed."""
    if len(raw) > DOCUMENT_LIMIT:
        raise ValueError(f"is over the limit of {DOCUMENT_LIMIT} bytes")
    text = raw.decode()
    # As many brackets as levels are the cheap upper bound; only odd documents are looked at closely.
    if text.count("[") + text.count("{") > DEPTH_LIMIT and _depth(text) > DEPTH_LIMIT:
        raise ValueError(f"nested deeper than {DEPTH_LIMIT}")
    return json.loads(text)


def _depth(text: str) -> int:
    """How many containers are open at once, strings left out. Says nothing about whether it is JSON."""
    depth = deepest = 0
    for match in _BRACKETS.finditer(text):
        if match[1]:
            depth += 1
            deepest = max(deepest, depth)
        elif match[2]:
            depth -= 1
    return deepest


def parse_record(raw: bytes, schema: str, name: str) -> Record | tuple[Finding, ...]:
    """A document's bytes as a record whose schema and signature are right, or all that is wrong."""
    try:
        value = parse_json(raw)
    except ValueError as exc:  # not UTF-8, not JSON, too deep, a number of thousands of digits
        return (Finding("malformed-record", f"cannot be parsed: {exc}", name),)
    if not isinstance(value, dict):
        message = f"holds {_json_kind(value)} where an object belongs"
        return (Finding("malformed-record", message, name, "object", _json_kind(value)),)
    return tuple(_judge_record(value, schema, name)) or value


def _judge_record(record: Record, schema: str, name: str) -> Iterable[Finding]:
    if record.get("schema") != schema:
        yield Finding("record-authority", "names another schema", name, schema, shown(record.get("schema")))
    recorded = record.get(SIGNATURE)
    expected = digest(_unsigned(record))
    if not isinstance(recorded, str) or recorded != expected:
        message = "its signature does not fit its content"
        yield Finding("record-authority", message, name, expected, shown(recorded))


def shown(value: object) -> object:
    """A value read from a document as a finding may carry it: itself when small and plain, else its kind."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int) and value.bit_length() <= 64:
        return value
    return value if isinstance(value, str) and len(value) <= 256 else _json_kind(value)


def _json_kind(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, str):
        return "text"
    if isinstance(value, list):
        return "an array"
    return "an object" if isinstance(value, dict) else "a number"
