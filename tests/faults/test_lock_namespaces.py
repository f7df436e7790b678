"""A writer outside the pid namespace of whoever judges: its lock is all that speaks for what it makes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import holders
import make_hostweights
import make_pageweights
import pytest
from run_hwctl import environment, hwctl_

CONTAINER = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]


def reclaim(store: Path, *more: str, how: str = "-y") -> list[dict[str, str]]:
    """From inside a container, where /proc/locks does not show the holder."""
    if shutil.which("unshare") is None or subprocess.run([*CONTAINER, "true"]).returncode:
        pytest.skip("no pid namespace can be made here")
    words = [sys.executable, "-P", "-m", "hwctl", "reclaim-stale", str(store), how, "--json", *more]
    run = subprocess.run(
        [*CONTAINER, *words], capture_output=True, text=True, env=environment(), timeout=60, check=True
    )
    results: list[dict[str, str]] = json.loads(run.stdout)["results"]
    return results


def held_page(tmp_path: Path) -> tuple[Path, Path, Path]:
    root = make_pageweights.make_store(tmp_path / "cache")
    leftover = make_pageweights.make_artifact(root, 0, locator=False)
    make_pageweights.put_lock(root, 0)
    return root, leftover, root / f".{make_pageweights.prefix_of(0)}.lock"


def held_staging(tmp_path: Path) -> tuple[Path, Path, Path]:
    root = make_hostweights.make_store(tmp_path / "store")
    leftover = make_hostweights.make_staging(root, 0)
    return root, leftover, root / "locks" / f"{make_hostweights.key_of(0)}.build.lock"


@pytest.mark.parametrize("make", [held_page, held_staging])
def test_a_writer_in_another_container_is_seen_by_its_lock(tmp_path: Path, make: object) -> None:
    assert callable(make)
    root, leftover, lock = make(tmp_path)
    with holders.locked(lock, "exclusive"):
        for how in ("-n", "-y"):  # the plan knows it too, and not only who tries to take the lock
            kept = reclaim(root, how=how)
            assert [(entry["action"], entry["outcome"]) for entry in kept] == [("keep", "skipped")]
            assert "by a process that is not visible here" in kept[0]["reason"]
        assert leftover.exists()
    assert {entry["outcome"] for entry in reclaim(root)} == {"done"}
    assert not leftover.exists()


@pytest.mark.parametrize("make", [held_page, held_staging])
def test_a_lock_file_that_somebody_removed_proves_nothing(tmp_path: Path, make: object) -> None:
    """Ageing took the file (EVI-08) of the lock that a writer still holds: from there it looks free."""
    assert callable(make)
    root, leftover, lock = make(tmp_path)
    with holders.locked(lock, "exclusive"):
        lock.unlink()
        run = hwctl_("reclaim-stale", root, "-y", "--json")
        (kept,) = run.results
        assert (run.status, kept["outcome"]) == (0, "skipped") and leftover.exists()
        assert kept["reason"].startswith("unproven: ") and "has no" in kept["reason"]
        assert hwctl_("reclaim-stale", leftover, "-y").status == 12
        # From inside a container not even open files and age tell.
        (kept,) = reclaim(root, "--older-than", "0.001s")
        assert "only the initial pid namespace" in kept["reason"] and leftover.exists()
        with leftover.open("rb") if leftover.is_file() else (leftover / "model.safetensors").open("rb"):
            run = hwctl_("reclaim-stale", leftover, "-y", "--older-than", "0.001s", "--json")
            assert run.status == 11 and f"pid {os.getpid()} " in run.results[0]["reason"]
    assert not lock.exists()
    assert hwctl_("reclaim-stale", leftover, "-y", "--older-than", "0.001s").status == 0
    assert not leftover.exists()
