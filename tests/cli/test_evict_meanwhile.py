"""What others do to a store while evict asks, waits or removes: the answer is how the store stands then."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import holders
import make_hostweights
import make_pageweights
import pytest
from run_hwctl import NOBODY, asked, hwctl_, open_to_all, start
from waiting import opened_by, until

MIB = 1 << 20
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make other users' files")


def artifacts(store: Path, first: int, last: int) -> None:
    for number in range(first, last):
        make_hostweights.make_artifact(store, number, MIB // 4)
        make_hostweights.set_last_use(store, number, 10**18 + number * 10**9)


def pages(cache: Path, first: int, last: int) -> None:
    for number in range(first, last):
        make_pageweights.make_artifact(cache, number, 4096)
        make_pageweights.set_last_use(cache, number, 10**18 + number * 10**9)


def size_of(root: Path) -> int:
    """What counts against a budget: of host weights every file, of a cache its artifacts."""
    files = root.rglob("*") if (root / "domain.json").exists() else root.glob("*.safetensors")
    return sum(path.stat().st_size for path in files if path.is_file())


def free_in(folder: Path) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def command_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()[:5]


@pytest.mark.parametrize("fill", [artifacts, pages])
def test_what_was_published_while_we_were_asked_counts(
    fill: Callable[[Path, int, int], None], tmp_path: Path
) -> None:
    maker = make_hostweights if fill is artifacts else make_pageweights
    made = maker.make_store(tmp_path / "store")
    fill(made, 0, 4)
    budget = size_of(made) * 3 // 4 + 4096
    with asked("evict", made, "--max-size", str(budget)) as yes:
        fill(made, 4, 7)
        run = yes()
    assert run.status == 0 and size_of(made) <= budget
    rest = hwctl_("evict", made, "--max-size", str(budget), "-n", "--json")
    assert rest.results == [] and rest.document["totals"]["stores"][0]["size"] == size_of(made)


def test_keep_keeps_no_more_although_others_came_meanwhile(store: Path) -> None:
    artifacts(store, 0, 4)
    with asked("evict", store, "--keep", "3") as yes:
        artifacts(store, 4, 6)
        run = yes()
    assert run.status == 0
    assert len(list((store / "artifacts").iterdir())) == 3


def test_the_room_that_others_took_meanwhile_is_made_as_well(small: Path) -> None:
    store = make_hostweights.make_store(small / "store")
    artifacts(store, 0, 5)
    with asked("evict", store, "--min-free", "3.5MiB") as yes:
        (small / "elsewhere").write_bytes(bytes(MIB + MIB // 4))
        run = yes()
    assert run.status == 0 and 3.5 * MIB <= free_in(small) < 4.6 * MIB
    left = len(list((store / "artifacts").iterdir()))
    with asked("evict", store, "--min-free", "5MiB") as yes:
        (small / "last").write_bytes(bytes(free_in(small)))
        run = yes()
    assert (
        run.status == 14
        and f"{left} done" in run.out
        and "less than the 5.00 MiB wanted" in run.err + run.out
    )


def test_a_rival_that_was_waited_for_may_leave_more_than_the_plan_knew(store: Path) -> None:
    artifacts(store, 0, 4)
    budget = size_of(store) * 3 // 4 + 4096
    with holders.locked(store, "exclusive"):
        process = start("evict", store, "--max-size", str(budget), "-y", "--wait", "20s", "--json")
        until(lambda: str(store) in opened_by(process.pid))
        time.sleep(0.3)  # it has its plan by the time that it waits
        artifacts(store, 4, 7)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 0, out
    assert size_of(store) <= budget


def test_an_entry_that_was_used_meanwhile_is_not_due_any_more(store: Path) -> None:
    artifacts(store, 0, 2)
    with asked("evict", store, "--older-than", "1h") as yes:
        make_hostweights.set_last_use(store, 1, time.time_ns())
        run = yes()
    assert run.status == 0 and "it was used since the plan was made" in run.out
    assert len(list((store / "artifacts").iterdir())) == 1


def test_without_inodes_a_dry_run_and_the_run_still_say_the_same(small: Path) -> None:
    """Evicting is what gives inodes back, so it needs none."""
    subprocess.run(["mount", "-o", "remount,size=8m,nr_inodes=90", small], check=True)
    store = make_hostweights.make_store(small / "store")
    artifacts(store, 0, 4)
    (small / "filling").mkdir()
    with pytest.raises(OSError, match="No space"):
        for number in range(100):
            (small / "filling" / str(number)).touch()
    for how, outcome in (("-n", "planned"), ("-y", "done")):
        run = hwctl_("evict", store, "--keep", "2", how, "--json")
        assert run.status == 0 and [row["outcome"] for row in run.results] == [outcome] * 2, run.err


def test_a_store_that_lost_its_folder_of_locks_is_there_all_the_same(store: Path) -> None:
    artifacts(store, 0, 2)
    for lock in (store / "locks").iterdir():
        lock.unlink()
    (store / "locks").rmdir()
    run = hwctl_("evict", store, "--keep", "1", "-y", "--json")
    assert run.status == 15 and str(store / "locks") in run.results[0]["reason"]
    assert len(list((store / "artifacts").iterdir())) == 2


@needs_root
def test_another_users_store_that_is_closed_in_part_is_refused(tmp_path: Path) -> None:
    """LEA-04: whose it is comes before what cannot be seen of it."""
    open_to_all(tmp_path)
    store = make_hostweights.make_store(tmp_path / "store")
    artifacts(store, 0, 2)
    for folder in (store, *store.iterdir()):
        if folder.is_dir():
            folder.chmod(0o755)
    closed = make_hostweights.make_staging(store, 2)
    closed.chmod(0o700)
    run = hwctl_("evict", store, "--all", "-y", "--json", uid=NOBODY)
    assert run.status == 12 and "sudo -u root hwctl evict" in run.results[0]["reason"]


def test_a_lease_whose_lock_file_was_aged_away_counts(store: Path) -> None:
    """EVI-08: exec locks the artifact's folder as well, and whoever maps its files is seen by them."""
    artifacts(store, 0, 3)
    paths = [store / "artifacts" / make_hostweights.key_of(number) for number in range(3)]
    process = start("exec", paths[0], "--", "sleep", "60")
    try:
        until(lambda: str(paths[0]) in opened_by(process.pid) and b"sleep" in command_of(process.pid))
        with holders.mapped(paths[1] / "model.safetensors") as pid:
            for path in paths:
                (store / "locks" / f"{path.name}.artifact.lock").unlink(missing_ok=True)
            for verb, words in (("evict", ()), ("quarantine", ("--reason", "odd"))):
                for path, holder in ((paths[0], process.pid), (paths[1], pid)):
                    for how in ("-n", "-y", "-y"):
                        run = hwctl_(verb, path, *words, how, "--json")
                        assert run.status == 11, (verb, how, run.out)
                        assert f"pid {holder} " in run.results[0]["reason"]
            run = hwctl_("evict", store, "--all", "-y", "--json")
            assert run.status == 11
            assert [row["outcome"] for row in sorted(run.results, key=lambda row: row["path"])].count(
                "done"
            ) == 1
            assert [path.exists() for path in paths] == [True, True, False]
    finally:
        process.kill()
        process.communicate()
    assert hwctl_("evict", *paths[:2], "-y").status == 0
