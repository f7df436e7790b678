"""How verify tells what it found: a line an artifact, a line a finding, the verdict, totals and metrics."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from pathlib import PurePath

from hwctl.cli import text
from hwctl.cli.answer import Answer
from hwctl.cli.document import artifact_fields, missing_fields, report_fields
from hwctl.cli.exits import error_object
from hwctl.cli.metrics import Gauge
from hwctl.cli.output import Style, Styled, Whole
from hwctl.core.verify import Verdict
from hwctl.errors import HwctlError, NotFound, Status
from hwctl.stores.base import Content, Level, State

VALID, DAMAGED, DENIED, ABSENT, UNCHECKED = "valid", "damaged", "denied", "absent", "unchecked"

_STYLES = {
    VALID: Style.GOOD,
    DAMAGED: Style.BAD,
    DENIED: Style.BAD,
    ABSENT: Style.BAD,
    UNCHECKED: Style.ODD,
}
_COUNTED = {VALID: (VALID,), DAMAGED: (DAMAGED, DENIED), ABSENT: (ABSENT,), UNCHECKED: (UNCHECKED,)}
"""Totals and metrics by what they count: for a program, a denied artifact is a damaged one."""

_DENIALS = frozenset({"denied", "invalidated"})
_DEPTH = {Level.MARKER: "markers only", Level.SIZE: "sizes only", Level.FULL: "every byte"}


class Tally:
    """The verdicts of one run as they come in, each told at once, and their sum at the end."""

    def __init__(self, answer: Answer, level: Level) -> None:
        self._answer = answer
        self.level = level
        self._words: Counter[str] = Counter()
        self._codes: Counter[str] = Counter()
        self._warnings: dict[str, list[str]] = {}
        self._vanished = 0
        self._mendable = False
        self._bytes = 0
        self._contents_unread = False
        self._clock = time.monotonic()

    def add(self, verdict: Verdict) -> None:
        answer, report, path = self._answer, verdict.report, str(verdict.artifact.path)
        if verdict.artifact.state is State.VANISHED and verdict.error is None:
            # Evicted or replaced meanwhile: neither damage nor a failure to look (EVI-08).
            self._vanished += 1
            answer.result(verdict_fields(verdict, self.level), verdict.status)
            answer.line(Styled("vanished", Style.FAINT), f" {path}")
            return
        answer.result(verdict_fields(verdict, self.level), verdict.status)
        word = _word(verdict)
        self._say(word, path, verdict.error)
        if report is None:
            return
        self._mendable |= word == DAMAGED and verdict.mendable
        self._bytes += report.checked_bytes
        self._contents_unread |= report.content is Content.NOT_CHECKED
        for finding in report.findings:
            self._codes[finding.code] += 1
            # Below its artifact's line for a person; for a pipe every line says what it is about.
            where = "    " if answer.output.out.terminal else f"{path}: "
            answer.line(where, *text.finding(finding), problem=True)
        for warning in report.warnings:
            self._warnings.setdefault(warning, []).append(path)

    def miss(self, path: PurePath, error: HwctlError) -> None:
        """Tell of a PATH that leads to no artifact, as of an artifact that is not there."""
        absent = isinstance(error, NotFound)
        row = missing_fields(path, State.ABSENT if absent else State.UNREADABLE)
        self._answer.result({**row, **_unchecked(self.level, error)}, error.status)
        self._say(ABSENT if absent else UNCHECKED, str(path), error)

    def _say(self, word: str, path: str, error: HwctlError | None) -> None:
        self._words[word] += 1
        why = ""
        if error is not None:
            # It is the answer for this artifact, and so is told where the others are.
            self._answer.errors.append(error)
            why = f": {error.message.removeprefix(f'{path} ')}"
        self._answer.line(Styled(word, _STYLES[word]), " ", Whole(path), why, problem=word != VALID)

    def close(self, skipped: Mapping[State, int]) -> None:
        """Set totals, metrics and the verdict line."""
        words, total = self._words, sum(self._words.values())
        answer = self._answer
        answer.totals.update(
            artifacts=total,
            **{name: sum(words[word] for word in of) for name, of in _COUNTED.items()},
            vanished=self._vanished,
            findings=sum(self._codes.values()),
            checked_bytes=self._bytes,
            skipped={state.value: count for state, count in sorted(skipped.items())},
        )
        answer.gauges += self._gauges()
        for warning, paths in self._warnings.items():
            # One line, not one for each of ten thousand pages; the rows have their own.
            others = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
            answer.warn(f"{paths[0]}{others}: {warning}")
        if self._mendable:
            answer.note("to mend what is damaged: hwctl quarantine PATH --reason TEXT, then publish it again")
        answer.close_with(self._sentence(total))

    def _sentence(self, total: int) -> str:
        """The verdict. Only a full check may call itself verified (VER-05)."""
        words = self._words
        full = self.level is Level.FULL
        if not total:
            insist = "no artifacts here; name one, or --identity, where one must be there"
            return "nothing was checked" if self._answer.errors else f"nothing to check: {insist}"
        counts = [f"{words[word]} {word}" for word in _STYLES if words[word]]
        outcome = "all valid, no errors found" if words[VALID] == total else ", ".join(counts)
        how = "verified" if full else f"checked, {_DEPTH[self.level]},"
        sentence = f"{how} {text.number(total, 'artifact')}: {outcome}"
        if words[ABSENT] + words[UNCHECKED] == total:
            sentence = f"nothing was {'verified' if full else 'checked'}: {outcome}"
        if full and self._bytes:
            seconds = time.monotonic() - self._clock
            sentence += f" ({text.size(self._bytes)} read at {text.rate(self._bytes, seconds)})"
        if self._contents_unread:
            sentence += "; the rules about values were not checked, for want of torch"
        return sentence

    def _gauges(self) -> list[Gauge]:
        help_text = "Artifacts of the last verify run by result."
        gauges = [
            Gauge("verify_artifacts", help_text, sum(self._words[word] for word in of), {"result": name})
            for name, of in _COUNTED.items()
        ]
        gauges.append(Gauge("verify_checked_bytes", "Payload bytes the last run read.", self._bytes))
        for code, count in sorted(self._codes.items()):
            gauges.append(
                Gauge("verify_findings", "Findings of the last run by code.", count, {"code": code})
            )
        return gauges


def _word(verdict: Verdict) -> str:
    report = verdict.report
    if report is not None:
        if report.valid:
            return VALID
        return DENIED if {finding.code for finding in report.findings} <= _DENIALS else DAMAGED
    return ABSENT if verdict.status is Status.NOT_FOUND else UNCHECKED


def verdict_fields(verdict: Verdict, level: Level) -> dict[str, object]:
    """One row of verify's document; ``valid`` is null where nobody could find out."""
    if verdict.report is not None:
        return {**report_fields(verdict.report), "error": None}
    return {
        **artifact_fields(verdict.artifact),
        **_unchecked(level, verdict.error),
    }


def _unchecked(level: Level, error: HwctlError | None) -> dict[str, object]:
    absent = error is not None and error.status is Status.NOT_FOUND
    return {
        "level": level.value,
        "valid": False if absent else None,
        "content": Content.NOT_ASKED.value,
        "checked_bytes": 0,
        "findings": [],
        "warnings": [],
        "error": None if error is None else error_object(error),
    }
