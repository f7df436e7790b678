"""Reading a root's documents through its descriptor: the manifest or the lease, with what is wrong with it.

Owns the I/O between ``roots`` and the pure judges: a missing, odd, oversized or unreadable document becomes
a finding or an IoFailed, never a traceback (VER-09).
"""

from __future__ import annotations

import errno
import hashlib
import os
from dataclasses import dataclass

from hwctl.errors import Finding, from_os_error
from hwctl.fs.lock_file import shown_path
from hwctl.fs.paths import NotRegular, TooLarge, read_document
from hwctl.stores.ktint8 import json_text, layout, lease, manifest_reader
from hwctl.stores.ktint8.lease import StagingLease
from hwctl.stores.ktint8.manifest import Parsed, Schema


@dataclass(frozen=True, slots=True)
class ReadManifest:
    """A manifest and its facts: its mtime and the SHA-256 of its bytes, 0 and empty if it was not read."""

    schema: Schema
    parsed: Parsed
    written_ns: int = 0
    sha256: str = ""


@dataclass(frozen=True, slots=True)
class ReadLease:
    """A staging root's lease. ``present`` is False when there is none; ``lease`` None when it is unsound."""

    present: bool
    lease: StagingLease | None = None
    findings: tuple[Finding, ...] = ()
    written_ns: int = 0


def read_manifest(root_fd: int, *, ephemeral: bool) -> ReadManifest:
    """Read the one manifest of a root. An ``ephemeral`` root must have schema 1; any other may have either,
    schema 1 being read as the persistent reader reads it (legacy)."""
    present = [schema for schema in Schema if _exists(root_fd, schema.document)]
    if len(present) != 1:
        what = "has two manifests" if present else "has no manifest"
        code = "two-manifests" if present else "no-manifest"
        wanted = Schema.EPHEMERAL if ephemeral else Schema.PERSISTENT
        return ReadManifest(wanted, Parsed(None, (Finding(code, f"the root {what}"),)))
    schema = present[0]
    if ephemeral and schema is not Schema.EPHEMERAL:
        words = f"the root has the name of a run, but its manifest is {schema.document}"
        return ReadManifest(schema, Parsed(None, (Finding("no-manifest", words, schema.document),)))
    data, written_ns, finding = _read(root_fd, schema.document, json_text.SIZE_LIMIT, "manifest")
    if finding is not None:
        return ReadManifest(schema, Parsed(None, (finding,)))
    parsed = manifest_reader.parse(data, schema, legacy=not ephemeral)
    return ReadManifest(schema, parsed, written_ns, hashlib.sha256(data).hexdigest())


def read_lease(root_fd: int, run_id: str) -> ReadLease:
    """Read a staging root's lease and judge it against its run and the root's owner."""
    if not _exists(root_fd, layout.LEASE):
        return ReadLease(False)
    data, written_ns, finding = _read(root_fd, layout.LEASE, lease.SIZE_LIMIT, "lease")
    if finding is not None:
        return ReadLease(True, None, (finding,))
    parsed = lease.parse(data, run_id, os.fstat(root_fd).st_uid)
    if isinstance(parsed, StagingLease):
        return ReadLease(True, parsed, (), written_ns)
    return ReadLease(True, None, parsed, written_ns)


def _exists(root_fd: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=root_fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    except OSError as exc:
        raise from_os_error(exc, f"cannot look at {name}", shown_path(name, root_fd)) from exc
    return True


def _read(root_fd: int, name: str, limit: int, what: str) -> tuple[bytes, int, Finding | None]:
    try:
        document = read_document(name, dir_fd=root_fd, limit=limit)
    except (NotRegular, TooLarge) as exc:
        return b"", 0, Finding(f"{what}-file", f"the {what} {exc.strerror}", name)
    except OSError as exc:
        if exc.errno == errno.ELOOP:
            return b"", 0, Finding(f"{what}-file", f"the {what} is a symbolic link", name)
        raise from_os_error(exc, f"cannot read the {what}", shown_path(name, root_fd)) from exc
    links = document.stat.st_nlink
    if links != 1:
        return b"", 0, Finding(f"{what}-file", f"the {what} has {links} hard links", name, 1, links)
    uid = os.fstat(root_fd).st_uid
    if document.stat.st_uid != uid:
        words = f"the {what} belongs to uid {document.stat.st_uid}, the root to {uid}"
        return b"", 0, Finding("owner", words, name, uid, document.stat.st_uid)
    return document.data, document.stat.st_mtime_ns, None
