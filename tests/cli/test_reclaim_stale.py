"""``hwctl reclaim-stale`` as a process: what it says, what it exits with, what it leaves."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import time
from pathlib import Path

import make_hostweights
import make_ktint8
import make_pageweights
import pytest
from kits import KITS, Kit, KtInt8
from run_hwctl import NOBODY, command, environment, hwctl_, open_to_all, start

from hwctl.fs.liveness import proc_stat

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make other users' files")


@pytest.fixture
def one(tmp_path: Path) -> Kit:
    """One family, for what does not depend on it."""
    return KtInt8(tmp_path)


@pytest.fixture(params=sorted(KITS))
def kit(request: pytest.FixtureRequest, tmp_path: Path) -> Kit:
    made: Kit = KITS[request.param](tmp_path)
    return made


def test_a_dry_run_is_the_run_without_the_deed(kit: Kit) -> None:
    gone = kit.leftover(0)
    dry = hwctl_("reclaim-stale", kit.root, "-n", "--json")
    assert dry.status == 0 and dry.document["dry_run"] is True and gone.exists()
    done = hwctl_("reclaim-stale", kit.root, "-y", "--json")
    assert done.status == 0 and not gone.exists()
    rows = [(row["path"], row["action"], row["reason"], row["evidence"]) for row in dry.results]
    assert rows == [(row["path"], row["action"], row["reason"], row["evidence"]) for row in done.results]
    assert [row["outcome"] for row in dry.results] == ["planned"]
    assert [row["outcome"] for row in done.results] == ["done"]
    assert done.document["totals"]["bytes_freed"] == done.results[0]["bytes_freed"] > 0


def test_without_a_terminal_and_without_yes_nothing_happens_at_once(one: Kit) -> None:
    """CLI-06."""
    kept = one.leftover(0)
    begin = time.monotonic()
    run = hwctl_("reclaim-stale", one.root)
    assert run.status == 12 and "--yes" in run.err and kept.exists()
    assert time.monotonic() - begin < 5


def test_nothing_to_do_needs_no_confirmation(one: Kit) -> None:
    one.artifact(0)
    run = hwctl_("reclaim-stale", one.root)
    assert (run.status, run.out) == (0, "nothing to do\n")


def test_a_sweep_that_keeps_is_ok_and_a_named_path_that_is_kept_is_busy(kit: Kit) -> None:
    with kit.at_work(0) as path:
        sweep = hwctl_("reclaim-stale", kit.root, "-y", "--json")
        assert sweep.status == 0
        (row,) = sweep.results
        assert (row["action"], row["outcome"]) == ("keep", "skipped") and row["evidence"]
        named = hwctl_("reclaim-stale", path, "-y", "--json")
        assert named.status == 11 == named.document["exit_status"]
        assert named.error["code"] == "busy"
        assert path.exists()


def test_a_named_path_that_is_no_leftover_is_refused_and_one_that_is_absent_not_found(kit: Kit) -> None:
    path = kit.artifact(0)
    assert hwctl_("reclaim-stale", path, "-y").status == 12
    assert hwctl_("reclaim-stale", kit.root / "nothing-here", "-y").status == 10
    assert path.exists()


def test_a_tree_without_a_lease_goes_only_with_the_flag_and_an_age(tmp_path: Path) -> None:
    """REC-04."""
    path = make_ktint8.make_staging(tmp_path, "leaseless-1", lease=False)
    assert hwctl_("reclaim-stale", path, "-y").status == 12
    assert hwctl_("reclaim-stale", path, "-y", "--leaseless").status == 12
    assert hwctl_("reclaim-stale", path, "-y", "--older-than", "1ms").status == 2
    assert hwctl_("reclaim-stale", path, "-y", "--leaseless", "--older-than", "1h").status == 11
    assert path.exists()
    assert hwctl_("reclaim-stale", path, "-y", "--leaseless", "--older-than", "0.01s").status == 0
    assert not path.exists()


def test_ready_trees_go_only_with_the_flag(tmp_path: Path) -> None:
    """REC-06."""
    path = make_ktint8.make_ready(tmp_path, "ready-1", process=make_ktint8.dead_process())
    sweep = hwctl_("reclaim-stale", tmp_path, "-y", "--older-than", "0.01s")
    assert (sweep.status, path.exists()) == (0, True)
    run = hwctl_("reclaim-stale", tmp_path, "-y", "--ready", "--older-than", "0.01s", "--json")
    assert run.status == 0 and not path.exists()
    assert any("gone" in clause or "reused" in clause for clause in run.results[0]["evidence"])


def test_a_tree_that_exec_holds_is_kept_for_its_holder(tmp_path: Path) -> None:
    path = make_ktint8.make_ready(tmp_path, "ready-1", process=make_ktint8.dead_process())
    holder = start("exec", path, "--level", "marker", "--", "sh", "-c", "echo held; exec sleep 60")
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        run = hwctl_("reclaim-stale", tmp_path, "--ready", "-n", "--older-than", "0.01s")
        named = hwctl_("reclaim-stale", path, "--ready", "-y", "--older-than", "0.01s")
        without = hwctl_("reclaim-stale", tmp_path, "-n")
    finally:
        holder.kill()
        holder.wait()
    *_, reason = run.out.splitlines()[0].split("\t")
    who = f"pid {holder.pid} (uid {os.getuid()}, sleep, running for "
    assert reason.startswith(f"live: its root is locked by {who}")
    assert "gone" not in reason
    assert (run.status, named.status, path.exists()) == (0, 11, True)
    assert without.out == "nothing to do\n"


def test_the_first_word_of_evidence_is_what_keeps_a_tree(tmp_path: Path) -> None:
    make_ktint8.make_ready(tmp_path, "ready-1", process=None)
    run = hwctl_("reclaim-stale", tmp_path, "--ready", "-n")
    *_, reason = run.out.splitlines()[0].split("\t")
    assert reason.startswith("live: something in it changed ")


def test_an_emptied_base_is_one_to_whoever_says_so(tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir(mode=0o700)
    tree = make_ktint8.make_ready(base, "run-0001")
    assert hwctl_("consume", tree, "--discard", "-y").status == 0
    assert os.listdir(base) == []
    told = ("--family", "ktint8")
    sweep = hwctl_("reclaim-stale", base, "-n", *told)
    assert (sweep.status, sweep.out, sweep.err) == (0, "nothing to do\n", "")
    by_root = hwctl_("reclaim-stale", "-y", *told, env={"HWCTL_ROOTS": str(base)})
    assert (by_root.status, by_root.err) == (0, "")
    assert hwctl_("evict", base, "--all", "-y", *told).status == 0
    # The contract has 10 for those who ask what is there: an empty folder may be a mount that is missing.
    assert hwctl_("inspect", base, "--json", *told).status == 10
    for verb in ("reclaim-stale", "inspect", "verify"):
        assert hwctl_(verb, base).status == 10
    for family in ("hostweights", "pageweights"):
        assert hwctl_("reclaim-stale", base, "--family", family).status == 10
    # Of a check before a start, an empty folder may be a mount that is missing.
    assert hwctl_("verify", base, *told).status == 10
    (base / "notes.txt").touch()
    assert hwctl_("reclaim-stale", base, "-n", *told).status == 10


def test_one_run_alone(tmp_path: Path) -> None:
    """REC-07: an epilog touches its own run and no other, whatever else is dead."""
    mine = make_ktint8.make_staging(tmp_path, "job-4711", process=make_ktint8.dead_process())
    other = make_ktint8.make_staging(tmp_path, "job-47110", process=make_ktint8.dead_process())
    run = hwctl_("reclaim-stale", tmp_path, "-y", "--run-id", "job-4711", "--json")
    assert run.status == 0 and len(run.results) == 1
    assert (mine.exists(), other.exists()) == (False, True)
    assert hwctl_("reclaim-stale", tmp_path, "-y", "--match", "job-4711?").status == 0
    assert not other.exists()


def test_one_run_alone_whatever_a_shell_s_glob_names(tmp_path: Path) -> None:
    process = make_ktint8.dead_process()
    mine, other = (
        make_ktint8.make_staging(tmp_path, run, process=process) for run in ("job-0001", "job-0002")
    )
    for words, said in (
        (["--run-id", "job-0001"], "it is not of the run job-0001"),
        (["--match", "*-0001"], "no --match takes its key"),
    ):
        for how, outcome in (("-n", "planned"), ("-y", "done")):
            run = hwctl_("reclaim-stale", mine, other, *words, how, "--json")
            assert run.status == 0
            assert {(row["key"], row["outcome"]) for row in run.results} == {
                ("job-0001", outcome),
                ("job-0002", "skipped"),
            }
            assert said in [row["reason"] for row in run.results]
        assert (mine.exists(), other.exists()) == (False, True)
        make_ktint8.make_staging(tmp_path, "job-0001", process=process)


def test_an_entry_that_is_named_twice_or_beside_its_store_is_planned_once(tmp_path: Path) -> None:
    tree = make_ktint8.make_staging(tmp_path, "job-0001", process=make_ktint8.dead_process())
    for paths in ([tmp_path, tree], [tree, tree], [tree, tmp_path]):
        assert len(hwctl_("reclaim-stale", *paths, "-n", "--json").results) == 1
    cache = make_pageweights.make_store(tmp_path / "cache")
    make_pageweights.make_artifact(cache, 0)
    run = hwctl_(
        "quarantine", *cache.glob("*.json"), *cache.glob("*.safetensors"), "--reason", "x", "-n", "--json"
    )
    assert run.status == 0 and len(run.results) == 1


def test_the_default_roots_come_from_the_environment(tmp_path: Path) -> None:
    first, second = tmp_path / "one", tmp_path / "two"
    first.mkdir()
    gone = make_ktint8.make_staging(first, "default-1", process=make_ktint8.dead_process())
    store = make_hostweights.make_store(second)
    staging = make_hostweights.make_staging(store, 1)
    run = hwctl_("reclaim-stale", "-y", "--json", env={"HWCTL_ROOTS": f"{first}:{second}"})
    assert run.status == 0
    assert {row["family"] for row in run.results} == {"ktint8", "hostweights"}
    assert not gone.exists() and not staging.exists()


def test_usage_errors_touch_nothing(tmp_path: Path) -> None:
    kept = make_ktint8.make_staging(tmp_path, "usage-1", process=make_ktint8.dead_process())
    for words in (
        ["--older-than", "15m"],
        ["--older-than", "0s"],
        ["--run-id", ""],
        ["--match", ""],
        ["--bogus"],
        ["--wait", "-1s"],
    ):
        run = hwctl_("reclaim-stale", tmp_path, "-y", *words)
        assert run.status == 2, words
        assert kept.exists()


@needs_root
def test_another_users_tree_is_kept_with_the_command_that_its_owner_would_run(tmp_path: Path) -> None:
    """REC-08, both ways round."""
    open_to_all(tmp_path)
    tmp_path.chmod(0o1777)
    theirs = make_ktint8.make_staging(tmp_path, "theirs-1", process=make_ktint8.dead_process())
    _give(theirs, NOBODY)
    mine = make_ktint8.make_staging(tmp_path, "mine-1", process=make_ktint8.dead_process())

    as_root = hwctl_("reclaim-stale", tmp_path, "-n", "--json")
    assert as_root.status == 0
    kept = {row["path"]: row for row in as_root.results}[str(theirs)]
    assert kept["action"] == "keep" and f"sudo -u '#{NOBODY}' hwctl reclaim-stale" in kept["reason"]

    as_nobody = hwctl_("reclaim-stale", tmp_path, "-n", "--json", uid=NOBODY)
    assert as_nobody.status == 0
    kept = {row["path"]: row for row in as_nobody.results}[str(mine)]
    assert kept["action"] == "keep" and "uid 0" in kept["reason"] and kept["owner_uid"] == 0

    assert hwctl_("reclaim-stale", theirs, "-y").status == 12
    assert hwctl_("reclaim-stale", mine, "-y", uid=NOBODY).status == 12
    assert theirs.exists() and mine.exists()


@needs_root
def test_root_acts_as_the_owner_and_leaves_nothing_of_its_own(tmp_path: Path) -> None:
    open_to_all(tmp_path)
    tmp_path.chmod(0o1777)
    dead = make_ktint8.make_staging(tmp_path, "theirs-2", process=make_ktint8.dead_process(), uid=NOBODY)
    _give(dead, NOBODY)
    store = make_hostweights.make_store(tmp_path / "store")
    staging = make_hostweights.make_staging(store, 1)
    cache = make_pageweights.make_store(tmp_path / "cache")
    orphan = make_pageweights.make_artifact(cache, 1, locator=False)
    make_pageweights.put_lock(cache, 1)
    for root in (store, cache):
        _give(root, NOBODY)
    run = hwctl_("reclaim-stale", tmp_path, store, cache, "-y", "--other-users", "--json")
    assert run.status == 0, run.err
    assert {row["outcome"] for row in run.results} == {"done"}, run.out
    assert not dead.exists() and not staging.exists() and not orphan.exists()
    left = [path for root in (store, cache) for path in [root, *root.rglob("*")]]
    assert {path.lstat().st_uid for path in left} == {NOBODY}


@needs_root
def test_a_tree_that_kt_kernel_made_is_judged_with_roots_eyes_for_its_owner(tmp_path: Path) -> None:
    """The evidence rules are the same; only root can see that nobody has a file of it open."""
    open_to_all(tmp_path)
    tmp_path.chmod(0o1777)
    dead = make_ktint8.make_staging(tmp_path, "upstream-1", uid=NOBODY)
    _give(dead, NOBODY)
    run = hwctl_("reclaim-stale", tmp_path, "-y", "--other-users", "--older-than", "0.01s", "--json")
    assert run.status == 0 and not dead.exists(), run.out


@needs_root
def test_a_zombie_of_its_owner_keeps_nobody_from_judging(shm: Path) -> None:
    """The kernel shows nobody but root that it has no files left."""
    shm.chmod(0o1777)
    dead = make_ktint8.make_staging(shm, "upstream-1", uid=NOBODY)
    _give(dead, NOBODY)
    zombie = subprocess.Popen(["true"], user=NOBODY, group=NOBODY, extra_groups=[])
    try:
        os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
        run = hwctl_("reclaim-stale", dead, "-y", "--older-than", "0.01s", uid=NOBODY)
        assert run.status == 0 and not dead.exists(), run.out
    finally:
        zombie.wait()


@needs_root
def test_a_zombie_whose_threads_live_on_is_a_user_also_to_its_owner(shm: Path) -> None:
    shm.chmod(0o1777)
    held = make_ktint8.make_staging(shm, "upstream-1", uid=NOBODY)
    _give(held, NOBODY)
    file = next(path for path in held.rglob("*") if path.is_file())
    leader = subprocess.Popen(
        [command(uid=NOBODY)[0], "-S", "-c", _LEAVING_A_THREAD, file],
        stdout=subprocess.PIPE,
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
    )
    try:
        assert leader.stdout is not None and leader.stdout.readline()
        until = time.monotonic() + 10
        while (stat := proc_stat(leader.pid)) and stat.state != "Z" and time.monotonic() < until:
            time.sleep(0.01)
        run = hwctl_("reclaim-stale", held, "-y", "--older-than", "0.01s", uid=NOBODY)
        assert run.status == 11 and f"pid {leader.pid} (uid {NOBODY}, " in run.out, run.out
        assert held.exists()
    finally:
        leader.kill()
        leader.communicate()


_LEAVING_A_THREAD = """
import ctypes, sys, threading, time
file = open(sys.argv[1], "rb")
threading.Thread(target=time.sleep, args=(60,)).start()
print("x", flush=True)
ctypes.CDLL(None).pthread_exit(None)
"""


def _give(root: Path, uid: int) -> None:
    for path in [root, *root.rglob("*")]:
        os.chown(path, uid, uid, follow_symlinks=False)


def test_eight_at_once_over_fifty_dead_trees(tmp_path: Path) -> None:
    """REC-09: all end well, nothing is left, and each byte is counted by exactly one of them."""
    # A base stays one while there is a tree in it, also for those that come late.
    stays = make_ktint8.make_ready(tmp_path, "stays-1")
    for _round in range(int(os.environ.get("HWCTL_TEST_ROUNDS", "1"))):
        process = make_ktint8.dead_process()
        trees = [make_ktint8.make_staging(tmp_path, f"crowd-{n:03d}", process=process) for n in range(50)]
        total = sum(_allocated(tree) for tree in trees)
        runs = [start("reclaim-stale", tmp_path, "-y", "--json") for _ in range(8)]
        freed = 0
        for run in runs:
            out, err = run.communicate(timeout=120)
            assert run.returncode == 0, err
            totals = json.loads(out)["totals"]
            # A rival that reads a lease just now has it open; still, each byte is counted once.
            freed += totals["bytes_freed"] + totals["still_mapped_bytes"]
        assert os.listdir(tmp_path) == [stays.name]
        assert freed == total


def _allocated(root: Path) -> int:
    return sum(path.lstat().st_blocks * 512 for path in [root, *root.rglob("*")])


@pytest.mark.parametrize("closing", ["{} >&-", "{} | true"])
def test_a_reader_that_went_away_does_not_stop_the_work(tmp_path: Path, closing: str) -> None:
    """CLI-04: the exit status is that of the work."""
    process = make_ktint8.dead_process()
    for number in range(5):
        make_ktint8.make_staging(tmp_path, f"unread-{number}", process=process)
    words = shlex.join(command("reclaim-stale", tmp_path, "-y"))
    shell = "set -o pipefail; " + closing.format(words)
    done = subprocess.run(["bash", "-c", shell], env=environment(), timeout=60, check=False)
    assert (done.returncode, os.listdir(tmp_path)) == (0, [])


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_whatever_ends_it_on_the_way_a_later_run_finishes(tmp_path: Path, signum: signal.Signals) -> None:
    root = make_ktint8.make_staging(tmp_path, "ended-1", process=make_ktint8.dead_process(), layers=400)
    whole = len(os.listdir(root))
    run = start("reclaim-stale", tmp_path, "-y", "--json")
    with contextlib.suppress(FileNotFoundError):
        while run.poll() is None and len(os.listdir(root)) == whole:
            pass
    run.send_signal(signum)
    run.communicate()
    assert run.returncode in (-signum, 0)
    again = hwctl_("reclaim-stale", tmp_path, "-y", "--json")
    assert again.status == 0 and os.listdir(tmp_path) == []
    assert sum(row["files"] for row in again.results) < 6 * (whole - 1)
