"""``hwctl evict`` as a process: limits, names, the plan, the statuses."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import time
from pathlib import Path

import holders
import make_hostweights
import make_ktint8
import make_pageweights
import pytest
from kits import KITS, HostWeights, Kit, KtInt8, PageWeights
from run_hwctl import NOBODY, command, environment, hwctl_, open_to_all, start

HOUR = 3600 * 10**9

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make other users' files")


@pytest.fixture(params=sorted(KITS))
def kit(request: pytest.FixtureRequest, tmp_path: Path) -> Kit:
    made: Kit = KITS[request.param](tmp_path)
    return made


def filled(kit: Kit) -> Kit:
    """Artifacts 0, 1, 2, used three, two and one hours ago."""
    for number in range(3):
        kit.artifact(number)
        kit.used(number, time.time_ns() - (3 - number) * HOUR)
    return kit


@pytest.fixture
def three(kit: Kit) -> Kit:
    return filled(kit)


@pytest.fixture
def cache(tmp_path: Path) -> Kit:
    """One family, for what does not depend on it."""
    return filled(PageWeights(tmp_path))


def left(kit: Kit) -> set[int]:
    return {number for number in range(3) if kit.open_path(number).exists()}


def test_a_dry_run_prints_exactly_the_plan(three: Kit) -> None:
    dry = hwctl_("evict", three.root, "--keep", "1", "-n", "--json")
    assert dry.status == 0 and left(three) == {0, 1, 2}
    done = hwctl_("evict", three.root, "--keep", "1", "-y", "--json")
    assert done.status == 0 and left(three) == {2}
    assert [row["path"] for row in dry.results] == [row["path"] for row in done.results]
    assert [row["path"] for row in dry.results] == [str(three.open_path(0)), str(three.open_path(1))]
    assert {row["outcome"] for row in dry.results} == {"planned"}
    assert {row["outcome"] for row in done.results} == {"done"}


def test_a_dry_run_takes_no_exclusive_lock(cache: Kit) -> None:
    with holders.locked(cache.lock(1)), holders.locked(cache.lock(2)):
        dry = hwctl_("evict", cache.root, "--all", "-n", "--json")
    outcomes = {row["path"]: row["outcome"] for row in dry.results}
    assert [outcomes[str(cache.open_path(n))] for n in range(3)] == ["planned", "skipped", "skipped"]
    assert dry.status == 11


def test_the_records_are_one_a_line_and_name_the_holder(cache: Kit) -> None:
    with holders.locked(cache.lock(0)) as pid:
        run = hwctl_("evict", cache.root, "--keep", "2", "-y")
    assert run.status == 0, run.err
    lines = run.out.splitlines()
    assert [line.split("\t")[0] for line in lines[:-1]] == ["skipped", "done"]
    assert f"pid {pid}" in lines[0]
    assert lines[-1].startswith("1 done, 1 skipped")
    assert left(cache) == {0, 2}


def test_a_target_out_of_reach_is_no_room_with_the_remainder(cache: Kit) -> None:
    """EVI-03."""
    with holders.locked(cache.lock(0)):
        run = hwctl_("evict", cache.root, "--max-size", "1B", "-y", "--json")
    assert run.status == 14 and left(cache) == {0}
    (store,) = run.document["totals"]["stores"]
    (short,) = store["shortfalls"]
    assert (short["measure"], short["wanted"], short["bound_by"]) == ("size", 1, "budget")
    assert short["remainder"] == store["size"] - 1 > 0
    assert run.error["code"] == "no-room" and run.error["exit_status"] == 14


def test_terms_that_met_leased_entries_are_busy(cache: Kit) -> None:
    with holders.locked(cache.lock(0)):
        run = hwctl_("evict", cache.root, "--older-than", "90min", "-y")
        assert run.status == 11 and left(cache) == {0, 2}
    cache.used(0, time.time_ns() - 3 * HOUR)
    assert hwctl_("evict", cache.root, "--older-than", "90min", "-y").status == 0
    assert left(cache) == {2}


def test_named_entries_and_nothing_else(three: Kit) -> None:
    run = hwctl_("evict", three.open_path(1), "-y", "--json")
    assert run.status == 0 and left(three) == {0, 2}
    assert run.results[0]["bytes_freed"] > 0
    assert hwctl_("evict", three.open_path(1), "-y").status == 10
    with holders.locked(three.lock(0)):
        assert hwctl_("evict", three.open_path(0), three.open_path(2), "-y").status == 11
    assert left(three) == {0}


def test_filters(cache: Kit) -> None:
    keys = [cache.key(number) for number in range(3)]
    run = hwctl_("evict", cache.root, "--all", "--match", keys[0], "--match", keys[1], "-n", "--json")
    assert {row["key"] for row in run.results} == set(keys[:2])
    run = hwctl_("evict", cache.root, "--all", "--exclude", f"{keys[0][:-1]}?", "-n", "--json")
    assert keys[0] not in {row["key"] for row in run.results}
    run = hwctl_("evict", cache.root, "--all", "--min-age", "1h", "-y", "--json")
    assert run.status == 0


def test_min_free_that_is_there_already_takes_nothing(cache: Kit) -> None:
    run = hwctl_("evict", cache.root, "--min-free", "1B", "-y", "--json")
    assert (run.status, run.results) == (0, [])
    run = hwctl_("evict", cache.root, "--max-size", "100%", "-y", "--json")
    assert (run.status, run.results) == (0, [])
    assert left(cache) == {0, 1, 2}


def test_a_store_without_a_limit_and_other_nonsense_are_usage_errors(cache: Kit) -> None:
    entry = cache.open_path(0)
    for words in (
        [cache.root],
        [cache.root, "--match", "*"],
        [cache.root, "--all", "--keep", "1"],
        [cache.root, "--max-size", "0"],
        [cache.root, "--max-size", "10G"],
        [entry, "--keep", "1"],
        [entry, cache.root, "--all"],
        [],
    ):
        run = hwctl_("evict", *words, "-y")
        assert run.status == 2, (words, run)
    run = hwctl_("evict", cache.root, "--json", "-y")
    assert run.status == 2 == run.error["exit_status"] and run.out == ""
    assert left(cache) == {0, 1, 2}


def test_no_terminal_and_no_yes_refuses_at_once(cache: Kit) -> None:
    """CLI-06."""
    begin = time.monotonic()
    run = hwctl_("evict", cache.root, "--all")
    assert run.status == 12 and left(cache) == {0, 1, 2}
    assert time.monotonic() - begin < 2


def test_what_may_be_let_go_within_wait_is_asked_about_too(three: Kit) -> None:
    path = three.open_path(0)
    with holders.locked(three.lock(0)):
        assert hwctl_("evict", path).status == 11
        began = time.monotonic()
        assert hwctl_("evict", path, "--wait", "30s").status == 12
        assert time.monotonic() - began < 15
    assert left(three) == {0, 1, 2}


@pytest.mark.parametrize(("word", "status"), [(b"n\n", 12), (b"y\n", 0), (b"\x04", 12)])
def test_a_terminal_is_asked(tmp_path: Path, word: bytes, status: int) -> None:
    path = make_ktint8.make_ready(tmp_path, "asked-1")
    theirs, ours = pty.openpty()
    process = subprocess.Popen(
        command("evict", tmp_path, "--all"),
        stdin=ours,
        stderr=ours,
        stdout=subprocess.DEVNULL,
        env=environment(),
        cwd="/",
    )
    os.close(ours)
    said = b""
    while b"[y/N]" not in said:
        said += os.read(theirs, 4096)
    os.write(theirs, word)
    assert process.wait(timeout=30) == status
    os.close(theirs)
    assert str(path).encode() in said
    assert path.exists() is (status != 0)


def test_quarantined_entries_are_emptied_by_name_or_age_and_never_by_the_way(tmp_path: Path) -> None:
    """QUA-02."""
    kit = HostWeights(tmp_path)
    path = kit.artifact(0)
    run = hwctl_("quarantine", path, "--reason", "x", "-y", "--json")
    aside = Path(run.results[0]["moved_to"])
    kit.artifact(0)
    assert hwctl_("evict", kit.root, "--all", "-y").status == 0
    assert aside.exists() and not path.exists()
    kit.artifact(0)
    assert hwctl_("evict", kit.root, "--quarantined", "--older-than", "1h", "-y").status == 0
    assert aside.exists()
    assert hwctl_("evict", path, "--quarantined", "-y").status == 12
    assert hwctl_("evict", aside, "--quarantined", "-y").status == 0
    assert path.exists() and not aside.exists()


def test_quarantined_entries_go_by_name_or_key(three: Kit) -> None:
    aside = []
    for number in range(3):
        run = hwctl_("quarantine", three.open_path(number), "--reason", "x", "-y", "--json")
        aside.append(Path(run.results[0]["moved_to"]))
    roots = {"HWCTL_ROOTS": str(three.root)}
    ready = three.artifact(0)
    for words in ([aside[0].name], [three.key(0)]):
        dry = hwctl_("evict", three.root, "--quarantined", *words, "-n", "--json")
        assert (dry.status, [row["path"] for row in dry.results]) == (0, [str(aside[0])])
    assert hwctl_("evict", "--quarantined", aside[0].name, "-y", env=roots).status == 0
    assert hwctl_("evict", "--quarantined", three.key(1), three.root, "-y").status == 0
    assert [path.exists() for path in (*aside, ready)] == [False, False, True, True]
    # A store that was mistyped is none to look in, and the roots do not stand in for it.
    run = hwctl_("evict", "--quarantined", "/typo", three.key(2), "-y", env=roots)
    assert run.status == 10 and "/typo" in run.err and aside[2].exists()
    twice = [three.key(2), aside[2].name, aside[2]]
    run = hwctl_("evict", "--quarantined", three.root, *twice, "-n", "--json")
    assert (run.status, [row["path"] for row in run.results]) == (0, [str(aside[2])])
    # It is no name without --quarantined, and what is not in quarantine has none.
    assert hwctl_("evict", three.key(2), "-y", env=roots).status == 10
    run = hwctl_("evict", three.root, "--quarantined", three.key(0), "-y")
    assert run.status == 10 and "nothing of that name or key is quarantined" in run.err
    assert hwctl_("evict", three.root, "--quarantined", aside[2].name, "--all", "-y").status == 2
    assert [path.exists() for path in (aside[2], ready)] == [True, True]
    run = hwctl_("evict", "--quarantined", "nosuch", "--all", "-y", "--json", env=roots)
    assert run.status == 10 and run.error["message"] == "nosuch does not exist"
    run = hwctl_("evict", "--quarantined", three.root, *twice, "-y", "--json")
    assert (run.status, [row["outcome"] for row in run.results]) == (0, ["done"])
    assert not aside[2].exists()


def test_keep_counts_pages_and_no_garbage(cache: Kit) -> None:
    orphan = cache.leftover(9)
    run = hwctl_("evict", cache.root, "--keep", "1", "-y", "--json")
    assert run.status == 0 and left(cache) == {2}
    assert orphan.exists() and run.document["totals"]["stores"][0]["entries"] == 1
    # Where it helps it goes first, unless it was excluded.
    excluded = hwctl_("evict", cache.root, "--max-size", "1", "--exclude", "*", "-y", "--json")
    assert excluded.status == 14 and excluded.results == [] and orphan.exists()
    assert hwctl_("evict", cache.root, "--max-size", "1200", "-y").status == 0
    assert left(cache) == {2} and not orphan.exists()


def test_several_stores_each_have_their_own_budget(tmp_path: Path) -> None:
    stores = [KITS[name](tmp_path / name) for name in sorted(KITS) if (tmp_path / name).mkdir() is None]
    for made in stores:
        for number in range(2):
            made.artifact(number)
            made.used(number, time.time_ns() - (2 - number) * HOUR)
    run = hwctl_("evict", *(made.root for made in stores), "--keep", "1", "-y", "--json")
    assert run.status == 0
    assert [left(made) for made in stores] == [{1}, {1}, {1}]
    assert len(run.document["totals"]["stores"]) == 3


def test_four_at_once_end_well_and_count_each_byte_once(kit: Kit) -> None:
    for number in range(12):
        kit.artifact(number)
    kit.artifact(12)  # stays, since without any tree a base of kt-int8 trees is none
    words = ("evict", kit.root, "--all", "--exclude", kit.key(12), "--json")
    total = sum(row["allocated_bytes"] for row in hwctl_(*words, "-n").results)
    runs = [start(*words, "-y", "--wait", "30s") for _ in range(4)]
    freed = 0
    for run in runs:
        out, err = run.communicate(timeout=60)
        assert run.returncode == 0, err
        totals = json.loads(out)["totals"]
        freed += totals["bytes_freed"] + totals["still_mapped_bytes"]
    assert freed == total > 0
    assert not any(kit.open_path(number).exists() for number in range(12))


def test_two_at_once_take_no_more_than_one_would(kit: Kit) -> None:
    """REC-09: what a rival has just removed counts for both."""
    for number in range(8):
        kit.artifact(number)
        kit.used(number, time.time_ns() - (9 - number) * HOUR)
    runs = [start("evict", kit.root, "--keep", "4", "-y", "--wait", "30s") for _ in range(3)]
    for run in runs:
        _, err = run.communicate(timeout=60)
        assert run.returncode == 0, err
    assert [number for number in range(8) if kit.open_path(number).exists()] == [4, 5, 6, 7]


def test_a_rival_at_work_is_busy_and_not_no_room(tmp_path: Path) -> None:
    kit = filled(KtInt8(tmp_path))
    with holders.locked(kit.root, "exclusive"):
        assert hwctl_("evict", kit.root, "--keep", "1", "-y").status == 11
    assert left(kit) == {0, 1, 2}


def test_metrics_are_written_also_when_the_target_is_missed(cache: Kit, tmp_path: Path) -> None:
    file = tmp_path / "hwctl.prom"
    with holders.locked(cache.lock(0)):
        run = hwctl_("evict", cache.root, "--max-size", "1B", "-y", "--metrics", file)
    assert run.status == 14
    text = file.read_text()
    assert 'hwctl_run_exit_status{verb="evict"} 14' in text
    assert 'hwctl_run_entries{verb="evict",outcome="done"} 2' in text


@needs_root
def test_another_users_store_is_refused_or_acted_on_as_its_owner(tmp_path: Path) -> None:
    open_to_all(tmp_path)
    store = make_hostweights.make_store(tmp_path / "store")
    cache = make_pageweights.make_store(tmp_path / "cache")
    for number in range(2):
        make_hostweights.make_artifact(store, number, locks=False)
        make_pageweights.make_artifact(cache, number)
    for path in [p for root in (store, cache) for p in [root, *root.rglob("*")]]:
        os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    refused = hwctl_("evict", store, cache, "--all", "-y", "--json")
    assert refused.status == 12
    assert f"sudo -u '#{NOBODY}' hwctl evict" in refused.results[0]["reason"]
    assert len(list((store / "artifacts").iterdir())) == 2
    run = hwctl_("evict", store, cache, "--all", "-y", "--other-users", "--json")
    assert run.status == 0, run.err
    assert list((store / "artifacts").iterdir()) == []
    owners = {p.lstat().st_uid for root in (store, cache) for p in [root, *root.rglob("*")]}
    assert owners == {NOBODY}


def test_the_error_object_of_a_run_that_was_busy_names_the_holder(cache: Kit) -> None:
    with holders.locked(cache.lock(0)) as pid:
        run = hwctl_("evict", cache.open_path(0), "-y", "--json")
    assert run.status == 11 and f"pid {pid}" in run.error["message"]
    assert run.error["path"] == str(cache.open_path(0))


@needs_root
def test_what_cannot_be_looked_into_is_kept_and_not_called_nothing(tmp_path: Path) -> None:
    """INS-03: to another user who may list the store, its entries are refused by name."""
    cache = filled(PageWeights(tmp_path))
    open_to_all(cache.root)
    run = hwctl_("evict", cache.root, "--all", "-y", "--json", uid=NOBODY)
    assert run.status == 12 and left(cache) == {0, 1, 2}
    assert [(row["state"], row["action"]) for row in run.results] == [("unreadable", "keep")] * 3


def test_the_limit_that_binds_is_called_by_its_option(cache: Kit) -> None:
    with holders.locked(cache.lock(0)):
        run = hwctl_("evict", cache.root, "--max-size", "1B", "-y")
    assert run.status == 14
    assert "more than the 1 B that --max-size allows" in run.out.splitlines()[-1]


def test_what_the_disk_gave_back_is_told_apart_from_what_was_stored(tmp_path: Path) -> None:
    """Three small files take a block each: more than the sizes that inspect shows."""
    kit = HostWeights(tmp_path)
    kit.artifact(0)
    run = hwctl_("evict", kit.root, "--all", "-y", "--json")
    freed = run.document["totals"]["bytes_freed"]
    assert freed > 1.1 * run.results[0]["bytes"]
    kit.artifact(0)
    assert hwctl_("evict", kit.root, "--all", "-y").out.splitlines()[-1].endswith(" freed on disk")
