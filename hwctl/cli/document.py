"""JSON documents: the envelope, and how artifacts, findings and failures are spelled in it.

Sizes are integers in bytes, times RFC 3339 in UTC, null is written. Text is always valid Unicode; a name
that is not UTF-8 has its exact bytes beside it as ``<field>_b64``.
"""

from __future__ import annotations

import base64
import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import PurePath

from hwctl.errors import Finding
from hwctl.stores.base import Artifact, Report, State

_ENCODER = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":"))
_DEEPEST = 32
_WIDEST_INTEGER = 4096
_LEAVES = frozenset({str, int, list, tuple, bool, float, type(None)})
_SURROGATE = re.compile("[\ud800-\udfff]")


def dumps(value: object) -> bytes:
    """One line of JSON, ASCII only: every control, bidi and zero-width character is a ``\\u`` escape."""
    return b"".join(pieces(value)) + b"\n"


def pieces(value: object) -> Iterator[bytes]:
    """``dumps`` bit by bit. An iterator inside is a list that need not be in memory as a whole (PER-04)."""
    if isinstance(value, Mapping) and _lazy(value):
        before = b"{"
        for key, item in value.items():
            yield before + _encoded(str(key)) + b":"
            yield from pieces(item)
            before = b","
        yield b"}"
    elif isinstance(value, Iterator):
        before = b"["
        for item in value:
            yield before
            yield from pieces(item)
            before = b","
        yield b"[]" if before == b"[" else b"]"
    else:
        yield _encoded(value)


def _lazy(value: object) -> bool:
    """Whether an iterator lies anywhere below; such values are encoded piece by piece."""
    if type(value) in _LEAVES:
        return False
    if isinstance(value, Mapping):
        return any(map(_lazy, value.values()))
    return isinstance(value, Iterator)


def _encoded(value: object) -> bytes:
    text = _ENCODER.encode(plain(value))
    return text.replace("\x7f", "\\u007f").encode("ascii")


def plain(value: object, depth: int = 0) -> object:
    """``value`` as JSON can hold it: no lone surrogates, no NaN, nothing without an end."""
    if value is None or isinstance(value, bool):
        return value
    if type(value) is str and value.isascii():
        return value  # a row each for 200,000 tensors: what is plain already is not asked further
    if isinstance(value, int):
        # Beyond this Python does not print integers in decimal, and nobody reads them.
        return int(value) if value.bit_length() <= _WIDEST_INTEGER else hex(value)
    if isinstance(value, str):
        return valid(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if depth >= _DEEPEST:
        return "…"
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item, depth + 1) for item in value]
    if isinstance(value, Mapping):
        return {str(plain(str(key))): plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return plain(str(value), depth + 1)


def valid(text: str) -> str:
    """``text`` without lone surrogates, which stand for bytes that were not UTF-8 and no parser agrees on."""
    return str(text) if _SURROGATE.search(text) is None else _SURROGATE.sub("\ufffd", text)


def named(field: str, name: str | PurePath | None) -> dict[str, object]:
    """A field that holds a file name, with its bytes in base64 beside it when they are not UTF-8."""
    if name is None:
        return {field: None}
    text = str(name)
    fields: dict[str, object] = {field: text}
    if _SURROGATE.search(text) is not None:
        fields[f"{field}_b64"] = base64.b64encode(_exact(text)).decode("ascii")
    return fields


def _exact(text: str) -> bytes:
    try:
        return os.fsencode(text)
    except UnicodeEncodeError:
        # Not from a directory but from a document, which can spell surrogates that no file name decodes to.
        return text.encode("utf-8", "surrogatepass")


def time_text(nanoseconds: int | None) -> str | None:
    """RFC 3339 in UTC with milliseconds; None, or out of what a calendar holds, is null."""
    if nanoseconds is None:
        return None
    seconds, rest = divmod(nanoseconds, 1_000_000_000)
    try:
        moment = datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):
        return None
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{rest // 1_000_000:03d}Z"


def artifact_fields(artifact: Artifact) -> dict[str, object]:
    """The fields every document uses for an artifact."""
    leases = artifact.leases
    return {
        "family": artifact.family.value,
        **named("store", artifact.store),
        **named("key", artifact.key),
        **named("path", artifact.path),
        "state": artifact.state.value,
        "bytes": artifact.bytes,
        "allocated_bytes": artifact.allocated,
        "files": artifact.files,
        "created": time_text(artifact.created),
        "last_used": time_text(artifact.last_used),
        "leases": {"shared": leases.shared, "exclusive": leases.exclusive, "pids": list(leases.pids)},
        "owner_uid": artifact.owner_uid,
        "reason": artifact.reason,
        "detail": dict(artifact.detail),
    }


def missing_fields(path: PurePath | None, state: State) -> dict[str, object]:
    """The row of a PATH that leads to no artifact: the same fields, empty."""
    return {
        "family": None,
        "store": None,
        "key": None,
        **named("path", path),
        "state": state.value,
        "bytes": 0,
        "allocated_bytes": 0,
        "files": 0,
        "created": None,
        "last_used": None,
        "leases": {"shared": 0, "exclusive": 0, "pids": []},
        "owner_uid": None,
        "reason": None,
        "detail": {},
    }


def finding_fields(finding: Finding) -> dict[str, object]:
    return {
        "code": finding.code,
        **named("file", finding.file),
        "expected": finding.expected,
        "actual": finding.actual,
        "message": finding.message,
    }


def report_fields(report: Report) -> dict[str, object]:
    """What verify adds to an artifact."""
    return {
        **artifact_fields(report.artifact),
        "level": report.level.value,
        "valid": report.valid,
        "content": report.content.value,
        "checked_bytes": report.checked_bytes,
        "findings": [finding_fields(finding) for finding in report.findings],
        "warnings": list(report.warnings),
    }
