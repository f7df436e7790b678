"""Strict types for values read from JSON, and the one object that leases and manifests share.

JSON true is an int to Python, and 64.0 equals 64: upstream let both pass as counts and uids. Here a number
is an ``int`` that is no ``bool``, within bounds that are said.
"""

from __future__ import annotations

import re
from typing import TypeGuard

from hwctl.fs.liveness import Process
from hwctl.stores.ktint8.layout import INDEX_LIMIT

WORD_LIMIT = 2**63
"""Byte counts, times and clock ticks lie below it."""

_BOOT_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_SHOWN = 60


def is_integer(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def is_index(value: object, limit: int = INDEX_LIMIT) -> TypeGuard[int]:
    """Zero or more, below the limit."""
    return is_integer(value) and 0 <= value < limit


def is_count(value: object, limit: int = INDEX_LIMIT) -> TypeGuard[int]:
    """One or more, below the limit."""
    return is_integer(value) and 0 < value < limit


def shown(value: object) -> str:
    """A value from a document, short enough for a message; containers by their kind only."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    if value is None:
        return "nothing"
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def identity_object(process: Process) -> dict[str, object]:
    """What hwctl writes about a process beside its pid, in leases and manifests alike."""
    return {
        "boot_id": process.boot_id,
        "pid_ns": process.pid_ns,
        "start_ticks": process.start_ticks,
    }


def parse_identity(value: object, pid: int) -> Process | str:
    """The process that such an object and a pid name, or what is wrong with the object."""
    if not isinstance(value, dict):
        return f"must be an object, not {shown(value)}"
    boot, namespace, ticks = (value.get(key) for key in ("boot_id", "pid_ns", "start_ticks"))
    if not isinstance(boot, str) or not _BOOT_ID.fullmatch(boot):
        return f"has the boot_id {shown(boot)}"
    if not is_index(namespace, WORD_LIMIT):
        return f"has the pid_ns {shown(namespace)}"
    if not is_index(ticks, WORD_LIMIT):
        return f"has the start_ticks {shown(ticks)}"
    return Process(pid, ticks, boot, namespace)
