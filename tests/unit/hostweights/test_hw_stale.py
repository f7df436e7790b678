"""What is proven dead in a host weight store, and what is not."""

from __future__ import annotations

import os
import re
import uuid
from dataclasses import replace
from pathlib import Path

import make_hostweights
import pytest
from holders import locked, mapped

from hwctl.core.absence import of_staging
from hwctl.errors import Busy
from hwctl.fs.deadline import Deadline
from hwctl.fs.lock_table import Mode
from hwctl.stores.base import Artifact, Death, StalePolicy, State
from hwctl.stores.hostweights import leases
from hwctl.stores.hostweights.store import HostWeightStore, open_store

KEY = make_hostweights.key_of(0)
HEX = "f" * 32


@pytest.fixture
def store(tmp_path: Path) -> HostWeightStore:
    return open_store(make_hostweights.make_store(tmp_path / "store"))


def put(store: HostWeightStore, number: int = 0) -> Path:
    return make_hostweights.make_artifact(store.root, number)


def the(store: HostWeightStore) -> Artifact:
    (artifact,) = store.scan()
    return artifact


def stale(store: HostWeightStore, **policy: object) -> Death:
    return store.stale(the(store), StalePolicy(**policy)).death  # type: ignore[arg-type]


def test_what_is_dead_and_what_is_not(store: HostWeightStore) -> None:
    put(store)
    assert stale(store) is Death.NOT_STALE
    the(store).path.chmod(0o1555)
    assert stale(store) is Death.NOT_STALE
    the(store).path.chmod(0o1755)
    assert stale(store) is Death.PROVEN
    lease = leases.building(store._root, KEY, Deadline.now())
    assert stale(store) is Death.PROVEN  # held by this very process
    lease.release()


@pytest.mark.parametrize(
    ("reason", "bits", "death"),
    [
        ("cleanup", 0o555, Death.PROVEN),
        ("cleanup", 0o1755, Death.PROVEN),
        ("validation_failure", 0o1755, Death.PROVEN),
        ("operator", 0o1555, Death.PROVEN),
        ("operator", 0o555, Death.NOT_STALE),
        ("validation_failure", 0o555, Death.NOT_STALE),
    ],
)
def test_tombstones_and_unfinished_moves(
    store: HostWeightStore, reason: str, bits: int, death: Death
) -> None:
    path = store.root / "quarantine" / f"{KEY}.{reason}.{HEX}"
    path.mkdir()
    (path / "x").write_bytes(b"x")
    path.chmod(bits)
    make_hostweights.lock(store.root, f"{KEY}.artifact.lock")
    assert stale(store) is death
    artifact = the(store)
    # What was on its way into quarantine was to be kept.
    assert store.stale(artifact, StalePolicy()).keeps == (death is Death.PROVEN and reason != "cleanup")
    with store.lease(artifact, Mode.EXCLUSIVE, Deadline.now()):
        assert store.remove(artifact).files == 1
    assert list(store.scan()) == []


def test_staging_without_a_lock_file_of_a_living_pid_is_unproven(store: HostWeightStore) -> None:
    make_hostweights.make_staging(store.root, 0, pid=os.getpid())
    assert stale(store) is Death.PROVEN
    (store.root / "locks" / f"{KEY}.build.lock").unlink()
    assert stale(store) is Death.UNPROVEN
    assert stale(store, older_than=1) is Death.UNPROVEN


def test_staging_without_a_lock_file_is_dead_once_nobody_can_be_at_work(store: HostWeightStore) -> None:
    """A missing lock file tells nothing (EVI-08): no open file, and no write for the grace time, do."""
    staging = make_hostweights.make_staging(store.root, 0)
    (store.root / "locks" / f"{KEY}.build.lock").unlink()
    assert stale(store) is Death.UNPROVEN
    with mapped(staging / "model.safetensors") as pid:
        verdict = store.stale(the(store), StalePolicy(older_than=1))
        assert verdict.death is Death.LIVE and f"pid {pid}" in verdict.evidence[-1]
    assert stale(open_store(store.root), older_than=1) is Death.PROVEN
    assert "its build lock has no file" in store.stale(the(store), StalePolicy()).evidence[1]


def test_a_publisher_that_lives_is_told_in_full(store: HostWeightStore) -> None:
    make_hostweights.make_staging(store.root, 0)
    with locked(store.root / "locks" / f"{KEY}.build.lock", "exclusive") as pid:
        verdict = store.stale(the(store), StalePolicy())
        assert verdict.death is Death.LIVE
        told = rf"its build lock is held by pid {pid} \(uid {os.geteuid()}, \S+, running for \d+ s\)"
        assert re.fullmatch(told, verdict.evidence[1])
        wanted = store.root / "artifacts" / KEY
        error = of_staging(store, the(store), replace(the(store), path=wanted))
        assert isinstance(error, Busy) and verdict.evidence[1] in error.message


def test_a_term_keeps_what_is_young(store: HostWeightStore) -> None:
    make_hostweights.make_staging(store.root, 0)
    assert stale(store, older_than=3600 * 10**9) is Death.NOT_STALE
    assert stale(store, older_than=1) is Death.PROVEN


def test_a_temporary_of_a_domain_document(store: HostWeightStore) -> None:
    (store.root / f".domain.json.{uuid.uuid4().hex}.tmp").write_bytes(b"{")
    assert stale(store) is Death.PROVEN
    with store.lease(the(store), Mode.EXCLUSIVE, Deadline.now()) as lease:
        assert [Path(held.path).name for held in lease.locks] == ["domain-init.lock"]
        assert store.remove(the(store)).files == 1
    assert list(store.scan()) == []


def test_an_orphan_marker_is_garbage(store: HostWeightStore) -> None:
    (store.root / "deny" / f"{KEY}.json").write_bytes(b"{}")
    assert the(store).state is State.ORPHAN and stale(store) is Death.UNPROVEN
    make_hostweights.lock(store.root, f"{KEY}.artifact.lock")
    assert the(store).state is State.ORPHAN and stale(store) is Death.PROVEN
    with store.lease(the(store), Mode.EXCLUSIVE, Deadline.now()):
        assert store.remove(the(store)).files == 1
    assert list(store.scan()) == []
