"""Names and modes in a host weight store: where an entry lies says what it is.

Pure: no file is touched here. Opening and creating a store is ``opening``'s work.
"""

from __future__ import annotations

import enum
import os
import re
import uuid
from dataclasses import dataclass

DOMAIN = "domain.json"
POLICY = "domain-policy.json"
MANIFEST = "manifest.json"
READY = "READY.json"

LOCKS = "locks"
ARTIFACTS = "artifacts"
TMP = "tmp"
QUARANTINE = "quarantine"
DENY = "deny"
SUBDIRECTORIES = (LOCKS, ARTIFACTS, TMP, QUARANTINE, DENY)
"""In the order in which they are created."""

NOTES = "hwctl/notes"
"""Below the root: why and when an operator set an artifact aside. Upstream ignores it."""

INIT_LOCK = "domain-init.lock"

DIRECTORY_MODE = 0o700
LOCK_MODE = 0o600
FILE_MODE = 0o444
ARTIFACT_MODE = 0o555
STAGED_MODE = 0o1755
"""Of staging just before the rename: writable for it, and sticky in case the machine dies then."""

STICKY = 0o1000
"""On an artifact directory: do not use, waiting for quarantine. Setting it needs no space (QUA-03)."""
WRITE_BITS = 0o222
OTHERS_WRITE = 0o022

METADATA_LIMIT = 64 << 20
PAYLOAD_SUFFIX = ".safetensors"

CLEANUP = "cleanup"
OPERATOR = "operator"
VALIDATION_FAILURE = "validation_failure"
PUBLICATION_FAILURE = "publication_failure"
IDENTITY_COLLISION = "identity-collision"

_KEY = re.compile(r"[0-9a-f]{64}")
_STAGING = re.compile(r"([0-9a-f]{64})\.([0-9]{1,10})\.([0-9a-f]{32})")
_QUARANTINED = re.compile(r"([0-9a-f]{64})\.([^./]+)\.([0-9a-f]{32})")
_DENIED = re.compile(r"([0-9a-f]{64})\.json")
_DOCUMENT_TEMPORARY = re.compile(r"\.domain(-policy)?\.json\..+\.tmp")


class Place(enum.Enum):
    """The sub-directory an entry lies in."""

    ARTIFACT = ARTIFACTS
    STAGING = TMP
    QUARANTINE = QUARANTINE
    DENY = DENY
    ROOT = ""


@dataclass(frozen=True, slots=True)
class StagingName:
    """``<key>.<pid>.<32 hex>``: the pid is of the publisher, in whatever pid namespace it lived."""

    key: str
    pid: int


@dataclass(frozen=True, slots=True)
class QuarantineName:
    """``<key>.<reason>.<32 hex>``."""

    key: str
    reason: str


def is_key(name: str) -> bool:
    return _KEY.fullmatch(name) is not None


def staging_name(key: str) -> str:
    """A fresh name for the staging directory of this process."""
    return f"{key}.{os.getpid()}.{uuid.uuid4().hex}"


def quarantine_name(key: str, reason: str) -> str:
    """A fresh name for an entry set aside for this reason."""
    return f"{key}.{reason}.{uuid.uuid4().hex}"


def parse_staging(name: str) -> StagingName | None:
    found = _STAGING.fullmatch(name)
    return StagingName(found[1], int(found[2])) if found else None


def parse_quarantine(name: str) -> QuarantineName | None:
    found = _QUARANTINED.fullmatch(name)
    return QuarantineName(found[1], found[2]) if found else None


def parse_deny(name: str) -> str | None:
    """The key a deny marker is for."""
    found = _DENIED.fullmatch(name)
    return found[1] if found else None


def is_document_temporary(name: str) -> bool:
    """A temporary of one of the two domain documents, in the root."""
    return _DOCUMENT_TEMPORARY.fullmatch(name) is not None


def artifact_lock(key: str) -> str:
    return f"{key}.artifact.lock"


def build_lock(key: str) -> str:
    return f"{key}.build.lock"


def deny_name(key: str) -> str:
    return f"{key}.json"


def is_safe_name(name: str) -> bool:
    """One path component that can name a file."""
    return name not in ("", ".", "..") and "/" not in name
