"""Reading typed fields out of parsed JSON objects, collecting everything that is wrong.

Owns exact field sets and exact types: a boolean is never an integer and an integer never a float. Which
fields there are is said by the modules that read documents.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from hwctl.errors import Finding

SCHEMA = 1
"""Of every document of this family."""
UNSUPPORTED_SCHEMA = "unsupported-schema"
"""The finding for a document of another version: whoever meets it cannot judge what it belongs to."""
SHA256_HEX = re.compile(r"[0-9a-f]{64}")


@dataclass(slots=True)
class Problems:
    """Findings about one file, in the order in which they were met."""

    file: str
    found: list[Finding] = field(default_factory=list)

    def add(self, code: str, message: str, *, expected: object = None, actual: object = None) -> None:
        self.found.append(Finding(code, f"{self.file}: {message}", self.file, expected, actual))


def other_schema(value: object) -> int | None:
    """The number of a schema that is not known here, None for the known one and for what is no number."""
    version = value.get("schema_version") if isinstance(value, dict) else None
    return version if type(version) is int and version > SCHEMA else None


def section(
    value: object, where: str, names: frozenset[str], problems: Problems
) -> Mapping[str, object] | None:
    """The object with exactly these fields, or None after noting what is wrong with it."""
    label = where or "the document"
    if not isinstance(value, dict):
        problems.add("bad-value", f"{label} is not an object", expected="object", actual=kind(value))
        return None
    missing = sorted(names - value.keys())
    unknown = sorted(value.keys() - names)
    for name in missing:
        problems.add("missing-field", f"{label} lacks the field {name!r}", expected=name)
    # One line for all: a hostile document can hold a million of them.
    if unknown:
        more = "" if len(unknown) == 1 else f" and {len(unknown) - 1} more"
        problems.add("unknown-field", f"{label} has the unknown field {unknown[0][:200]!r}{more}")
    return None if missing or unknown else value


def text(fields: Mapping[str, object], name: str, where: str, problems: Problems) -> str:
    """A non-empty text."""
    value = fields[name]
    if isinstance(value, str) and value:
        return value
    _bad(name, where, problems, "non-empty text", value)
    return ""


def integer(fields: Mapping[str, object], name: str, where: str, problems: Problems, minimum: int = 0) -> int:
    """An integer of at least ``minimum``."""
    value = fields[name]
    if type(value) is int and value >= minimum:
        return value
    _bad(name, where, problems, f"an integer of at least {minimum}", value)
    return minimum


def digest(fields: Mapping[str, object], name: str, where: str, problems: Problems) -> str:
    """A SHA-256 in lower-case hex."""
    value = fields[name]
    if isinstance(value, str) and SHA256_HEX.fullmatch(value):
        return value
    _bad(name, where, problems, "64 lower-case hex digits", value)
    return ""


def kind(value: object) -> str:
    """A value in a few words, bounded however large it is."""
    if value is None or isinstance(value, (bool, int, float)):
        return repr(value) if not isinstance(value, int) or abs(value) < 1 << 64 else "a huge integer"
    if isinstance(value, str):
        return repr(value if len(value) <= 80 else value[:80] + "…")
    return "a list" if isinstance(value, list) else "an object"


def _bad(name: str, where: str, problems: Problems, expected: str, value: object) -> None:
    label = f"{where}.{name}" if where else name
    problems.add("bad-value", f"{label} must be {expected}", expected=expected, actual=kind(value))
