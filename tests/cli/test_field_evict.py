"""Evicting and leases: what went wrong for people, case by case, and what hwctl does instead.

EVI is evicting, LEA leases. Quarantine and reclaiming are in test_field_reclaim.
"""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path

import holders
import make_hostweights
import make_ktint8
import make_pageweights
import pytest
from run_hwctl import NOBODY, asked, command, environment, hwctl_, open_to_all

from hwctl.errors import Refused
from hwctl.fs.deadline import Deadline
from hwctl.fs.lock_table import Mode

HOUR = 3600 * 10**9


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can do this")


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
        asked("evict", store, "--keep", "2") as yes,
        holders.locked(store / "locks" / f"{paths[0].name}.artifact.lock"),
    ):
        run = yes()
    assert run.status == 0
    assert [record.split("\t")[0] for record in run.out.splitlines()[:-1]] == ["skipped", "done"]
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
    with asked("evict", cache, "--all") as yes:
        for path in cache.glob(f"{make_pageweights.prefix_of(0)}*"):
            path.unlink()
        run = yes()
    assert run.status == 0, run.out
    assert sorted(record.split("\t")[0] for record in run.out.splitlines()[:-1]) == ["done", "skipped"]
    assert hwctl_("verify", cache).status == 0


def test_evi_08_a_lease_keeps_ageing_off_the_artifact(store: Path) -> None:
    """Who ages files passes over a folder that is locked; nobody else is held up, and it is one lease."""
    path = make_hostweights.make_artifact(store, 0)
    script = "echo ready; read line"
    process = subprocess.Popen(
        command("exec", path, "--", "sh", "-c", script),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert process.stdin is not None and process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    assert subprocess.run(["flock", "-n", "-x", path, "true"]).returncode == 1
    (row,) = hwctl_("inspect", store, "--json").results
    assert row["leases"] == {"shared": 1, "exclusive": 0, "pids": [process.pid]}
    process.communicate("\n", timeout=60)
    with holders.locked(path, "exclusive"):
        assert hwctl_("exec", path, "--", "true").status == 0
    with holders.locked(path):
        assert hwctl_("quarantine", path, "--reason", "x", "-y").status == 0


# LEA


def test_lea_01_a_forked_child_does_not_drop_the_lease(store: Path) -> None:
    """The child exits normally, Python objects and all; the parent's lease stays until the parent ends."""
    path = make_hostweights.make_artifact(store, 0)
    script = """
import os, sys
from hwctl.fs.locks import adopt
held = adopt(int(os.environ["HWCTL_LEASE_FDS"].split(",")[0]))
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
    process.communicate("\n", timeout=60)


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
    open_to_all(tmp_path)
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
