"""Pid namespaces: a container's pid says nothing here, nor ours there; the lock is seen by all."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import holders
import ktint8_producer
import make_hostweights
import make_ktint8
import private_mounts
import pytest
from run_hwctl import Run, environment, hwctl_

RUN = "namespaced-1"
GRACE = "0.001s"


@pytest.fixture
def base(shm: Path) -> Path:
    return shm


@pytest.fixture(scope="module")
def contained() -> list[str]:
    """The words that start a command as pid 1 of its own pid namespace, with a /proc of its own."""
    words = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if shutil.which("unshare") is None:
        pytest.skip("there is no unshare here")
    done = subprocess.run([*words, "true"], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no pid namespace can be made here: {done.stderr.strip()}")
    return words


def produce(base: Path, contained: list[str]) -> subprocess.Popen[str]:
    """A producer of ours in a container, at work."""
    process = subprocess.Popen(
        [*contained, sys.executable, "-P", ktint8_producer.__file__, str(base), RUN],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "staged\n", process.communicate()[1]
    return process


def reclaim(base: Path, prefix: list[str] | None = None) -> list[dict[str, str]]:
    words = ("reclaim-stale", str(base), "--older-than", GRACE, "-y", "--json")
    if prefix is None:
        done = hwctl_(*words)
        assert done.status == 0, done.err
        return done.results
    inside = subprocess.run(
        [*prefix, sys.executable, "-P", "-m", "hwctl", *words],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=60,
    )
    assert inside.returncode == 0, inside.stderr
    results: list[dict[str, str]] = json.loads(inside.stdout)["results"]
    return results


def test_a_producer_in_a_container_is_seen_by_its_lock(base: Path, contained: list[str]) -> None:
    process = produce(base, contained)
    staging = base / f"kt-int8-{RUN}.staging"
    try:
        lease = json.loads((staging / make_ktint8.LEASE).read_text())
        assert lease["producer_pid"] == 1
        assert lease["hwctl"]["pid_ns"] != os.stat("/proc/self/ns/pid").st_ino
        (kept,) = reclaim(base)
        assert (kept["outcome"], "locked" in kept["reason"]) == ("skipped", True)
        # From yet another container, where /proc/locks does not even show the holder.
        (kept,) = reclaim(base, contained)
        assert kept["outcome"] == "skipped"
        assert staging.exists()
    finally:
        process.kill()
        process.communicate()
    deadline = time.monotonic() + 10
    while (outcome := reclaim(base)[0]["outcome"]) != "done":
        assert time.monotonic() < deadline, outcome
        time.sleep(0.1)
    assert os.listdir(base) == []


def test_a_dead_producer_of_ours_is_proven_from_any_container(base: Path, contained: list[str]) -> None:
    """Its lock is free, and a producer of ours holds it for as long as it lives."""
    make_ktint8.make_staging(base, RUN, process=make_ktint8.dead_process())
    (done,) = reclaim(base, contained)
    assert done["outcome"] == "done"
    assert "lock" in done["reason"]


def test_a_bare_pid_proves_nothing_in_a_container(base: Path, contained: list[str]) -> None:
    """kt-kernel's lease: the pid is not to be seen there, which is what a living one looks like too."""
    staging = make_ktint8.make_staging(base, RUN)
    (kept,) = reclaim(base, contained)
    assert (kept["outcome"], "initial pid namespace" in kept["reason"]) == ("skipped", True)
    assert staging.exists()
    (done,) = reclaim(base)
    assert done["outcome"] == "done"


def test_pid_1_of_a_container_is_not_our_pid_1(base: Path, contained: list[str]) -> None:
    """REC-01: containers hand out pid 1 every time; the lease of a dead one names a pid that lives here."""
    elsewhere = make_ktint8.this_process() | {"pid_ns": 1, "start_ticks": 3}
    make_ktint8.make_staging(base, RUN, pid=1, process=elsewhere)
    (done,) = reclaim(base)
    assert done["outcome"] == "done"


def inside(contained: list[str], *words: str | Path) -> Run:
    done = subprocess.run(
        [*contained, sys.executable, "-P", "-m", "hwctl", *map(str, words)],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=60,
    )
    return Run(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize("words", [("evict",), ("quarantine", "--reason", "x")])
def test_what_is_mapped_outside_is_kept_by_a_container(
    base: Path, contained: list[str], words: tuple[str, ...]
) -> None:
    """/proc shows nobody, and the kernel is asked whether anybody has a file of it open."""
    tree = make_ktint8.make_ready(base, RUN)
    verb, *options = words
    with holders.mapped(next(tree.rglob("*.kt"))):
        run = inside(contained, verb, tree, *options, "-y")
        assert run.status == 11, run.err
        assert "a process that is not visible here has a file of it open" in run.out
        assert tree.exists()
    assert inside(contained, verb, tree, *options, "-y").status == 0
    assert not tree.exists()


def test_a_removal_inside_does_not_call_freed_what_is_mapped_outside(
    base: Path, contained: list[str]
) -> None:
    tree = make_ktint8.make_staging(base, RUN, process=make_ktint8.dead_process(), layers=3)
    file = next(tree.rglob("*.kt"))
    blocks = file.stat().st_blocks * 512
    with holders.mapped(file):
        (row,) = reclaim(base, contained)
    assert (row["outcome"], row["still_mapped_bytes"]) == ("done", blocks)


def test_where_nobody_can_tell_it_is_refused(tmp_path: Path, contained: list[str]) -> None:
    """On overlay a mapping lies on a file below the one that is seen, which the kernel is not asked about."""
    if reason := private_mounts.why_not():
        pytest.skip(reason)
    with private_mounts.tmpfs(tmp_path / "room", "size=8m") as room:
        for name in ("lower", "upper", "work", "base"):
            (room / name).mkdir(mode=0o700)
        layers = f"lowerdir={room}/lower,upperdir={room}/upper,workdir={room}/work"
        try:
            private_mounts.mount("-t", "overlay", "-o", layers, "hwctl-test", room / "base")
        except subprocess.CalledProcessError as exc:
            pytest.skip(f"no overlay can be mounted here: {exc.stderr}")
        try:
            tree = make_ktint8.make_ready(room / "base", RUN)
            for verb, *options in (["evict"], ["quarantine", "--reason", "x"]):
                run = inside(contained, verb, tree, *options, "-y")
                assert run.status == 12, run.out
                assert "cannot be seen whether a process outside this pid namespace uses it" in run.out
                assert "hostPID: true" in run.out
            assert tree.exists()
            assert hwctl_("evict", tree, "-y").status == 0
        finally:
            subprocess.run(["umount", "-l", room / "base"], check=True)


def test_leased_families_are_evicted_from_a_container(tmp_path: Path, contained: list[str]) -> None:
    store = make_hostweights.make_store(tmp_path / "store")
    artifact = make_hostweights.make_artifact(store, 0)
    assert inside(contained, "evict", store, "--all", "-y").status == 0
    assert not artifact.exists()


def test_a_ready_tree_of_a_producer_in_another_namespace_is_unproven(base: Path) -> None:
    elsewhere = make_ktint8.this_process() | {"pid_ns": 1}
    tree = make_ktint8.make_ready(base, RUN, process=elsewhere)
    run = hwctl_("reclaim-stale", tree, "--ready", "--older-than", GRACE, "-y")
    assert run.status == 12
    assert "unproven" in run.out and "another pid namespace" in run.out
    assert tree.exists()


def test_looking_takes_no_lock_even_where_the_table_shows_nobody(base: Path, contained: list[str]) -> None:
    """cli.md: inspect takes no lock that others would notice; so it cannot call the tree stale here."""
    make_ktint8.make_staging(base, RUN, process=make_ktint8.dead_process())
    run = inside(contained, "inspect", base, "--json")
    assert run.status == 0, run.err
    (row,) = json.loads(run.out)["results"]
    assert row["stale"]["verdict"] == "unproven"
    assert "only told by trying it" in row["stale"]["evidence"][0]
    (row,) = hwctl_("inspect", base, "--json").results
    assert row["stale"]["verdict"] == "stale"
