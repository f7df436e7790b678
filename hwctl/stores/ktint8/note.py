"""The note beside a quarantined tree: why and when it was set aside, and what it was.

Owns ``hwctl-note.json``. A note that is missing or unreadable never keeps an entry from being listed,
restored or deleted: it is for people.
"""

from __future__ import annotations

from dataclasses import dataclass

from hwctl.fs.atomic import create_document
from hwctl.fs.paths import read_document
from hwctl.stores.ktint8 import layout
from hwctl.stores.ktint8.json_text import BadJson, dump, parse_object
from hwctl.stores.ktint8.values import WORD_LIMIT, is_index

_LIMIT = 1 << 20


@dataclass(frozen=True, slots=True)
class Note:
    """``reason`` and ``time_ns`` are None when there is no readable note."""

    reason: str | None = None
    time_ns: int | None = None


def write(entry_fd: int, note: Note) -> None:
    """Put the note into a quarantine entry's folder."""
    data = dump({"schema": "hwctl.note/1", "reason": note.reason, "time_ns": note.time_ns}).encode("ascii")
    create_document(entry_fd, layout.NOTE, data, 0o600)


def read(entry_fd: int) -> Note:
    try:
        value = parse_object(read_document(layout.NOTE, dir_fd=entry_fd, limit=_LIMIT).data)
    except (OSError, BadJson):
        return Note()
    reason, time_ns = value.get("reason"), value.get("time_ns")
    return Note(
        reason if isinstance(reason, str) else None, time_ns if is_index(time_ns, WORD_LIMIT) else None
    )
