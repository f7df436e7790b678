"""The lookup checks of one artifact, all of them, in the format's order.

Owns reading what ``judging`` judges, and keeping apart what is damaged from what could not be found out.
Locks are the caller's: whoever checks holds a shared or the exclusive artifact lock, or says that it did not.
Nothing is written.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from hwctl.errors import Finding, HwctlError, from_os_error
from hwctl.fs.paths import open_dir, read_document
from hwctl.stores.base import CheckOptions, Level
from hwctl.stores.hostweights import canonical, judging
from hwctl.stores.hostweights.events import Event, of_directory, of_file
from hwctl.stores.hostweights.fields import Problems
from hwctl.stores.hostweights.identity import Identity
from hwctl.stores.hostweights.judging import Trust
from hwctl.stores.hostweights.layout import MANIFEST, METADATA_LIMIT, READY
from hwctl.stores.hostweights.manifest import parse_manifest, parse_ready
from hwctl.stores.hostweights.manifest_text import read_text
from hwctl.stores.hostweights.payload_checks import check_payloads, collector_paused
from hwctl.stores.hostweights.records import Manifest, Ready

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Subject:
    """What to check: the directory ``name`` below ``parent_fd``, which should hold the artifact ``key``.

    ``wanted`` is the identity a caller asked for, ``domain_uuid`` the store's. ``path`` is for messages.
    """

    parent_fd: int
    name: str
    key: str
    path: str
    trust: Trust
    wanted: Identity | None = None
    domain_uuid: str | None = None
    restoring: bool = False


@dataclass(slots=True)
class Examination:
    """What a check met, in order. ``first`` decides what upstream would have answered."""

    events: list[Event] = field(default_factory=list)
    manifest: Manifest | None = None
    ready: Ready | None = None
    manifest_sha256: str | None = None
    checked_bytes: int = 0

    @property
    def findings(self) -> tuple[Finding, ...]:
        return tuple(event for event in self.events if isinstance(event, Finding))

    @property
    def unknown(self) -> tuple[HwctlError, ...]:
        return tuple(event for event in self.events if isinstance(event, HwctlError))

    @property
    def first(self) -> Event | None:
        return self.events[0] if self.events else None


def examine(subject: Subject, level: Level, options: CheckOptions) -> Examination:
    """Checks 6 to 18 of the lookup. Raises only when the deadline passes or a signal arrives."""
    seen = Examination()
    try:
        fd = open_dir(subject.name, dir_fd=subject.parent_fd)
    except OSError as exc:
        seen.events.append(of_directory(exc, subject.name, subject.path))
        return seen
    try:
        _examine_open(fd, subject, level, options, seen)
    finally:
        os.close(fd)
    return seen


def _examine_open(fd: int, subject: Subject, level: Level, options: CheckOptions, seen: Examination) -> None:
    seen.events += judging.judge_directory(os.fstat(fd), subject.trust, restoring=subject.restoring)
    try:
        names = os.listdir(fd)
    except OSError as exc:
        seen.events.append(from_os_error(exc, f"cannot list {subject.path}", subject.path))
        return
    with collector_paused():
        _read_documents(fd, subject, seen)
    if seen.manifest is None:
        return
    told = {(finding.code, finding.file) for finding in seen.findings}
    seen.events += [
        finding
        for finding in judging.judge_names(names, seen.manifest.files)
        if (finding.code, finding.file) not in told  # the marker was missed already when it was read
    ]
    if seen.ready is not None and seen.manifest_sha256 is not None:
        seen.events += judging.judge_seal(seen.ready, seen.manifest, seen.manifest_sha256)
    seen.events += judging.judge_identity(seen.manifest, subject.key, subject.wanted)
    if level is not Level.MARKER:
        present = set(names)
        there = [entry for entry in seen.manifest.files if entry.file_name in present]
        events, seen.checked_bytes = check_payloads(
            fd, there, seen.manifest.tensors, subject.trust, subject.path, level, options
        )
        seen.events += events
    if level is Level.FULL:
        seen.events += judging.judge_content(seen.manifest)
    if seen.ready is not None:
        seen.events += judging.judge_ascii(seen.ready, subject.domain_uuid)


def _read_documents(fd: int, subject: Subject, seen: Examination) -> None:
    """Checks 9 to 11: both files first as JSON, then their fields, then what they say of themselves."""
    ready = _read_document(fd, READY, canonical.parse, subject, seen)
    manifest = _read_document(fd, MANIFEST, read_text, subject, seen)
    if ready is not None:
        problems = Problems(READY)
        seen.ready = parse_ready(ready.value, problems)
        seen.events += problems.found
    if manifest is not None:
        problems = Problems(MANIFEST)
        seen.manifest = parse_manifest(manifest.value, problems, manifest.entries)
        seen.manifest_sha256 = manifest.sha256
        seen.events += problems.found
    documents = [(name, read.value) for name, read in ((READY, ready), (MANIFEST, manifest)) if read]
    seen.events += judging.judge_schemas(documents, seen.ready)


def _read_document(
    fd: int, name: str, read: Callable[[bytes], _T], subject: Subject, seen: Examination
) -> _T | None:
    try:
        document = read_document(name, dir_fd=fd, limit=METADATA_LIMIT)
    except OSError as exc:
        seen.events.append(of_file(exc, name, subject.path))
        return None
    seen.events += judging.judge_regular(document.stat, name)
    seen.events += subject.trust.judge(document.stat, name)
    try:
        return read(document.data)
    except canonical.BadDocument as exc:
        seen.events.append(exc.finding(name))
        return None
