"""Words an operator types, parsed at the edge: sizes, durations, rates, ranges, names.

Every parser raises ``typer.BadParameter`` with a hint that shows the right spelling. An empty value, zero,
a negative number, NaN and rubbish are refused everywhere. What was parsed knows no command line any more: it
raises ``Usage``, as everything does that runs inside of an Answer.
"""

from __future__ import annotations

import itertools
import os
import re
import sys
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import typer

from hwctl.errors import Usage

_BINARY = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "Pi": 1 << 50, "Ei": 1 << 60}
_DECIMAL = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18}
_SIZES = (
    {"": 1, "B": 1, "KB": 10**3}
    | _BINARY
    | {f"{unit}B": factor for unit, factor in _BINARY.items()}
    | {f"{unit}B": factor for unit, factor in _DECIMAL.items()}
)
_BARE = {unit.upper() for unit in _DECIMAL}
_SECONDS = {"s": 1, "min": 60, "h": 3600, "d": 86400, "w": 604800}
_LONGEST = Decimal(100 * 366 * 86400)

_NUMBER = re.compile(r"([0-9]{1,40}(?:\.[0-9]{1,30})?)\s?(.*)", re.ASCII | re.DOTALL)
_TERM = re.compile(r"([0-9]{1,40}(?:\.[0-9]{1,9})?)([A-Za-zµ]*)\s*", re.ASCII)
_SPAN = re.compile(r"([0-9]{1,9})(?:(-)([0-9]{1,9})?)?", re.ASCII)
_LONE_UNIT = re.compile(
    r"%|[kmgtpe]i?b?|b(ytes?)?|[kmgtpe]i?b/s|s(ec(onds?)?)?|min(utes?)?|h(ours?|rs?)?|d(ays?)?|w(eeks?)?",
    re.ASCII | re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Size:
    """A size as it was asked for: bytes, or a share of a whole that is known later."""

    bytes: int | None
    percent: Decimal | None = None

    def of(self, whole: int) -> int:
        """Bytes, taking a percentage of ``whole`` bytes (rounded down, at least 1)."""
        if self.bytes is not None:
            return self.bytes
        assert self.percent is not None
        return max(1, int(whole * self.percent / 100))


@dataclass(frozen=True, slots=True)
class Spans:
    """A RANGE such as ``0-3,7,10-``: inclusive spans, the last one may be open. ``3 in spans`` works."""

    spans: tuple[tuple[int, int | None], ...]

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and any(
            first <= number and (last is None or number <= last) for first, last in self.spans
        )

    def numbers(self) -> tuple[int, ...]:
        """Every number, ascending. An open end is refused: here a list is asked for, not a filter."""
        found: set[int] = set()
        for first, last in self.spans:
            if last is None:
                raise Usage(f"the range {first}- has no end here; say which is the last")
            if last - first >= 1 << 16:
                raise Usage(f"the range {first}-{last} is too long")
            found.update(range(first, last + 1))
        return tuple(sorted(found))


def size_or_share(text: str) -> Size:
    """SIZE: ``200GiB``, ``200Gi``, ``200GB``, plain bytes, or ``80%``."""
    if text.endswith("%"):
        percent = _number(text[:-1], text)
        if percent > 100:
            raise typer.BadParameter(f"{text!r} is more than the whole; a share lies between 0% and 100%")
        return Size(None, percent)
    return Size(size(text))


def size(text: str) -> int:
    """SIZE where no whole is known: bytes."""
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise typer.BadParameter(f"{text!r} is not a size; write for example 200GiB, 200GB or plain bytes")
    number, unit = match.groups()
    if unit == "%":
        raise typer.BadParameter(f"{text!r}: no whole is known here that this could be a share of")
    if unit.upper() in _BARE:
        raise typer.BadParameter(f"{text!r} is ambiguous; write {_sizes_meant(number, unit)}")
    if unit not in _SIZES:
        raise typer.BadParameter(f"{text!r}: unknown unit {unit!r}; write {_sizes_meant(number, unit)}")
    amount = int(_positive(Decimal(number), text) * _SIZES[unit])
    if not 1 <= amount < 1 << 63:
        raise typer.BadParameter(f"{text!r} is no number of bytes that a file system could hold")
    return amount


def _sizes_meant(number: str, unit: str) -> str:
    """How a size is written that may be meant by a unit in other letters: ``5GiB (2^30) or 5GB (10^9)``."""
    match = re.fullmatch(r"([kmgtpe])(i?)b?", unit, re.ASCII | re.IGNORECASE)
    if match is None:
        return "for example 200GiB or 200GB"
    letter = match[1].upper()
    power = "KMGTPE".index(letter) + 1
    binary = f"{number}{letter}iB (2^{10 * power})"
    return binary if match[2] else f"{binary} or {number}{letter}B (10^{3 * power})"


def rate(text: str) -> int:
    """Bytes per second, as SIZE with an optional ``/s``."""
    return size(text.removesuffix("/s"))


def duration(text: str) -> float:
    """DURATION in seconds: ``90s 15min 6h 2d 1w``, combined as in ``1h30min``, fractional as in ``1.5s``."""
    total = Decimal(0)
    position = 0
    while position < len(text):
        match = _TERM.match(text, position)
        if match is None:
            raise typer.BadParameter(
                f"{text!r} is not a duration; write for example 90s, 15min, 6h, 2d or 1w"
            )
        number, unit = match.groups()
        if unit not in _SECONDS:
            raise typer.BadParameter(_unit_hint(text, number, unit))
        total += Decimal(number) * _SECONDS[unit]
        position = match.end()
    if not text:
        raise typer.BadParameter("an empty duration; write for example 90s, 15min, 6h, 2d or 1w")
    if total > _LONGEST:
        raise typer.BadParameter(f"{text!r} is longer than a hundred years")
    return float(_positive(total, text))


def _unit_hint(text: str, number: str, unit: str) -> str:
    if unit in ("m", "M"):
        return f"{text!r} is ambiguous; write {number}min for minutes (there is no unit for months)"
    if not unit:
        return f"{text!r} has no unit; write for example {number}s, {number}min or {number}h"
    return f"{text!r}: unknown unit {unit!r}; units are s, min, h, d and w"


def spans(text: str) -> Spans:
    """RANGE: ``0-3,7,10-``, inclusive."""
    found = []
    for part in text.split(","):
        match = _SPAN.fullmatch(part)
        if match is None:
            raise typer.BadParameter(f"{text!r} is not a range; write for example 0-3,7,10-")
        first, dash, last = match.groups()
        end = int(first) if dash is None else None if last is None else int(last)
        if end is not None and end < int(first):
            raise typer.BadParameter(f"{text!r}: {part} runs backwards")
        found.append((int(first), end))
    return Spans(tuple(found))


def count(text: str) -> int:
    """A whole number of at least one, in plain digits."""
    if not re.fullmatch(r"[0-9]{1,9}", text, re.ASCII) or int(text) == 0:
        raise typer.BadParameter(f"{text!r} is not a whole number of at least 1")
    return int(text)


def path(text: str) -> Path:
    """A path; the empty one is refused, since it would silently mean the working directory.

    ``~`` is somebody's home in every option and operand alike: shells leave it as it is in ``--store=~/x``.
    """
    if not text:
        raise typer.BadParameter("an empty path")
    return Path(os.path.expanduser(text))


def operand(text: str) -> Path:
    """A PATH that is no option's value. ``--max-size 10 KiB`` would otherwise mean ten bytes and a path."""
    if _LONE_UNIT.fullmatch(text) and not os.path.lexists(text) and _follows_a_number(text):
        raise typer.BadParameter(
            f"{text!r} is a unit and no path that exists; write a number and its unit in one word, as in"
            " 10KiB or 2d"
        )
    return path(text)


def _follows_a_number(unit: str) -> bool:
    return any(
        word == unit and re.fullmatch(r"[0-9.]+", before) for before, word in itertools.pairwise(sys.argv)
    )


def word(text: str) -> str:
    """Any text but the empty one."""
    if not text.strip():
        raise typer.BadParameter("an empty value")
    return text


def glob(text: str) -> str:
    """GLOB on a key, as the shell writes it; matched with ``fnmatch.fnmatchcase``."""
    return word(text)


def _number(text: str, whole: str) -> Decimal:
    if not re.fullmatch(r"[0-9]{1,19}(\.[0-9]{1,9})?", text, re.ASCII):
        raise typer.BadParameter(f"{whole!r} is not a number")
    return _positive(Decimal(text), whole)


def _positive(number: Decimal, text: str) -> Decimal:
    if number <= 0:
        raise typer.BadParameter(f"{text!r}: zero is refused; leave the option out instead")
    return number
