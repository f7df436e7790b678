"""Looking an artifact up as vLLM-Omni does: lock, checks 4 to 19, and the answer in its vocabulary.

Owns the two ways of asking: ``examine_key`` for those who hold a lock already, ``lookup`` which takes the
lease itself. What is wrong with an artifact is found in ``checks``.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from hwctl.errors import Busy, Finding, HwctlError, NoRoom, from_os_error
from hwctl.fs.deadline import Deadline
from hwctl.fs.locks import Held
from hwctl.stores.base import CheckOptions, Lease, Level
from hwctl.stores.hostweights import deny, leases, moves, quarantine
from hwctl.stores.hostweights.checks import Examination, Subject, examine
from hwctl.stores.hostweights.events import Event
from hwctl.stores.hostweights.identity import Identity
from hwctl.stores.hostweights.judging import Trust
from hwctl.stores.hostweights.layout import ARTIFACTS, STICKY, VALIDATION_FAILURE
from hwctl.stores.hostweights.store_root import StoreRoot
from hwctl.stores.hostweights.verdict import (
    Code,
    Lookup,
    Outcome,
    Stage,
    coded,
    failure_of,
    failure_of_finding,
)


def examine_key(
    root: StoreRoot, key: str, level: Level, options: CheckOptions, wanted: Identity | None = None
) -> Examination | None:
    """Checks 4 to 19 of ``artifacts/<key>``; None when it is absent.

    Some artifact lock is held, or the caller says that none was. OSError of the folder passes through.
    """
    with root.folder(ARTIFACTS) as folder:
        try:
            before = os.stat(key, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return None
        denied = not options.restoring and deny.is_denied(root, key)
        subject = Subject(
            parent_fd=folder,
            name=key,
            key=key,
            path=str(root.path / ARTIFACTS / key),
            trust=Trust(root.trusted_uid),
            wanted=wanted,
            domain_uuid=None if root.domain is None else root.domain.domain_uuid,
            restoring=options.restoring,
        )
        seen = examine(subject, level, options)
        if denied:
            seen.events.insert(0, _denial(root, key))
        elif not options.restoring:
            seen.events += _appeared(root, key, folder, before.st_mode)
    return seen


def _denial(root: StoreRoot, key: str) -> Finding:
    reason = deny.reason_of(root, key)
    return Finding("denied", "a deny marker is there" + (f" ({reason[:80]})" if reason else ""))


def _appeared(root: StoreRoot, key: str, folder: int, mode_before: int) -> list[Event]:
    """Check 19: somebody may have denied or marked it while it was looked at."""
    if deny.is_denied(root, key):
        return [_denial(root, key)]
    try:
        mode = os.stat(key, dir_fd=folder, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return [Finding("missing-file", f"{key} has gone")]
    if mode & STICKY and not mode_before & STICKY:
        return [Finding("invalidated", "the directory was marked as invalid meanwhile (sticky bit)")]
    return []


def attempt(
    root: StoreRoot,
    identity: Identity,
    level: Level,
    deadline: Deadline,
    *,
    deny_invalid: bool = False,
    options: CheckOptions | None = None,
) -> Lookup:
    """Look one artifact up: HIT with a lease (the shared artifact lock), MISS, or INVALID with findings.

    ``deadline`` bounds the wait for the lock, ``options.deadline`` the hashing. A hit counts as use. With
    ``deny_invalid`` an invalid artifact is denied to everybody, as upstream does; otherwise nothing is
    written but a missing lock file. Level SIZE is upstream's manifest_and_metadata, FULL its full_checksum.
    Raises Busy, IoFailed or NoRoom when it could not be found out, upstream's words in ``details``.
    """
    path = root.path / ARTIFACTS / identity.key
    try:
        held = leases.shared(root, identity.key, deadline, create=True)
    except Busy as exc:
        raise coded(exc, Stage.LOOKUP, Code.ACTIVE_BUILD_TIMEOUT) from exc
    except HwctlError as exc:
        raise unavailable(exc) from exc
    if held is None:
        return Lookup(Outcome.MISS, path)
    keep = False
    try:
        answer = _answer(examine_key(root, identity.key, level, options or CheckOptions(), identity), path)
        if answer.outcome is Outcome.INVALID and deny_invalid:
            _deny(root, identity.key, answer, held, deadline)
        if answer.outcome is Outcome.HIT:
            leases.touch(held)
            answer = replace(answer, lease=Lease((held,)))
            keep = True
        return answer
    except OSError as exc:
        raise unavailable(from_os_error(exc, f"cannot look at {path}", path)) from exc
    finally:
        if not keep:
            held.release()


def lookup(
    root: StoreRoot,
    identity: Identity,
    level: Level,
    deadline: Deadline,
    *,
    deny_invalid: bool = False,
    options: CheckOptions | None = None,
) -> Lookup:
    """``attempt`` in which TIMEOUT and FAILED are answers too, never exceptions."""
    try:
        return attempt(root, identity, level, deadline, deny_invalid=deny_invalid, options=options)
    except HwctlError as exc:
        outcome = Outcome.TIMEOUT if isinstance(exc, Busy) else Outcome.FAILED
        return Lookup(outcome, root.path / ARTIFACTS / identity.key, failure=failure_of(exc))


def unavailable(error: HwctlError) -> HwctlError:
    """The error in upstream's words for storage that does not answer, unless it has some already."""
    if "code" not in error.details and not isinstance(error, NoRoom):
        error.retryable = True
        coded(error, Stage.DOMAIN, Code.DOMAIN_UNAVAILABLE)
    return error


def _answer(seen: Examination | None, path: Path) -> Lookup:
    """The first thing met decides: damage is an answer, what could not be found out is raised."""
    if seen is None:
        return Lookup(Outcome.MISS, path)
    first = seen.first
    if first is None:
        return Lookup(Outcome.HIT, path, manifest_sha256=seen.manifest_sha256)
    if isinstance(first, HwctlError):
        raise unavailable(first)
    return Lookup(Outcome.INVALID, path, failure=failure_of_finding(first), findings=seen.findings)


def _deny(root: StoreRoot, key: str, answer: Lookup, held: Held, deadline: Deadline) -> None:
    """Write the deny marker under the shared lock, or contain the artifact and raise why there is none."""
    assert answer.failure is not None
    failure = answer.failure
    try:
        deny.write_marker(root, key, failure.stage, failure.code, failure.message)
    except OSError as exc:
        error = unavailable(from_os_error(exc, f"cannot deny {key}", answer.path))
        error.details["containment"] = _contain_invalid(root, key, held, deadline)
        raise error from exc


def _contain_invalid(root: StoreRoot, key: str, held: Held, deadline: Deadline) -> dict[str, object]:
    told: dict[str, object] = {}
    inode: tuple[int, int] | None = None
    try:
        with root.folder(ARTIFACTS) as folder:
            inode = moves.mark_invalid(folder, key)
        told["invalidation_marker"] = "durable"
    except OSError as exc:
        told["invalidation_marker_error"] = quarantine.error_details(exc)
    held.release()
    wait = Deadline.now() if deadline.at is None else deadline
    try:
        exclusive = leases.replacing(root, key, wait)
    except Busy:
        return {**told, "quarantine": "deferred_for_active_lease"}
    except HwctlError as exc:
        return {
            **told,
            "quarantine": "deferred_for_lock_error",
            "lock_error": quarantine.error_details(exc),
        }
    with exclusive:
        return {**told, **_move_if_same(root, key, inode)}


def _move_if_same(root: StoreRoot, key: str, inode: tuple[int, int] | None) -> dict[str, object]:
    if inode is None:
        return {"quarantine": "deferred_for_unverified_artifact"}
    try:
        st = os.lstat(root.path / ARTIFACTS / key)
        if (st.st_dev, st.st_ino) != inode:
            return {"quarantine": "already_replaced"}
        moved = quarantine.set_aside(root, key, VALIDATION_FAILURE, keep_mark=True)
        return {"quarantine": "already_absent" if moved is None else "completed"}
    except FileNotFoundError:
        return {"quarantine": "already_absent"}
    except OSError as exc:
        return {"quarantine": "failed", "quarantine_error": quarantine.error_details(exc)}
