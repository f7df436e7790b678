"""What went wrong for people who look after such stores, case by case, and what hwctl does instead.

QUA is quarantine, REC reclaiming, EVI evicting, LEA leases. Cases that need the real software beside hwctl
are in tests/interop, eight reclaims at once and other users' trees in test_reclaim_stale.
"""

from __future__ import annotations

import errno
import fcntl
import os
import pty
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import holders
import make_hostweights
import make_ktint8
import make_pageweights
import pytest
from run_hwctl import NOBODY, Run, command, environment, hwctl_

from hwctl.errors import Refused
from hwctl.fs.locks import Deadline, Mode

HOUR = 3600 * 10**9

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can do this")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return make_hostweights.make_store(tmp_path / "store")


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 8 MiB; skips where nothing can be mounted."""
    point = tmp_path / "small"
    point.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m,mode=700", "hwctl-test", str(point)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("a tmpfs cannot be mounted here")
    try:
        yield point
    finally:
        subprocess.run(["umount", str(point)], check=True)


def damage(artifact: Path) -> None:
    payload = artifact / "model.safetensors"
    payload.chmod(0o644)
    payload.write_bytes(payload.read_bytes()[:-1])
    payload.chmod(0o444)


@contextmanager
def asked(*words: str | Path) -> Iterator[Callable[[], Run]]:
    """hwctl has made its plan and waits for a yes; the call gives it and returns how the run ended."""
    theirs, ours = pty.openpty()
    process = subprocess.Popen(
        command(*words),
        stdin=ours,
        stderr=ours,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
        cwd="/",
    )
    os.close(ours)
    said = b""
    while b"[y/N]" not in said:
        said += os.read(theirs, 4096)

    def yes() -> Run:
        os.write(theirs, b"y\n")
        out, _ = process.communicate(timeout=30)
        return Run(process.returncode, out, said.decode())

    try:
        yield yes
    finally:
        os.close(theirs)
        process.kill()
        process.wait()


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


# EVI


def test_evi_01_leasing_is_use_and_reading_is_none(store: Path) -> None:
    for number in range(3):
        make_hostweights.make_artifact(store, number)
        make_hostweights.set_last_use(store, number, time.time_ns() - (3 - number) * HOUR)
    paths = [store / "artifacts" / make_hostweights.key_of(number) for number in range(3)]
    assert hwctl_("exec", paths[0], "--", "true").status == 0
    for path in paths:
        for file in path.iterdir():
            file.read_bytes()
    assert hwctl_("verify", store).status == 0
    assert hwctl_("inspect", store).status == 0
    assert hwctl_("evict", store, "--keep", "2", "-y").status == 0
    assert [path.exists() for path in paths] == [True, False, True]


def test_evi_03_the_held_one_stays_and_the_remainder_is_told(tmp_path: Path) -> None:
    cache = make_pageweights.make_store(tmp_path / "cache")
    for number, floats in enumerate((4096, 8, 8)):
        make_pageweights.make_artifact(cache, number, floats)
        make_pageweights.set_last_use(cache, number, time.time_ns() - (3 - number) * HOUR)
    small = next(cache.glob(f"{make_pageweights.prefix_of(1)}*.safetensors")).stat().st_size
    with holders.locked(cache / f".{make_pageweights.prefix_of(0)}.lock") as pid:
        run = hwctl_("evict", cache, "--max-size", str(small), "-y", "--json")
    assert run.status == 14
    (held,) = [row for row in run.results if row["outcome"] == "skipped"]
    assert f"pid {pid}" in held["reason"] and held["leases"]["pids"] == [pid]
    assert [path.name for path in cache.glob("*.locator.json")] == [
        f"{make_pageweights.prefix_of(0)}.locator.json"
    ]
    (short,) = run.document["totals"]["stores"][0]["shortfalls"]
    assert short["remainder"] == next(cache.glob("*.safetensors")).stat().st_size - small


def test_evi_04_numbers_are_blocks_and_each_inode_counts_once(tmp_path: Path) -> None:
    tree = make_ktint8.make_staging(tmp_path, "numbers-1", process=make_ktint8.dead_process())
    with (tree / "sparse").open("wb") as file:
        file.truncate(1 << 30)
    (tree / "stray").write_bytes(os.urandom(1 << 20))
    os.link(tree / "stray", tree / "linked")
    outside = tmp_path / "outside"
    os.link(tree / "_layer_0" / "_numa_0" / next(iter(os.listdir(tree / "_layer_0" / "_numa_0"))), outside)

    def du(path: Path) -> int:
        told = subprocess.run(
            ["du", "-s", "--block-size=1", path], capture_output=True, text=True, check=True
        )
        return int(told.stdout.split()[0])

    before = du(tree)
    listed = hwctl_("inspect", tree, "--json").results[0]
    assert listed["allocated_bytes"] == before and listed["bytes"] > 1 << 30
    run = hwctl_("reclaim-stale", tree, "-y", "--json")
    # What has another name outside is not free, and is not said to be.
    assert run.results[0]["bytes_freed"] == before - du(outside)


def test_evi_05_leased_between_scan_and_delete(store: Path) -> None:
    for number in range(3):
        make_hostweights.make_artifact(store, number)
        make_hostweights.set_last_use(store, number, time.time_ns() - (3 - number) * HOUR)
    paths = [store / "artifacts" / make_hostweights.key_of(number) for number in range(3)]
    with (
        asked("evict", store, "--keep", "2", "--json") as yes,
        holders.locked(store / "locks" / f"{paths[0].name}.artifact.lock"),
    ):
        run = yes()
    assert run.status == 0
    assert [row["outcome"] for row in run.results] == ["skipped", "done"]
    assert [path.exists() for path in paths] == [True, False, True]


def test_evi_07_the_room_binds_when_the_budget_is_larger(small: Path) -> None:
    cache = make_pageweights.make_store(small / "cache")
    for number in range(10):
        make_pageweights.make_artifact(cache, number, 1000)
    run = hwctl_("evict", cache, "--max-size", "1GiB", "-y", "--json")
    assert run.status == 0
    (told,) = run.document["totals"]["stores"]
    assert told["max_size"] <= 8 << 20 and told["bound_by"] in ("file system", "cgroup limit")
    run = hwctl_("evict", cache, "--max-size", "100KB", "-n", "--json")
    assert run.document["totals"]["stores"][0]["max_size"] == 100_000
    run = hwctl_("evict", cache, "--max-size", "100KiB", "-y", "--json")
    assert run.document["totals"]["stores"][0]["max_size"] == 100 * 1024
    assert sum(path.stat().st_size for path in cache.glob("*.safetensors")) <= 100 * 1024


def test_evi_08_somebody_else_deletes_the_cache(tmp_path: Path) -> None:
    """An entry that vanished is gone, and nothing is called damaged."""
    cache = make_pageweights.make_store(tmp_path / "cache")
    for number in range(2):
        make_pageweights.make_artifact(cache, number)
    artifact = next(cache.glob(f"{make_pageweights.prefix_of(0)}*.safetensors"))
    reader = "import sys, mmap; f = open(sys.argv[1], 'rb'); mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)"
    subprocess.run([sys.executable, "-c", reader, artifact], check=True)
    assert artifact.exists()
    with asked("evict", cache, "--all", "--json") as yes:
        for path in cache.glob(f"{make_pageweights.prefix_of(0)}*"):
            path.unlink()
        run = yes()
    assert run.status == 0, run.out
    assert sorted(row["outcome"] for row in run.results) == ["done", "skipped"]
    assert hwctl_("verify", cache).status == 0


# LEA


def test_lea_01_a_forked_child_does_not_drop_the_lease(store: Path) -> None:
    """The child exits normally, Python objects and all; the parent's lease stays until the parent ends."""
    path = make_hostweights.make_artifact(store, 0)
    script = """
import os, sys
from hwctl.fs.locks import adopt
held = adopt(int(os.environ["HWCTL_LEASE_FDS"]))
if os.fork() == 0:
    held.release()
    sys.exit(0)
os.wait()
print("child is gone", flush=True)
sys.stdin.readline()
held.release()
print("let go", flush=True)
sys.stdin.readline()
"""
    process = subprocess.Popen(
        command("exec", path, "--", sys.executable, "-c", script),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert process.stdin is not None and process.stdout is not None
    assert process.stdout.readline() == "child is gone\n"
    assert hwctl_("evict", path, "-y").status == 11
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == "let go\n"
    assert hwctl_("evict", path, "-y").status == 0
    process.communicate("\n", timeout=10)


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_lea_02_locks_that_do_not_lock_are_refused(
    store: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    from hwctl.stores.hostweights.store import open_store

    path = make_hostweights.make_artifact(store, 0)
    opened = open_store(store)
    (artifact,) = [entry for entry in opened.scan() if entry.path == path]
    before = sorted(store.rglob("*"))

    def flock(_fd: int, _how: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", flock)
    begin = time.monotonic()
    with pytest.raises(Refused, match="does not lock"):
        opened.lease(artifact, Mode.EXCLUSIVE, Deadline.after(60))
    assert time.monotonic() - begin < 1
    assert sorted(store.rglob("*")) == before


@needs_root
def test_lea_04_another_users_store_says_whose_it_is(tmp_path: Path) -> None:
    for folder in (tmp_path.parent.parent, tmp_path.parent, tmp_path):
        folder.chmod(0o755)
    store = make_hostweights.make_store(tmp_path / "store")
    path = make_hostweights.make_artifact(store, 0)
    for entry in [store, *store.rglob("*")]:
        os.chown(entry, 1234, 1234, follow_symlinks=False)
    assert hwctl_("verify", path).status == 0
    assert hwctl_("inspect", store).status == 0
    for words in (
        ["evict", path, "-y"],
        ["quarantine", path, "--reason", "x", "-y"],
        ["evict", store, "--all", "-y"],
    ):
        run = hwctl_(*words)
        assert run.status == 12, run
        assert "1234" in run.out + run.err and "sudo -u" in run.out + run.err
    for words in (["inspect", store], ["verify", store], ["evict", store, "--all", "-y"]):
        run = hwctl_(*words, uid=NOBODY)
        assert run.status in (10, 12, 15) and "Traceback" not in run.err
    assert path.exists()


def test_lea_05_a_pre_launch_check_tells_what_is_wrong(store: Path) -> None:
    """Five states, five reasons, each at once and before the command starts."""
    reasons: dict[str, str] = {}

    def ask(name: str, path: Path) -> None:
        begin = time.monotonic()
        run = hwctl_("exec", path, "--json", "--", "true")
        assert run.status == 125 and time.monotonic() - begin < 5
        reasons[name] = f"{run.error['code']}: {run.error['message']}"

    paths = [make_hostweights.make_artifact(store, number) for number in range(3)]
    for path, name in ((paths[0], "READY.json"), (paths[1], "model.safetensors")):
        path.chmod(0o755)
        (path / name).unlink()
        path.chmod(0o555)
    with holders.locked(store / "locks" / f"{paths[2].name}.artifact.lock"):
        hwctl_("quarantine", paths[2], "--reason", "doubt", "-y")
    ask("no marker", paths[0])
    ask("missing file", paths[1])
    ask("denied", paths[2])
    ask("other identity", store / "artifacts" / make_hostweights.key_of(8))
    make_hostweights.make_staging(store, 9, pid=os.getpid())
    with holders.locked(store / "locks" / f"{make_hostweights.key_of(9)}.build.lock", "exclusive"):
        ask("being built", store / "artifacts" / make_hostweights.key_of(9))
    assert len(set(reasons.values())) == 5, reasons
    codes = {name: reason.partition(":")[0] for name, reason in reasons.items()}
    assert codes == {
        "no marker": "damaged",
        "missing file": "damaged",
        "denied": "damaged",
        "other identity": "not-found",
        "being built": "busy",
    }
