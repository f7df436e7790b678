"""What a plan to reclaim takes for dead and is alive when its turn comes: it stays."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import make_hostweights
import make_ktint8
import pytest
from holders import mapped

from hwctl.core.plan import Outcome, Result, Step, Target
from hwctl.core.reclaim_stale import Selection, plan, reclaim
from hwctl.fs import lock_table
from hwctl.fs.deadline import Deadline
from hwctl.stores.base import StalePolicy, State, Store
from hwctl.stores.hostweights.store import open_store as open_weights
from hwctl.stores.ktint8.store import open_store as open_base

KEY = make_hostweights.key_of(0)


def planned(store: Store, policy: StalePolicy = StalePolicy()) -> Step:  # noqa: B008  # a frozen value
    """The one step of the plan."""
    (step,) = plan(Target(store), Selection(), policy, ())
    return step


def carried_out(step: Step, policy: StalePolicy = StalePolicy()) -> Outcome:  # noqa: B008
    return reclaim(policy, step, Deadline.now())


def test_a_publisher_whose_lock_file_was_aged_away(tmp_path: Path) -> None:
    """The lease makes the file anew, and that lock is free whoever holds the one that is gone (EVI-08)."""
    root = make_hostweights.make_store(tmp_path / "store")
    staging = make_hostweights.make_staging(root, 0)
    for lock in (root / "locks").iterdir():
        lock.unlink()
    policy = StalePolicy(older_than=1)
    time.sleep(0.01)
    store = open_weights(root)
    step = planned(store, policy)
    time.sleep(1.1)  # a look at who has files open stands for a second
    payload = next(path for path in staging.rglob("*") if path.is_file())
    with mapped(payload) as pid:
        outcome = carried_out(step, policy)
        assert outcome.result is Result.SKIPPED and f"pid {pid}" in outcome.reason
        assert staging.exists()


def test_a_marker_whose_artifact_comes_back(tmp_path: Path) -> None:
    """To remove it would lift a denial."""
    root = make_hostweights.make_store(tmp_path / "store")
    artifact = make_hostweights.make_artifact(root, 0)
    artifact.chmod(0o755)
    away = artifact.rename(tmp_path / "away")
    marker = root / "deny" / f"{KEY}.json"
    marker.write_bytes(b"{}")
    store = open_weights(root)
    step = planned(store)
    assert step.artifact.state is State.ORPHAN
    away.rename(artifact)
    assert carried_out(step).result is Result.SKIPPED
    assert marker.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only uid 0 can become the owner")
def test_a_marker_beside_a_folder_that_cannot_be_looked_into() -> None:
    with tempfile.TemporaryDirectory(prefix="hwctl-closed-") as name:
        root = make_hostweights.make_store(Path(name) / "store")
        make_hostweights.make_artifact(root, 0)
        (root / "deny" / f"{KEY}.json").write_bytes(b"{}")
        for path in (Path(name), root, *root.iterdir()):
            os.chown(path, 65534, 65534)
        (root / "artifacts").chmod(0)
        os.seteuid(65534)
        try:
            states = {artifact.state for artifact in open_weights(root).scan()}
        finally:
            os.seteuid(0)
    assert states == {State.UNREADABLE}


def test_where_no_table_shows_locks_ours_is_not_taken_for_anothers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in gVisor: what only trying tells would meet the lock that the removal itself holds."""

    def absent() -> bytes:
        raise FileNotFoundError(2, "no such file", "/proc/locks")

    monkeypatch.setattr(lock_table, "_steady", absent)
    tree = make_ktint8.make_staging(tmp_path, "run-000001", process=make_ktint8.dead_process())
    assert carried_out(planned(open_base(tmp_path))).result is Result.DONE
    assert not tree.exists()
