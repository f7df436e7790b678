"""The registry of cases, and building one of them in a folder."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import hw_artifact
import hw_store

LEVELS = ("manifest_and_metadata", "full_checksum")

# An identity that is never published, for MISS cases.
ABSENT = hw_artifact.identity("absent")


@dataclass
class Case:
    name: str
    group: str
    title: str
    build: Callable[[hw_store.Store, Path], None]
    subjects: tuple[str, ...] = ("alpha",)
    # how the store is opened (defaults are what vLLM-Omni uses in production)
    policy: dict = field(default_factory=dict)
    # seconds; None means "wait for locks without limit"
    deadline_s: float | None = None
    # "root": the case needs uid 0 (chown); skipped otherwise
    needs: tuple[str, ...] = ()
    # locks somebody else holds while the store is used: (lock, label, mode)
    hold: tuple[tuple[str, str, str], ...] = ()
    # path to open instead of the store root, relative to the case directory
    open_path: str = "store"
    # verdicts a verifier may return besides the recorded one
    also_accept: tuple[dict, ...] = ()
    note: str = ""


@dataclass
class Operation:
    """A mutation that is run on a prepared store; the state afterwards counts.

    action "cleanup": remove the artifact without waiting for leases.
    action "publish": publish the subject's tensors under its identity.
    """

    name: str
    action: str
    title: str
    build: Callable[[hw_store.Store, Path], None]
    subject: str = "beta"
    hold: tuple[tuple[str, str, str], ...] = ()
    deadline_s: float = 5.0


class Registry:
    def __init__(self) -> None:
        self.cases: dict[str, Case] = {}
        self.operations: dict[str, Operation] = {}

    def operation(self, action: str, title: str, **options):
        def register(function):
            name = f"{action}.{function.__name__}"
            if name in self.operations:
                raise SystemExit(f"duplicate operation {name}")
            self.operations[name] = Operation(name, action, title, function, **options)
            return function

        return register

    def case(self, group: str, title: str, **options):
        def register(function):
            name = f"{group}.{function.__name__}"
            if name in self.cases:
                raise SystemExit(f"duplicate case {name}")
            self.cases[name] = Case(name, group, title, function, **options)
            return function

        return register


def build_case(case: Case | Operation, directory: Path) -> hw_store.Store:
    """Create `<directory>/store` and `<directory>/identities/*.json`."""
    previous = os.umask(0o022)
    try:
        hw_store.force_remove(directory)
        directory.mkdir(parents=True)
        store = hw_store.build_base(directory / "store")
        identities = directory / "identities"
        identities.mkdir()
        case.build(store, directory)
        documents = {label: artifact.identity for label, artifact in store.artifacts.items()}
        documents["absent"] = ABSENT
        for label, document in documents.items():
            (identities / f"{label}.json").write_bytes(hw_artifact.canonical(document))
        return store
    finally:
        os.umask(previous)


def lock_file(root: Path, lock: str, key: str) -> Path:
    name = "domain-init.lock" if lock == "domain" else f"{key}.{lock}.lock"
    return root / "locks" / name


@contextlib.contextmanager
def held_locks(case: Case | Operation, store: hw_store.Store):
    """Hold the locks a case asks for, through separate open file descriptions."""
    descriptors = []
    try:
        for lock, label, mode in case.hold:
            key = store.artifacts[label].key if label in store.artifacts else ""
            path = lock_file(store.root, lock, key)
            fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(fd, fcntl.LOCK_EX if mode == "exclusive" else fcntl.LOCK_SH)
            descriptors.append(fd)
        yield
    finally:
        for fd in descriptors:
            os.close(fd)


def write_source(artifact: hw_artifact.Artifact, directory: Path) -> Path:
    """Everything a publisher needs: plain safetensors files and three documents.

    `tensors.json` maps a tensor name to its kind and role; `files.json` lists
    the payload names in order; `format_metadata.json` holds that document.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for name, data in artifact.payloads().items():
        (directory / name).write_bytes(data)
    documents = {
        "identity.json": artifact.identity,
        "format_metadata.json": artifact.format_metadata,
        "files.json": sorted(artifact.files),
        "tensors.json": {
            tensor.name: {"kind": tensor.kind, "role": tensor.role}
            for tensors in artifact.files.values()
            for tensor in tensors
        },
    }
    for name, value in documents.items():
        (directory / name).write_bytes(hw_artifact.canonical(value))
    return directory


def state_rows(root: Path) -> list[str]:
    """Type, mode and name of everything below the four state directories.

    Random identifiers and process numbers are masked.
    """
    rows = []
    for part in ("artifacts", "deny", "quarantine", "tmp"):
        for directory, names, files in os.walk(root / part, followlinks=False):
            for name in names + files:
                path = Path(directory) / name
                info = path.lstat()
                relative = re.sub(r"\.\d+\.[0-9a-f]{32}(?=/|$)", ".<pid>.<id>", str(path.relative_to(root)))
                relative = re.sub(r"\.[0-9a-f]{32}(?=/|$)", ".<id>", relative)
                rows.append(f"{stat.filemode(info.st_mode)} {relative}")
    return sorted(rows)


def identity_text(metadata: str) -> bytes:
    """Identity document whose source.metadata is the given raw JSON text."""
    document = hw_artifact.canonical(hw_artifact.identity("vector"))
    head, _, tail = document.partition(b'"source":{"fingerprint"')
    return (
        head
        + b'"source":{"fingerprint"'
        + tail.replace(b'"metadata":{}', b'"metadata":' + metadata.encode("utf-8", "surrogatepass"), 1)
    )
