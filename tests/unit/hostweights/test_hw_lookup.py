"""Lookup: leases, use, denial, and containment where no marker can be written."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from hwctl.errors import Busy, HwctlError, NoRoom
from hwctl.fs.deadline import Deadline
from hwctl.stores.base import Level
from hwctl.stores.hostweights import deny, leases, lookup
from hwctl.stores.hostweights.identity import Identity
from hwctl.stores.hostweights.store_root import StoreRoot
from hwctl.stores.hostweights.verdict import Lookup, Outcome


def seek(root: StoreRoot, identity: Identity, **options: Any) -> Lookup:
    found = lookup.lookup(root, identity, Level.FULL, Deadline.now(), **options)
    if found.lease is not None:
        found.lease.release()
    return found


def test_a_miss_leaves_no_lock_file(root: StoreRoot, identity: Identity) -> None:
    """They must never be removed, so names that are merely asked for must not make any."""
    assert seek(root, identity).outcome is Outcome.MISS
    assert not leases.lock_path(root, identity.key).exists()


def test_a_hit_counts_as_use_and_an_unasked_marker_is_not_written(
    root: StoreRoot, artifact: Path, identity: Identity
) -> None:
    lock = leases.lock_path(root, artifact.name)
    os.utime(lock, ns=(0, 0))
    assert lock.stat().st_mtime_ns == 0
    assert seek(root, identity).outcome is Outcome.HIT
    assert lock.stat().st_mtime_ns > 10**18
    (artifact / "two.safetensors").chmod(0o600)
    assert seek(root, identity).outcome is Outcome.INVALID
    assert os.listdir(root.path / "deny") == []


def test_a_lease_keeps_the_exclusive_lock_out_until_it_is_let_go(
    root: StoreRoot, artifact: Path, identity: Identity
) -> None:
    found = lookup.lookup(root, identity, Level.SIZE, Deadline.now())
    assert found.lease is not None
    with pytest.raises(Busy):
        leases.exclusive(root, identity.key, Deadline.now())
    pid = os.fork()
    if pid == 0:  # a child that ends drops nothing (LEA-01)
        found.lease.release()
        os._exit(0)
    os.waitpid(pid, 0)
    with pytest.raises(Busy):
        leases.exclusive(root, identity.key, Deadline.now())
    found.lease.release()
    leases.exclusive(root, identity.key, Deadline.now()).release()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_where_no_marker_can_be_written_the_artifact_is_contained(
    root: StoreRoot, artifact: Path, identity: Identity, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def full(*_args: object) -> None:
        raise OSError(number, os.strerror(number))

    (artifact / "two.safetensors").chmod(0o600)
    monkeypatch.setattr(deny, "write_marker", full)
    found = seek(root, identity, deny_invalid=True)
    assert found.outcome is Outcome.FAILED and found.failure is not None
    assert found.failure.details["containment"] == {
        "invalidation_marker": "durable",
        "quarantine": "completed",
    }
    expected = ("capacity", "enospc") if number == errno.ENOSPC else ("domain", "domain_unavailable")
    assert (str(found.failure.stage), str(found.failure.code)) == expected
    assert not artifact.exists() and len(os.listdir(root.path / "quarantine")) == 1


def test_under_another_lease_containment_marks_and_defers(
    root: StoreRoot, artifact: Path, identity: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = leases.shared(root, identity.key, Deadline.now(), create=False)
    assert reader is not None

    def full(*_args: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (artifact / "two.safetensors").chmod(0o600)
    monkeypatch.setattr(deny, "write_marker", full)
    with reader, pytest.raises(NoRoom) as failed:
        lookup.attempt(root, identity, Level.FULL, Deadline.now(), deny_invalid=True)
    assert failed.value.details["containment"] == {
        "invalidation_marker": "durable",
        "quarantine": "deferred_for_active_lease",
    }
    assert stat.S_IMODE(artifact.stat().st_mode) == 0o1555
    monkeypatch.undo()
    assert seek(root, identity).outcome is Outcome.INVALID


def test_a_marker_that_cannot_be_filled_denies_all_the_same(
    root: StoreRoot, artifact: Path, identity: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_args: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(deny, "write_all", full)
        deny.write_marker(root, identity.key, "validation", "manifest_corrupt", "m")
    assert (root.path / "deny" / f"{identity.key}.json").read_bytes() == b""
    found = seek(root, identity)
    assert found.outcome is Outcome.INVALID and found.failure is not None
    assert str(found.failure.code) == "artifact_denied"


def test_a_lock_file_that_is_a_link_is_an_unavailable_domain(
    root: StoreRoot, artifact: Path, identity: Identity
) -> None:
    lock = leases.lock_path(root, identity.key)
    lock.unlink()
    lock.symlink_to("domain-init.lock")
    found = seek(root, identity)
    assert found.outcome is Outcome.FAILED and found.failure is not None
    assert str(found.failure.code) == "domain_unavailable" and found.failure.retryable


def test_errors_carry_their_words(root: StoreRoot, artifact: Path, identity: Identity) -> None:
    with leases.exclusive(root, identity.key, Deadline.now()), pytest.raises(HwctlError) as busy:
        lookup.attempt(root, identity, Level.SIZE, Deadline.now())
    assert busy.value.details["code"] == "active_build_timeout" and busy.value.retryable
