"""The lookup checks of one artifact, all of them, in the format's order.

Owns reading what ``judging`` judges, and keeping apart what is damaged from what could not be found out.
Locks are the caller's: whoever checks holds a shared or the exclusive artifact lock, or says that it did not.
Nothing is written.
"""

from __future__ import annotations

import errno
import gc
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from hwctl.errors import Finding, HwctlError, IoFailed, from_os_error
from hwctl.fs.digest import Pacer, sha256_files
from hwctl.fs.paths import NotRegular, TooLarge, open_dir, open_regular, read_document
from hwctl.stores.base import CheckOptions, Level
from hwctl.stores.hostweights import canonical, judging
from hwctl.stores.hostweights.containers import is_as_written
from hwctl.stores.hostweights.fields import Problems
from hwctl.stores.hostweights.identity import Identity
from hwctl.stores.hostweights.judging import Trust
from hwctl.stores.hostweights.layout import MANIFEST, METADATA_LIMIT, READY
from hwctl.stores.hostweights.manifest import parse_manifest, parse_ready
from hwctl.stores.hostweights.manifest_text import read_text
from hwctl.stores.hostweights.records import FileEntry, Manifest, Ready, TensorEntry
from hwctl.weights.safetensors_file import Header, read_header

_T = TypeVar("_T")

Event = Finding | HwctlError
"""Either something is wrong, or it could not be found out whether something is."""


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
        seen.events.append(_of_directory(exc, subject))
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
    seen.events += judging.judge_schemas(seen.ready, seen.manifest)
    if seen.manifest is None:
        return
    seen.events += judging.judge_names(names, seen.manifest.files)
    if seen.ready is not None and seen.manifest_sha256 is not None:
        seen.events += judging.judge_seal(seen.ready, seen.manifest, seen.manifest_sha256)
    seen.events += judging.judge_identity(seen.manifest, subject.key, subject.wanted)
    if level is not Level.MARKER:
        _examine_payloads(fd, subject, level, options, seen, set(names))
    if level is Level.FULL:
        seen.events += judging.judge_content(seen.manifest)
    if seen.ready is not None:
        seen.events += judging.judge_ascii(seen.ready, subject.domain_uuid)


def _read_documents(fd: int, subject: Subject, seen: Examination) -> None:
    """Checks 9 and 10: both files first as JSON, then their fields."""
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


def _read_document(
    fd: int, name: str, read: Callable[[bytes], _T], subject: Subject, seen: Examination
) -> _T | None:
    try:
        document = read_document(name, dir_fd=fd, limit=METADATA_LIMIT)
    except OSError as exc:
        seen.events.append(_of_file(exc, name, subject.path))
        return None
    seen.events += judging.judge_regular(document.stat, name)
    seen.events += subject.trust.judge(document.stat, name)
    try:
        return read(document.data)
    except canonical.BadDocument as exc:
        seen.events.append(exc.finding(name))
        return None


@dataclass(slots=True)
class _Payload:
    """One declared file and what was met in it, by check: 17a-c, 17d, 17e-g."""

    entry: FileEntry
    before: list[Event] = field(default_factory=list)
    digest: list[Event] = field(default_factory=list)
    container: list[Event] = field(default_factory=list)
    hashable: bool = False


def _examine_payloads(
    fd: int, subject: Subject, level: Level, options: CheckOptions, seen: Examination, names: set[str]
) -> None:
    """Check 17. Files that are not there were reported by name already."""
    assert seen.manifest is not None
    payloads = [_Payload(entry) for entry in seen.manifest.files if entry.file_name in names]
    with collector_paused():
        by_file = _tensors_by_file(seen.manifest)
        for payload in payloads:
            _examine_payload(fd, payload, by_file.get(payload.entry.file_name, {}), subject, level)
    if level is Level.FULL:
        sound = [payload for payload in payloads if payload.hashable]
        for payload, outcome in _hash(fd, sound, options):
            if isinstance(outcome, OSError):
                payload.digest.append(_of_file(outcome, payload.entry.file_name, subject.path))
            else:
                seen.checked_bytes += payload.entry.size
                payload.digest += judging.judge_digest(outcome, payload.entry)
    for payload in payloads:
        seen.events += payload.before + payload.digest + payload.container


@contextmanager
def collector_paused() -> Iterator[None]:
    """Keep the cycle collector still while a hundred thousand records are made that form no cycles.

    In a process that has torch loaded, its passes over everything else cost as much as the whole check.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _tensors_by_file(manifest: Manifest) -> Mapping[str, Mapping[str, TensorEntry]]:
    by_file: dict[str, dict[str, TensorEntry]] = {}
    for entry in manifest.tensors:
        by_file.setdefault(entry.file_name, {})[entry.storage_key] = entry
    return by_file


def _examine_payload(
    fd: int, payload: _Payload, declared: Mapping[str, TensorEntry], subject: Subject, level: Level
) -> None:
    """Everything about one file but its digest: stat, then the container's header."""
    name = payload.entry.file_name
    try:
        file, st = open_regular(name, dir_fd=fd)
    except OSError as exc:
        payload.before.append(_of_file(exc, name, subject.path))
        return
    try:
        payload.before += judging.judge_regular(st, name)
        payload.before += judging.judge_size(st, payload.entry)
        payload.before += subject.trust.judge(st, name)
        # Bytes of another size have another digest: hashing them tells nothing new.
        payload.hashable = st.st_size == payload.entry.size
        payload.container += _container_findings(file, st.st_size, name, declared)
        if level is Level.FULL and not payload.container:
            payload.container += _confirm(file, name)
    except OSError as exc:
        payload.container.append(_of_file(exc, name, subject.path))
    finally:
        os.close(file)


def _container_findings(
    fd: int, size: int, name: str, declared: Mapping[str, TensorEntry]
) -> Sequence[Finding]:
    """Checks 17e to 17g."""
    if is_as_written(fd, size, declared):
        return ()
    header = read_header(fd, size, name=name, strict=False)
    return judging.judge_tensors(name, header, declared) if isinstance(header, Header) else header


def _confirm(fd: int, name: str) -> list[Event]:
    """Ask the library that readers will use, where it can answer; it maps the file and reads its header.

    It wants a framework even to look at a header. numpy is the light one; loading torch to hear the same
    answer would cost seconds. Without either our own reader, held against the library by a test, stands.
    """
    try:
        from safetensors import SafetensorError, safe_open

        with safe_open(f"/proc/self/fd/{fd}", framework="numpy"):
            return []
    except ImportError:
        return []
    except SafetensorError as exc:
        return [Finding("container-refused", f"{name}: the safetensors library refuses it: {exc}", name)]
    except (OSError, RuntimeError) as exc:
        # Out of descriptors or of memory: that says nothing about the file.
        return [
            IoFailed(f"cannot open {name} with the safetensors library: {exc}", path=name, retryable=True)
        ]


def _hash(
    fd: int, payloads: Sequence[_Payload], options: CheckOptions
) -> Iterator[tuple[_Payload, str | OSError]]:
    def open_payload(payload: _Payload) -> tuple[int, int]:
        file, _ = open_regular(payload.entry.file_name, dir_fd=fd)
        return file, payload.entry.size

    return sha256_files(
        payloads,
        open_payload,
        workers=options.jobs,
        size_of=lambda payload: payload.entry.size,
        advance=options.advance,
        pacer=None if options.rate is None else Pacer(options.rate),
        deadline=options.deadline,
    )


def _of_directory(exc: OSError, subject: Subject) -> Event:
    """Check 6."""
    if exc.errno in (errno.ENOTDIR, errno.ELOOP):
        return Finding("not-a-directory", f"{subject.name} is a file or a link, not a directory")
    if exc.errno == errno.ENOENT:
        return Finding("missing-file", f"{subject.name} is gone")
    return from_os_error(exc, f"cannot open {subject.path}", subject.path)


_WRONG_KIND = {
    errno.ENOENT: ("missing-file", "is missing"),
    errno.ELOOP: ("symbolic-link", "is a symbolic link"),
    errno.EISDIR: ("not-regular", "is a directory, not a regular file"),
    errno.ENOTDIR: ("not-regular", "is not a regular file"),
}


def _of_file(exc: OSError, name: str, path: str) -> Event:
    """What an error on opening or reading a file means: damage only where the file itself is wrong.

    EACCES and EPERM are no damage, though upstream takes them for it and denies the artifact for everybody
    after one passing slip of a mode (VER-10).
    """
    if isinstance(exc, NotRegular):
        return Finding("not-regular", f"{name} {exc.strerror}", name)
    if isinstance(exc, TooLarge):
        return Finding("too-large", f"{name} {exc.strerror}", name, exc.limit, exc.size)
    if exc.errno in _WRONG_KIND:
        code, words = _WRONG_KIND[exc.errno]
        return Finding(code, f"{name} {words}", name)
    return from_os_error(exc, f"cannot read {name}", os.path.join(path, name))
