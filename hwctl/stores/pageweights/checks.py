"""Validation of a page, step by step in the order of the cache's own program.

Every finding is listed, and the first one is the verdict that program would give; only where a step leaves
nothing to judge the next ones by do the findings end. A check changes nothing: no mode, no clock, no lock
file. Locks, second looks and what a verdict means for a verb are for ``store`` and ``publication``.
"""

from __future__ import annotations

from dataclasses import dataclass

from hwctl.errors import Finding
from hwctl.stores.base import Content, Level
from hwctl.stores.pageweights import layout
from hwctl.stores.pageweights.artifact import look_at_artifact
from hwctl.stores.pageweights.documents import Expected, Locator, Receipt, judge_locator, judge_receipt
from hwctl.stores.pageweights.place import Place, exists, look_at_document
from hwctl.stores.pageweights.reading import Pace, Reading


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one look at a page found. ``missing`` are the names that are not there: then it is a miss.

    ``reading`` is set once the artifact was read; its ``data`` holds the weights when they were kept.
    """

    findings: tuple[Finding, ...] = ()
    missing: tuple[str, ...] = ()
    locator: Locator | None = None
    receipt: Receipt | None = None
    reading: Reading | None = None

    @property
    def hit(self) -> bool:
        return not self.findings and not self.missing

    @property
    def content(self) -> Content:
        return Content.NOT_ASKED if self.reading is None else self.reading.content

    @property
    def checked_bytes(self) -> int:
        return 0 if self.reading is None else self.reading.bytes_read

    def all_findings(self) -> tuple[Finding, ...]:
        """The findings, each missing file being one of them."""
        return (*(Finding("miss", "is missing", name) for name in self.missing), *self.findings)


def check_page(
    place: Place, prefix: str, expected: Expected, level: Level, pace: Pace, *, keep: bool = False
) -> Verdict:
    """Judge the page of ``prefix`` as far as ``level`` goes; ``keep`` leaves its weights in memory.

    Raises IoFailed for what could not be found out (EACCES, EIO): that is no damage (VER-10).
    """
    name = layout.locator_name(prefix)
    looked = look_at_document(place, name)
    if looked.data is None:
        return Verdict(looked.findings, (name,) if looked.absent else ())
    locator = judge_locator(looked.data, prefix, expected)
    if isinstance(locator, tuple):
        return Verdict((*looked.findings, *locator))
    if looked.findings:
        return Verdict(looked.findings, locator=locator)
    return check_pair(place, locator, level, pace, keep=keep)


def check_pair(place: Place, locator: Locator, level: Level, pace: Pace, *, keep: bool = False) -> Verdict:
    """Judge the receipt and the artifact that a locator names (steps 3 to 14)."""
    prefix = locator.prefix
    receipt_name = layout.receipt_name(prefix, locator.key)
    artifact_name = layout.artifact_name(prefix, locator.key)
    looked = look_at_document(place, receipt_name)
    missing = [artifact_name] if not exists(place, artifact_name) else []
    missing += [receipt_name] if looked.absent else []
    if missing:
        return Verdict(missing=tuple(missing), locator=locator)
    receipt, findings = None, looked.findings
    if looked.data is not None:
        receipt, judged = judge_receipt(looked.data, locator)
        # Its digest is step 4, its protection step 5.
        digests = tuple(finding for finding in judged if finding.code == "receipt-hash")
        findings = (*digests, *findings, *judged[len(digests) :])
    if level is Level.MARKER:
        return Verdict(findings, (), locator, receipt)
    artifact = look_at_artifact(place, locator, receipt, level, pace, keep=keep)
    if artifact.absent:
        return Verdict(missing=(artifact_name,), locator=locator)
    return Verdict((*findings, *artifact.findings), (), locator, receipt, artifact.reading)
