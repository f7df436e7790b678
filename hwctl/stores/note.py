"""The note beside what lies in quarantine: why and when it was set aside.

Owns ``hwctl-note.json``, of the two families whose quarantine is hwctl's own. A note is for people: one that
is missing or unreadable keeps no entry from being listed, restored or deleted.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import dataclass

from hwctl.fs.atomic import create_document
from hwctl.fs.paths import read_document

NAME = "hwctl-note.json"

_SCHEMA = "hwctl.note/1"
_LIMIT = 1 << 20
_LATEST = 1 << 63
"""Nanoseconds; what a file system's clock cannot show is nobody's time."""


@dataclass(frozen=True, slots=True)
class Note:
    """``reason`` and ``time_ns`` are None when there is no readable note."""

    reason: str | None = None
    time_ns: int | None = None


def write(entry_fd: int, reason: str) -> None:
    """Note in a quarantine entry's folder, as of now. What is out of sight stays so without a note: a full
    disk, which may be why it was set aside, is no failure."""
    document = {"schema": _SCHEMA, "reason": reason, "time_ns": time.time_ns()}
    data = json.dumps(document, sort_keys=True).encode("ascii") + b"\n"
    with suppress(OSError):
        create_document(entry_fd, NAME, data, 0o600)


def read(entry_fd: int) -> Note:
    """The note in a quarantine entry's folder."""
    try:
        value = json.loads(read_document(NAME, dir_fd=entry_fd, limit=_LIMIT).data)
    except (OSError, ValueError, RecursionError):
        return Note()
    if not isinstance(value, dict):
        return Note()
    reason, time_ns = value.get("reason"), value.get("time_ns")
    timed = type(time_ns) is int and 0 <= time_ns < _LATEST
    return Note(reason if isinstance(reason, str) else None, time_ns if timed else None)
