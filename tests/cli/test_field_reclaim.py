"""Quarantine and reclaiming: what went wrong for people, case by case, and what hwctl does instead.

Cases that need the real software beside hwctl are in tests/interop, eight reclaims at once and other users'
trees in test_reclaim_stale. Evicting and leases are in test_field_evict.
"""

from __future__ import annotations

import errno
import os
import subprocess
import time
from pathlib import Path

import holders
import make_hostweights
import make_ktint8
import pytest
from run_hwctl import hwctl_

HOUR = 3600 * 10**9


def damage(artifact: Path) -> None:
    payload = artifact / "model.safetensors"
    payload.chmod(0o644)
    payload.write_bytes(payload.read_bytes()[:-1])
    payload.chmod(0o444)


# QUA


def test_qua_02_quarantine_is_listed_and_purged_under_the_locks(store: Path) -> None:
    aside = []
    for _ in range(2):
        path = make_hostweights.make_artifact(store, 0)
        damage(path)
        run = hwctl_("quarantine", path, "--reason", "short", "-y", "--json")
        aside.append(Path(run.results[0]["moved_to"]))
    ready = make_hostweights.make_artifact(store, 0)
    listed = hwctl_("inspect", store, "--state", "quarantined", "--json").results
    assert sorted(row["path"] for row in listed) == sorted(map(str, aside))
    assert all(row["reason"] == "short" and row["bytes"] > 0 and row["created"] for row in listed)

    lock = store / "locks" / f"{ready.name}.artifact.lock"
    with holders.locked(lock):
        # The locks are the key's: while its new artifact is leased, upstream's rule is to wait as well.
        assert hwctl_("evict", aside[0], "-y").status == 11
        assert ready.exists()
    assert hwctl_("evict", aside[0], "-y").status == 0
    assert (aside[0].exists(), aside[1].exists(), ready.exists()) == (False, True, True)
    assert lock.exists()

    climbing = store / "quarantine" / ".." / "artifacts" / ready.name
    assert hwctl_("evict", climbing, "--quarantined", "-y").status == 12
    link = store / "quarantine" / f"{ready.name}.operator.{'0' * 32}"
    link.symlink_to(ready)
    assert hwctl_("evict", store, "--quarantined", "--all", "-y").status in (0, 12)
    assert ready.exists() and hwctl_("verify", ready).status == 0


def test_qua_03_a_full_disk_does_not_leave_a_bad_artifact_leasable(small: Path) -> None:
    store = make_hostweights.make_store(small / "store")
    path = make_hostweights.make_artifact(store, 0)
    damage(path)
    with (small / "filler").open("wb", buffering=0) as file:
        with pytest.raises(OSError) as full:
            while True:
                file.write(b"\0" * 4096)
        assert full.value.errno == errno.ENOSPC
    run = hwctl_("quarantine", path, "--reason", "bad", "-y", "--json")
    assert run.status in (0, 14), run.err
    run = hwctl_("exec", store / "artifacts" / path.name, "--level", "marker", "--", "true")
    assert run.status == 125


def test_qua_03_in_use_means_denied_for_new_leases_and_busy(store: Path) -> None:
    path = make_hostweights.make_artifact(store, 0)
    with holders.locked(store / "locks" / f"{path.name}.artifact.lock") as pid:
        run = hwctl_("quarantine", path, "--reason", "bad", "-y", "--json")
        assert run.status == 11
        (holder,) = run.results[0]["error"]["details"]["holders"]
        assert holder["pid"] == pid and holder["uid"] == os.geteuid() and holder["command"]
        assert path.exists()
        assert hwctl_("exec", path, "--", "true").status == 125


# REC


def test_rec_01_a_pid_that_came_back_as_something_else(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as sleeper:
        try:
            theirs = make_ktint8.make_staging(tmp_path, "upstream-1", pid=sleeper.pid, age=3600)
            run = hwctl_("reclaim-stale", theirs, "-n", "--json", "--older-than", "0.01s")
            assert "reused" in run.results[0]["reason"] or "started after" in run.results[0]["reason"]
            assert run.results[0]["outcome"] == "planned"

            other_start = make_ktint8.this_process(sleeper.pid) | {"start_ticks": 7}
            ours = make_ktint8.make_staging(tmp_path, "hwctl-1", pid=sleeper.pid, process=other_start)
            run = hwctl_("reclaim-stale", ours, "-y", "--json")
            assert run.status == 0 and not ours.exists()
            assert "reused" in run.results[0]["reason"]

            other_boot = make_ktint8.this_process(sleeper.pid) | {
                "boot_id": "0" * 8 + "-0000-0000-0000-" + "0" * 12
            }
            booted = make_ktint8.make_staging(tmp_path, "hwctl-2", pid=sleeper.pid, process=other_boot)
            assert hwctl_("reclaim-stale", booted, "-y").status == 0

            living = make_ktint8.make_staging(
                tmp_path, "hwctl-3", pid=sleeper.pid, process=make_ktint8.this_process(sleeper.pid)
            )
            assert hwctl_("reclaim-stale", living, "-y").status == 11 and living.exists()
        finally:
            sleeper.kill()


def test_rec_01_a_zombie_is_dead_and_another_pid_namespace_proves_nothing(tmp_path: Path) -> None:
    zombie = subprocess.Popen(["true"])
    process = make_ktint8.this_process(zombie.pid)
    os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
    ours = make_ktint8.make_staging(tmp_path, "zombie-1", pid=zombie.pid, process=process)
    run = hwctl_("reclaim-stale", ours, "-y", "--json")
    zombie.wait()
    assert run.status == 0 and not ours.exists() and "ended" in run.results[0]["reason"]

    elsewhere = make_ktint8.dead_process() | {"pid_ns": 1}
    apart = make_ktint8.make_staging(tmp_path, "apart-1", process=elsewhere)
    with holders.locked(apart, "exclusive"):
        assert hwctl_("reclaim-stale", apart, "-y").status == 11
    # Only the free lock counts, and hwctl's own producers hold it for as long as they live.
    assert hwctl_("reclaim-stale", apart, "-y").status == 0


def test_rec_04_recent_writes_and_open_files_block(tmp_path: Path) -> None:
    tree = make_ktint8.make_staging(tmp_path, "child-done")
    assert hwctl_("reclaim-stale", tree, "-y").status == 11
    with (tree / "_layer_0" / "more").open("wb"):
        time.sleep(0.3)
        run = hwctl_("reclaim-stale", tree, "-y", "--older-than", "0.1s", "--json")
        assert run.status == 11 and f"pid {os.getpid()}" in run.results[0]["reason"]
    time.sleep(0.3)
    assert hwctl_("reclaim-stale", tree, "-y", "--older-than", "0.1s").status == 0


def test_rec_06_half_consumed_trees_nobody_holds(tmp_path: Path) -> None:
    tree = make_ktint8.make_ready(tmp_path, "half-1", states=("consuming", "ready"))
    time.sleep(0.05)
    dry = hwctl_("reclaim-stale", tmp_path, "-n", "--older-than", "0.01s", "--json")
    assert [row["outcome"] for row in dry.results] == ["planned"]
    with holders.mapped(next(tree.rglob("*.kt"))) as pid:
        run = hwctl_("reclaim-stale", tmp_path, "-y", "--older-than", "0.01s", "--json")
        assert run.status == 0 and tree.exists()
        assert f"pid {pid}" in run.results[0]["reason"] and "mapped" in run.results[0]["reason"]
    assert hwctl_("reclaim-stale", tmp_path, "-y", "--older-than", "0.01s").status == 0
    assert not tree.exists()


def test_rec_07_only_names_of_the_exact_grammar(tmp_path: Path) -> None:
    strangers = [
        "kt-int8-x",
        "kt-int8-abc123.staging.bak",
        "kt-int8-abc123 .staging",
        "kt-int8-.hidden1.staging",
        "KT-int8-abcdef.staging",
        "kt-int8_abcdef.staging",
        "psm_1234abcd",
        "sem.loky-1",
        "vllm_offload_1",
        "nccl-abcdef",
        "plasma",
        "torch_4711",
    ]
    for name in strangers:
        (tmp_path / name).mkdir()
        (tmp_path / name / "data").write_text("mine")
    (tmp_path / "kt-int8-abcdef").write_text("a file, no folder")
    (tmp_path / "kt-int8-linked1.staging").symlink_to(tmp_path / "plasma")
    gone = make_ktint8.make_staging(tmp_path, "abc123", process=make_ktint8.dead_process())
    words = ("--leaseless", "--ready", "--older-than", "0.001s")
    assert hwctl_("reclaim-stale", tmp_path, "-y", *words).status == 0
    assert hwctl_("evict", tmp_path, "-y", "--all").status == 0
    assert not gone.exists()
    assert all((tmp_path / name / "data").read_text() == "mine" for name in strangers)
    assert (tmp_path / "kt-int8-abcdef").is_file()
    assert (tmp_path / "kt-int8-linked1.staging").is_symlink()
