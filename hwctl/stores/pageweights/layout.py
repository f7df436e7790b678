"""What may lie in a page-weights cache: the grammar of names, and who may read or write them.

Owns the spelling of every name, the rules for the root and for a page's files, and the budget formula. All
of it is pure: stat facts in, findings out. What the files hold is judged in ``records`` and ``checks``.
"""

from __future__ import annotations

import enum
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from hwctl.errors import Finding
from hwctl.fs.paths import kind_of

DEFAULT_ROOT = Path("/dev/shm/nnf-resynthesis-none-page-weights-v1")
"""One name for all users of a node: the second user is locked out, as with the cache's own program."""

EVICTION_LOCK = ".eviction.lock"
QUARANTINE = "quarantine"
DOCUMENT_MODE = 0o600
ARTIFACT_MODE = 0o400
ROOT_MODE = 0o700

_OTHERS = 0o077
DIGEST_LENGTH = 64
_DIGEST = re.compile(r"[0-9a-f]{64}")
_PAGE_NAME = re.compile(
    r"([0-9a-f]{64})(?:\.locator\.json|\.([0-9a-f]{64})(?:(\.receipt\.json)|\.safetensors))"
)
_HIDDEN_NAME = re.compile(
    r"\.([0-9a-f]{64})"
    r"(?:(\.lock)"
    r"|(?:\.[0-9]+){3}\.tmp"
    r"|(?:\.locator|\.[0-9a-f]{64}\.receipt)\.json(?:\.[0-9]+){2}\.tmp)"
)
# What tempfile-like code in the safetensors library makes: six characters of letters and digits.
_LIBRARY_TEMPORARY = re.compile(r"\.tmp[0-9A-Za-z]{6}")
_QUARANTINED = re.compile(r"(?P<prefix>[0-9a-f]{64})\.[0-9a-f]{32}")


class Kind(enum.Enum):
    """What a direct child of the root is, by its name alone."""

    LOCATOR = "locator"
    RECEIPT = "receipt"
    ARTIFACT = "artifact"
    LOCK = "lock"
    TEMPORARY = "temporary"
    LIBRARY_TEMPORARY = "library temporary"
    QUARANTINE = "quarantine"
    FOREIGN = "foreign"


@dataclass(frozen=True, slots=True)
class Name:
    """A name taken apart; ``prefix`` and ``key`` where the kind carries them."""

    kind: Kind
    prefix: str | None = None
    key: str | None = None


_FOREIGN = Name(Kind.FOREIGN)


def parse_name(name: str) -> Name:
    """Take a name of the root apart. Whatever does not match to the last character is foreign (REC-07)."""
    if (match := _PAGE_NAME.fullmatch(name)) is not None:
        prefix, key, receipt = match.groups()
        if key is None:
            return Name(Kind.LOCATOR, prefix)
        return Name(Kind.RECEIPT if receipt else Kind.ARTIFACT, prefix, key)
    if (match := _HIDDEN_NAME.fullmatch(name)) is not None:
        prefix, lock = match.groups()
        return Name(Kind.LOCK if lock else Kind.TEMPORARY, prefix)
    if name == EVICTION_LOCK:
        return Name(Kind.LOCK)
    if name == QUARANTINE:
        return Name(Kind.QUARANTINE)
    if _LIBRARY_TEMPORARY.fullmatch(name):
        return Name(Kind.LIBRARY_TEMPORARY)
    return _FOREIGN


def quarantined_prefix(name: str) -> str | None:
    """The prefix in the name of a folder below ``quarantine/``, None where it is no such name."""
    match = _QUARANTINED.fullmatch(name)
    return None if match is None else match["prefix"]


def is_digest(value: object) -> bool:
    """Whether a value is text of 64 lower-case hex characters, as every digest field must be."""
    return isinstance(value, str) and _DIGEST.fullmatch(value) is not None


def locator_name(prefix: str) -> str:
    return f"{prefix}.locator.json"


def receipt_name(prefix: str, key: str) -> str:
    return f"{prefix}.{key}.receipt.json"


def artifact_name(prefix: str, key: str) -> str:
    return f"{prefix}.{key}.safetensors"


def pair_of(prefix: str, key: str) -> tuple[str, str]:
    """The names of a page's receipt and artifact, in the order in which they go."""
    return receipt_name(prefix, key), artifact_name(prefix, key)


def lock_name(prefix: str) -> str:
    return f".{prefix}.lock"


def artifact_temporary(prefix: str, pid: int, thread: int, now_ns: int) -> str:
    return f".{prefix}.{pid}.{thread}.{now_ns}.tmp"


def document_temporary(name: str, pid: int, thread: int) -> str:
    return f".{name}.{pid}.{thread}.tmp"


def judge_root(st: os.stat_result, uid: int) -> tuple[Finding, ...]:
    """The root's rule: a directory of ``uid`` with no group or other bit. Reported, never repaired."""
    findings = []
    if not stat.S_ISDIR(st.st_mode):
        findings.append(_unfit_root(f"the root is a {kind_of(st.st_mode)}", "directory", kind_of(st.st_mode)))
    if st.st_uid != uid:
        findings.append(_unfit_root(f"the root belongs to uid {st.st_uid}, not {uid}", uid, st.st_uid))
    mode = stat.S_IMODE(st.st_mode)
    if mode & _OTHERS:
        message = f"the root has mode {mode:04o}; group and others must have no bit (chmod 0700)"
        findings.append(_unfit_root(message, "0700", f"{mode:04o}"))
    return tuple(findings)


def _unfit_root(message: str, expected: object, actual: object) -> Finding:
    return Finding("root-unprotected", message, expected=expected, actual=actual)


def judge_file(st: os.stat_result, uid: int, name: str) -> tuple[Finding, ...]:
    """The rule for locator, receipt and artifact: regular, of ``uid``, no group or other bit.

    Owner bits and the link count are not looked at, as in the cache's own program.
    """
    findings = []
    if not stat.S_ISREG(st.st_mode):
        findings.append(not_regular(kind_of(st.st_mode), name))
    if st.st_uid != uid:
        message = f"belongs to uid {st.st_uid}, not {uid}"
        findings.append(Finding("unprotected", message, name, uid, st.st_uid))
    mode = stat.S_IMODE(st.st_mode)
    if mode & _OTHERS:
        message = f"has mode {mode:04o}; group and others must have no bit"
        findings.append(Finding("unprotected", message, name, "no bit of 0077", f"{mode:04o}"))
    return tuple(findings)


def not_regular(kind: str, name: str) -> Finding:
    """The finding for a page's name that stands for a link, a fifo, a folder, ..."""
    return Finding("unprotected", f"is a {kind}, not a regular file", name, "regular file", kind)


def default_budget(memory_page: int, physical_bytes: int, file_system_bytes: int) -> int:
    """The cache's own default in bytes: a 16th of memory or a quarter of the file system's total size."""
    return max(memory_page, min(physical_bytes // 16, file_system_bytes // 4))
