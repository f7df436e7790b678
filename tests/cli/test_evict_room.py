"""Evicting for room: what a removal gives back, which limit binds, and a dry run that says the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import holders
import make_hostweights
import make_ktint8
import make_pageweights
import pytest
from run_hwctl import NOBODY, command, environment, hwctl_, open_to_all

MIB = 1 << 20
SECOND = 10**9

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make other users' files")


def megabytes(store: Path, count: int) -> list[Path]:
    """Artifacts of a mebibyte each, the first one the longest unused."""
    paths = []
    for number in range(count):
        paths.append(make_hostweights.make_artifact(store, number, MIB // 4))
        make_hostweights.set_last_use(store, number, 10**18 + number * SECOND)
    return paths


def rows(*words: str | Path) -> list[tuple[str, str]]:
    run = hwctl_("evict", *words, "--json")
    assert run.status == 0, run.err
    return [(Path(row["path"]).name, row["outcome"]) for row in run.results]


def test_what_gives_nothing_back_stays_while_others_do(small: Path) -> None:
    """One has its payload linked elsewhere, one is mapped by somebody who took no lease: EVI-03, EVI-04."""
    store = make_hostweights.make_store(small / "store")
    paths = megabytes(store, 5)
    os.link(paths[0] / "model.safetensors", small / "elsewhere")
    free = os.statvfs(small).f_bavail * os.statvfs(small).f_frsize
    wanted = str(free + 3 * MIB // 2)
    with holders.mapped(paths[1] / "model.safetensors"):
        planned = rows(store, "--min-free", wanted, "-n")
        assert planned == [(path.name, "planned") for path in paths[2:4]]
        assert rows(store, "--min-free", wanted, "-y") == [(path.name, "done") for path in paths[2:4]]
    assert [path.exists() for path in paths] == [True, True, False, False, True]


def test_what_gives_little_back_goes_last(small: Path) -> None:
    store = make_hostweights.make_store(small / "store")
    paths = megabytes(store, 2)
    os.link(paths[0] / "model.safetensors", small / "elsewhere")
    free = os.statvfs(small).f_bavail * os.statvfs(small).f_frsize
    wanted = str(free + MIB + 16 * 1024)
    assert rows(store, "--min-free", wanted, "-n") == [(paths[1].name, "planned"), (paths[0].name, "planned")]
    assert rows(store, "--min-free", wanted, "-y") == [(paths[1].name, "done"), (paths[0].name, "done")]


def test_a_page_that_is_linked_elsewhere_makes_no_room(small: Path) -> None:
    cache = make_pageweights.make_store(small / "cache")
    for number in range(3):
        make_pageweights.make_artifact(cache, number, MIB // 40)
        make_pageweights.set_last_use(cache, number, 10**18 + number * SECOND)
    first = next(cache.glob(f"{make_pageweights.prefix_of(0)}*.safetensors"))
    os.link(first, small / "elsewhere")
    free = os.statvfs(small).f_bavail * os.statvfs(small).f_frsize
    (row,) = hwctl_("evict", cache, "--min-free", str(free + 4096), "-y", "--json").results
    assert row["key"] == make_pageweights.prefix_of(1) and first.exists()


def test_a_build_lock_that_is_held_is_in_the_plan(store: Path) -> None:
    path = make_hostweights.make_artifact(store, 0)
    with holders.locked(store / "locks" / f"{path.name}.build.lock", "exclusive") as pid:
        for words in ([store, "--all"], [path]):
            for how in ("-n", "-y"):
                run = hwctl_("evict", *words, how, "--json")
                assert run.status == 11, (words, how)
                (row,) = run.results
                assert row["outcome"] == "skipped" and f"pid {pid} (uid {os.geteuid()}, " in row["reason"]
        for how in ("-n", "-y"):
            assert hwctl_("quarantine", path, "--reason", "x", how).status == 11
    assert path.exists()


def test_a_place_that_is_taken_is_in_the_plan_of_a_restore(store: Path, tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    cache = make_pageweights.make_store(tmp_path / "cache")
    makers = [
        lambda: make_hostweights.make_artifact(store, 0),
        lambda: make_ktint8.make_ready(base, "run-000001"),
        lambda: make_pageweights.make_artifact(cache, 0),
    ]
    for make in makers:
        path = make()
        run = hwctl_("quarantine", path, "--reason", "x", "-y", "--json")
        aside = run.results[0]["moved_to"]
        assert hwctl_("quarantine", "--restore", aside, "-n").status == 0
        make()
        for how in ("-n", "-y"):
            run = hwctl_("quarantine", "--restore", aside, how, "--json")
            assert run.status == 12, (aside, how, run.out)
            assert run.results[0]["outcome"] == "skipped" and "there already" in run.results[0]["reason"]
        assert Path(aside).exists()


def test_rec_06_what_was_used_before_a_reclaim_and_what_is_after(small: Path) -> None:
    base = small / "base"
    base.mkdir(mode=0o700)

    def used() -> int:
        facts = os.statvfs(small)
        return (facts.f_blocks - facts.f_bfree) * facts.f_frsize

    def stale() -> None:
        tree = make_ktint8.make_staging(base, "run-000001", process=make_ktint8.dead_process())
        (tree / "more").write_bytes(b"x" * MIB)

    stale()
    before = used()
    dry = hwctl_("reclaim-stale", base, "-n", "--json").document["totals"]
    assert (dry["used_bytes_before"], dry["used_bytes_after"]) == (before, before)
    done = hwctl_("reclaim-stale", base, "-y", "--json").document["totals"]
    assert (done["used_bytes_before"], done["used_bytes_after"]) == (before, used())
    assert before - used() == done["bytes_freed"] > MIB
    stale()
    told = hwctl_("reclaim-stale", base, "-y").out.splitlines()[-1]
    assert " freed; " in told and " were used before and " in told and told.endswith(" are now")


@needs_root
def test_targets_in_another_users_store_are_refused_and_not_missed(tmp_path: Path) -> None:
    open_to_all(tmp_path)
    store = make_hostweights.make_store(tmp_path / "store")
    for number in range(2):
        make_hostweights.make_artifact(store, number)
    for path in [store, *store.rglob("*")]:
        os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    for limit in (["--all"], ["--keep", "1"], ["--max-size", "1KiB"], ["--older-than", "0.001s"]):
        for how in ("-n", "-y"):
            run = hwctl_("evict", store, *limit, how)
            assert run.status == 12, (limit, how, run.out)
            assert "sudo -u" in run.out
    assert len(list((store / "artifacts").iterdir())) == 2


def test_the_file_system_that_binds_is_told_while_the_target_holds(small: Path) -> None:
    """EVI-07, in words."""
    cache = make_pageweights.make_store(small / "cache")
    make_pageweights.make_artifact(cache, 0)
    run = hwctl_("evict", cache, "--max-size", "1GiB", "-y")
    assert run.status == 0
    binds = f"{cache}: bound by the file system (8.00 MiB) and not by --max-size 1.00 GiB"
    assert run.out == f"nothing to do; {binds}\n"
    run = hwctl_("evict", cache, "--max-size", "1MiB", "-y", "-v")
    assert run.out == "nothing to do\n" and f"{cache}: bound by --max-size 1.00 MiB" in run.err
    run = hwctl_("evict", cache, "--min-free", "9MiB", "-y")
    assert run.status == 14 and "the file system has 8.00 MiB in all" in run.err


@pytest.fixture
def limited() -> Iterator[Path]:
    """A control group of 300 MiB, of version 1 or 2; skips where none can be made."""
    for hierarchy, name in (("memory", "memory.limit_in_bytes"), ("", "memory.max")):
        group = Path("/sys/fs/cgroup") / hierarchy / f"hwctl-test-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            if (group / name).exists():
                (group / name).write_text(str(300 * MIB))
                yield group
                return
        finally:
            time.sleep(0.1)
            group.rmdir()
    pytest.skip("no control group with a limit on memory can be made here")


@pytest.mark.hardware
def test_the_cgroup_that_binds_is_called_so(small: Path, limited: Path) -> None:
    subprocess.run(["mount", "-o", "remount,size=1g", small], check=True)
    cache = make_pageweights.make_store(small / "cache")
    make_pageweights.make_artifact(cache, 0)
    words = command("evict", cache, "--min-free", "900MiB", "-y")
    enter = [sys.executable, "-c", _ENTER, str(limited / "cgroup.procs"), *words]
    run = subprocess.run(enter, capture_output=True, text=True, env=environment(), cwd="/")
    assert run.returncode == 14
    assert "--min-free asks for 900 MiB, the cgroup limit has 300 MiB in all" in run.stderr


@pytest.mark.hardware
def test_pages_that_another_cgroup_pays_for_do_not_go_in_vain(small: Path, limited: Path) -> None:
    """EVI-07: the room of the own group does not grow by them, so one is the last that is tried."""
    subprocess.run(["mount", "-o", "remount,size=1g", small], check=True)
    store = make_hostweights.make_store(small / "store")
    for number in range(4):
        make_hostweights.make_artifact(store, number, 8 * MIB // 4)
    words = command("evict", store, "--min-free", "290MiB", "-y", "--json")
    enter = [sys.executable, "-c", _ENTER, str(limited / "cgroup.procs"), *words]
    run = subprocess.run(enter, capture_output=True, text=True, env=environment(), cwd="/")
    assert run.returncode == 14, run.stdout
    (stood,) = json.loads(run.stdout)["totals"]["stores"]
    assert stood["entries"] == len(list((store / "artifacts").iterdir())) == 3
    assert stood["free_bytes"] < 290 * MIB and stood["bound_by"] == "cgroup limit"


_ENTER = "import os, sys; open(sys.argv[1], 'w').write(str(os.getpid())); os.execv(sys.argv[2], sys.argv[2:])"
