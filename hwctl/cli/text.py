"""How numbers, states and stores are worded for people. Scripts read JSON or the exact numbers of records."""

from __future__ import annotations

import time
from collections.abc import Sequence

from hwctl.cli.output import Piece, Style, Styled
from hwctl.errors import Finding
from hwctl.stores.base import Holders, State

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_AGES = ((604800, "w"), (86400, "d"), (3600, "h"), (60, "min"), (1, "s"))

_STATE_STYLES = {
    State.READY: Style.GOOD,
    State.DAMAGED: Style.BAD,
    State.INCOMPLETE: Style.BAD,
    State.DENIED: Style.BAD,
    State.UNREADABLE: Style.BAD,
    State.ABSENT: Style.BAD,
    State.QUARANTINED: Style.ODD,
    State.STAGING: Style.ODD,
    State.CONSUMING: Style.ODD,
    State.ORPHAN: Style.ODD,
    State.TEMPORARY: Style.FAINT,
    State.FOREIGN: Style.FAINT,
    State.VANISHED: Style.FAINT,
}


def size(count: int) -> str:
    """``12.3 GiB``: three digits, binary units; ``1023 B`` below."""
    if abs(count) < 1024:
        return f"{count} B"
    value = float(count)
    for unit in _BINARY:
        if abs(value) < 999.5 or unit == _BINARY[-1]:
            digits = 0 if abs(value) >= 99.95 else 1 if abs(value) >= 9.995 else 2
            return f"{value:.{digits}f} {unit}"
        value /= 1024
    raise AssertionError("the last unit takes everything")


def span(seconds: float) -> str:
    """``3d``, ``4h 20min``, ``12s``: the two largest units that count."""
    rest = max(0, int(seconds))
    words: list[str] = []
    for length, unit in _AGES:
        if rest >= length and len(words) < 2:
            words.append(f"{rest // length}{unit}")
            rest %= length
        elif words:
            break
    return " ".join(words) or "0s"


def age(nanoseconds: int | None, now_ns: int | None = None) -> str:
    """How long ago a moment was; ``-`` when nobody knows, ``in the future`` when the clock lies."""
    if nanoseconds is None:
        return "-"
    passed = ((time.time_ns() if now_ns is None else now_ns) - nanoseconds) / 1e9
    return "in the future" if passed < -1 else span(passed).split(" ")[0]


def rate(count: int, seconds: float) -> str:
    return f"{size(int(count / seconds))}/s" if seconds > 0 else "-"


def number(count: int, one: str, many: str | None = None) -> str:
    """``1 artifact``, ``2 artifacts``."""
    return f"{count} {one if count == 1 else many or one + 's'}"


def state(value: State) -> Styled:
    return Styled(value.value, _STATE_STYLES[value])


def holders(leases: Holders) -> str:
    """``2 shared (pid 4711, 4712)``; ``-`` when nobody holds anything."""
    words = []
    if leases.exclusive:
        words.append("locked")
    if leases.shared:
        words.append(f"{leases.shared} shared")
    if not words:
        return "-"
    pids = ", ".join(map(str, leases.pids))
    return f"{' and '.join(words)} (pid {pids})" if pids else " and ".join(words)


def bar(used: int, whole: int, width: int = 20) -> str:
    """``[########------------]`` for used of whole; a sliver is never nothing, and never more than all."""
    share = min(1.0, used / whole) if whole > 0 else 1.0
    filled = min(width, max(1 if used > 0 else 0, round(share * width)))
    return f"[{'#' * filled}{'-' * (width - filled)}]"


def looked_up(outcome: str) -> str:
    """What became of a publication; what was found there already was looked at, but not read."""
    words = outcome.replace("-", " ")
    return f"{words} (sizes checked; hwctl verify reads every byte)" if words.startswith("already") else words


def finding(item: Finding) -> Sequence[Piece]:
    """The pieces of one finding's line: code, file, message, and what differs where that is known."""
    where = f" {item.file}" if item.file else ""
    # Most messages begin with the file, for readers who see nothing but the message.
    words = f"{where}: {item.message.removeprefix(f'{item.file}: ') if item.file else item.message}"
    if item.expected is not None and not _told(item):
        words += f" (expected {item.expected}, actual {item.actual})"
    return (Styled(item.code, Style.BAD), words)


def _told(item: Finding) -> bool:
    """Whether the message spells the two values out already."""
    return str(item.expected) in item.message and str(item.actual) in item.message
