"""The vocabulary in which vLLM-Omni speaks of a lookup: status, stage, code, retryable.

Owns the words and how findings and refusals translate into them. The checks that produce findings live in
``checks``, the outcome of a build in ``build``.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hwctl.errors import Busy, Finding, HwctlError, NoRoom, Refused
from hwctl.stores.base import Lease
from hwctl.stores.hostweights.fields import UNSUPPORTED_SCHEMA


class Outcome(enum.StrEnum):
    """What a lookup or a build came to."""

    HIT = "hit"
    MISS = "miss"
    BUILT = "built"
    JOINED = "joined"
    INVALID = "invalid"
    TIMEOUT = "timeout"
    FAILED = "failed"


class Stage(enum.StrEnum):
    CONFIGURATION = "configuration"
    DOMAIN = "domain"
    LOOKUP = "lookup"
    VALIDATION = "validation"
    PRODUCTION = "production"
    CAPACITY = "capacity"
    LIFECYCLE = "lifecycle"


class Code(enum.StrEnum):
    UNSUPPORTED = "unsupported"
    DOMAIN_POLICY_MISMATCH = "domain_policy_mismatch"
    STORAGE_CLASS_MISMATCH = "storage_class_mismatch"
    DOMAIN_UNAVAILABLE = "domain_unavailable"
    ACTIVE_BUILD_TIMEOUT = "active_build_timeout"
    ARTIFACT_DENIED = "artifact_denied"
    MANIFEST_CORRUPT = "manifest_corrupt"
    MANIFEST_INCOMPATIBLE = "manifest_incompatible"
    CHECKSUM_MISMATCH = "checksum_mismatch"
    IDENTITY_COLLISION = "identity_collision"
    ARTIFACT_TOO_LARGE = "artifact_too_large"
    STORE_LIMIT_EXCEEDED = "store_limit_exceeded"
    INSUFFICIENT_CAPACITY = "insufficient_capacity"
    ENOSPC = "enospc"
    PRODUCER_FAILED = "producer_failed"
    PUBLICATION_FAILED = "publication_failed"
    QUARANTINE_FAILED = "quarantine_failed"
    ACTIVE_LEASE = "active_lease"


@dataclass(frozen=True, slots=True)
class Failure:
    """Why there is no lease. ``retryable``: the same call may succeed later with nothing repaired."""

    stage: Stage
    code: Code
    message: str
    retryable: bool = False
    details: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Lookup:
    """The answer of a lookup: a lease on a hit, a failure on anything but a hit and a miss.

    ``path`` is where the artifact lies, ``manifest_sha256`` the digest it was sealed with. ``set_aside`` is
    where a build moved what it found in its place, and ``findings`` then say what was wrong with that.
    """

    outcome: Outcome
    path: Path
    lease: Lease | None = None
    failure: Failure | None = None
    findings: tuple[Finding, ...] = ()
    manifest_sha256: str | None = None
    set_aside: Path | None = None


# Every finding code that is not listed stands for a corrupt artifact.
_DENIED = frozenset({"denied", "invalidated"})
_INCOMPATIBLE = frozenset(
    {
        UNSUPPORTED_SCHEMA,
        "integrity-mode",
        "wrong-key",
        "wrong-identity",
        "producer-schema",
        "restorer-schema",
    }
)
_CHECKSUM = frozenset({"manifest-digest", "content-digest", "size-mismatch", "digest-mismatch"})


def failure_of_finding(finding: Finding) -> Failure:
    """The failure that upstream reports when ``finding`` is the first thing it meets."""
    if finding.code in _DENIED:
        return Failure(Stage.LOOKUP, Code.ARTIFACT_DENIED, finding.message)
    if finding.code in _INCOMPATIBLE:
        return Failure(Stage.VALIDATION, Code.MANIFEST_INCOMPATIBLE, finding.message)
    if finding.code in _CHECKSUM:
        return Failure(Stage.VALIDATION, Code.CHECKSUM_MISMATCH, finding.message)
    return Failure(Stage.VALIDATION, Code.MANIFEST_CORRUPT, finding.message)


def coded(error: HwctlError, stage: Stage, code: Code) -> HwctlError:
    """The same error, with upstream's words for it in its details."""
    error.details["stage"] = str(stage)
    error.details["code"] = str(code)
    return error


def failure_of(error: HwctlError) -> Failure:
    """The failure an error stands for: the words it carries, else the ones its kind implies."""
    stage, code = error.details.get("stage"), error.details.get("code")
    if isinstance(stage, str) and isinstance(code, str):
        return Failure(Stage(stage), Code(code), error.message, error.retryable, error.details)
    if isinstance(error, NoRoom):
        return Failure(Stage.CAPACITY, Code.ENOSPC, error.message, True, error.details)
    if isinstance(error, Busy):
        return Failure(Stage.LOOKUP, Code.ACTIVE_BUILD_TIMEOUT, error.message, True, error.details)
    if isinstance(error, Refused):
        return Failure(Stage.CONFIGURATION, Code.DOMAIN_POLICY_MISMATCH, error.message, False, error.details)
    return Failure(Stage.DOMAIN, Code.DOMAIN_UNAVAILABLE, error.message, True, error.details)
