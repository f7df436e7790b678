"""Check 17 of the lookup: the payload files of an artifact, each by stat, digest and container.

Owns reading them, several at once where they are hashed. Which files should be there, and that those which
are not were told of by name, is the work of ``checks``.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec

from hwctl.errors import Finding, IoFailed
from hwctl.fs.digest import sha256_files
from hwctl.fs.pace import Pacer
from hwctl.fs.paths import open_regular
from hwctl.stores.base import CheckOptions, Level
from hwctl.stores.hostweights import judging
from hwctl.stores.hostweights.containers import is_as_written
from hwctl.stores.hostweights.events import Event, of_file
from hwctl.stores.hostweights.judging import Trust
from hwctl.stores.hostweights.records import FileEntry, TensorEntry
from hwctl.weights.safetensors_file import Header, read_header


@dataclass(slots=True)
class _Payload:
    """One declared file and what was met in it, by check: 17a-c, 17d, 17e-g."""

    entry: FileEntry
    before: list[Event] = field(default_factory=list)
    digest: list[Event] = field(default_factory=list)
    container: list[Event] = field(default_factory=list)
    hashable: bool = False


def check_payloads(
    fd: int,
    files: Iterable[FileEntry],
    tensors: Iterable[TensorEntry],
    trust: Trust,
    path: str,
    level: Level,
    options: CheckOptions,
) -> tuple[list[Event], int]:
    """What is wrong with the files that are there, in order, and how many bytes were hashed.

    ``fd`` is the artifact's directory, ``path`` where it lies, for messages.
    """
    payloads = [_Payload(entry) for entry in files]
    with collector_paused():
        by_file = _tensors_by_file(tensors)
        for payload in payloads:
            _look_at(fd, payload, by_file.get(payload.entry.file_name, {}), trust, path, level)
    hashed = 0
    if level is Level.FULL:
        sound = [payload for payload in payloads if payload.hashable]
        for payload, outcome in _hash(fd, sound, options):
            if isinstance(outcome, OSError):
                payload.digest.append(of_file(outcome, payload.entry.file_name, path))
            else:
                hashed += payload.entry.size
                payload.digest += judging.judge_digest(outcome, payload.entry)
    events = [
        event for payload in payloads for event in (*payload.before, *payload.digest, *payload.container)
    ]
    return events, hashed


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


def _tensors_by_file(tensors: Iterable[TensorEntry]) -> Mapping[str, Mapping[str, TensorEntry]]:
    by_file: dict[str, dict[str, TensorEntry]] = {}
    for entry in tensors:
        by_file.setdefault(entry.file_name, {})[entry.storage_key] = entry
    return by_file


def _look_at(
    fd: int,
    payload: _Payload,
    declared: Mapping[str, TensorEntry],
    trust: Trust,
    path: str,
    level: Level,
) -> None:
    """Everything about one file but its digest: stat, then the container's header."""
    name = payload.entry.file_name
    try:
        file, st = open_regular(name, dir_fd=fd)
    except OSError as exc:
        payload.before.append(of_file(exc, name, path))
        return
    try:
        payload.before += judging.judge_regular(st, name)
        payload.before += judging.judge_size(st, payload.entry)
        payload.before += trust.judge(st, name)
        # Bytes of another size have another digest: hashing them tells nothing new.
        payload.hashable = st.st_size == payload.entry.size
        payload.container += _container_findings(file, st.st_size, name, declared)
        if level is Level.FULL and not payload.container:
            payload.container += _confirm(file, name)
    except OSError as exc:
        payload.container.append(of_file(exc, name, path))
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

    It judges the header first and loads the framework that the tensors would be wanted in after, so that one
    that is not installed gives the same verdict at no cost: numpy alone takes a quarter of a command's time.
    Without the library our own reader, held against it by a test, stands.
    """
    for framework in _frameworks():
        try:
            from safetensors import SafetensorError, safe_open

            with safe_open(f"/proc/self/fd/{fd}", framework=framework):
                return []
        except ImportError:
            return []
        except SafetensorError as exc:
            if str(exc) == f"framework {framework} is invalid":
                continue  # which safetensors before 0.7 says of paddle
            return [Finding("container-refused", f"{name}: the safetensors library refuses it: {exc}", name)]
        except (OSError, RuntimeError) as exc:
            # Out of descriptors or of memory: that says nothing about the file.
            message = f"cannot open {name} with the safetensors library: {exc}"
            return [IoFailed(message, path=name, retryable=True)]
    return []


@cache
def _frameworks() -> tuple[str, ...]:
    return ("numpy",) if find_spec("paddle") else ("paddle", "numpy")


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
