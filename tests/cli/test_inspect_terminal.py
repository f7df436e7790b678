"""What ``hwctl inspect`` shows to a person: keys that can be copied, sums that say what frees them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import holders
import make_hostweights
import make_ktint8
import make_pageweights
import pytest
import run_hwctl
from terminal import on_a_terminal

Run = Callable[..., run_hwctl.Run]
WIDTHS = (60, 80, 120, 200)
PLAIN = {"NO_COLOR": "1"}


@pytest.mark.parametrize("columns", WIDTHS)
def test_a_key_is_whole_at_any_width(weights: Path, pages: Path, base: Path, columns: int) -> None:
    long = "nightly-" + "x" * 80
    make_ktint8.make_ready(base, long)
    shown = on_a_terminal("inspect", weights, pages, base, env=PLAIN, columns=columns)
    words = shown.split()
    for number in range(3):
        assert make_hostweights.key_of(number) in words
        assert make_pageweights.prefix_of(number) in words
    assert {"job-4711", long} <= set(words)
    assert "org/model-1@r" in words


@pytest.mark.parametrize("columns", WIDTHS)
def test_lines_break_between_words(weights: Path, base: Path, columns: int) -> None:
    make_hostweights.make_staging(weights, 7)
    make_ktint8.make_staging(base, "job-dead-one", process=make_ktint8.dead_process())
    shown = on_a_terminal("inspect", weights, base, env=PLAIN, columns=columns)
    for line in shown.splitlines():
        assert len(line) <= columns or len(line.split()) == 1 or line.startswith(("hostweights ", "ktint8 "))
    assert not re.search(r"\d\n *[KMGTP]iB", shown)


def test_one_long_key_leaves_the_others_in_their_lines(base: Path) -> None:
    make_ktint8.make_ready(base, "nightly-" + "x" * 80)
    lines = on_a_terminal("inspect", base, env=PLAIN, columns=80).splitlines()
    assert [line.split()[1] for line in lines if line.startswith("ready")][:2] == ["job-4711", "job-4712"]
    assert "  nightly-" + "x" * 80 in lines


@pytest.mark.parametrize("columns", WIDTHS)
def test_verbose_tells_keys_paths_models_and_holders_whole(weights: Path, columns: int) -> None:
    folder = weights / "artifacts" / make_hostweights.key_of(1)
    reason = " ".join(["something is odd about these tensors"] * 8)
    assert run_hwctl.hwctl_("quarantine", folder, "--reason", reason, "--yes").status == 0
    (moved,) = (weights / "quarantine").iterdir()
    with holders.locked(weights / "locks" / f"{make_hostweights.key_of(0)}.artifact.lock") as pid:
        shown = on_a_terminal("inspect", weights, "-v", env=PLAIN, columns=columns)
    assert str(moved) in shown.split()
    assert reason in " ".join(shown.split())
    assert f"1 shared (pid {pid})" in shown
    assert "…" not in shown


def test_what_frees_what(hwctl: Run, weights: Path) -> None:
    """``evict --all`` leaves the quarantine alone, and staging is reclaim-stale's."""
    make_hostweights.make_staging(weights, 7)
    folder = weights / "artifacts" / make_hostweights.key_of(1)
    assert hwctl("quarantine", folder, "--reason", "odd", "--yes").status == 0
    totals = hwctl("inspect", weights, "--json").document["totals"]
    parts = totals["freeable"]
    assert totals["freeable_bytes"] == sum(parts.values())
    assert totals["stores"][0]["freeable"] == parts
    shown = " ".join(on_a_terminal("inspect", weights, env=PLAIN).split())
    assert re.search(
        r"up to \S+ KiB can be freed: \S+ KiB by reclaim-stale, \S+ KiB by evict,"
        r" \S+ KiB by evict --quarantined",
        shown,
    )
    freed = {
        "reclaim_stale": hwctl("reclaim-stale", weights, "--yes", "--json"),
        "evict": hwctl("evict", weights, "--all", "--yes", "--json"),
        "evict_quarantined": hwctl("evict", weights, "--quarantined", "--all", "--yes", "--json"),
    }
    assert {call: run.document["totals"]["bytes_freed"] for call, run in freed.items()} == parts
    assert "can be freed" not in on_a_terminal("inspect", weights)


def test_what_evict_would_keep_is_not_said_to_be_freeable(hwctl: Run, base: Path) -> None:
    (base / "kt-int8-job-4711" / make_ktint8.MANIFEST).write_text("[]")
    before = hwctl("inspect", base, "--json").document["totals"]["freeable"]
    hwctl("evict", base, "--all", "--yes")
    assert before["evict"] > 0
    assert hwctl("inspect", base, "--json").document["totals"]["freeable_bytes"] == 0
    assert "can be freed by" not in on_a_terminal("inspect", base)


def test_the_bar_says_what_it_is_a_bar_of(weights: Path, pages: Path) -> None:
    shown = " ".join(on_a_terminal("inspect", weights, env=PLAIN).split())
    assert re.search(r"KiB here, \S+ KiB allocated; file system \[#*-*\] <?\d+% used, ", shown)
    assert re.search(r"% used, \S+ \w+ of \S+ \w+ free", shown)
    shown = " ".join(on_a_terminal("inspect", pages, env=PLAIN).split())
    assert re.search(r"allocated; budget \[#-*\] <1% used of ", shown)


def test_shared_memory_without_a_tree_is_no_store(hwctl: Run) -> None:
    """Only its room is told, to scripts: what watches it must not lose it when the last tree is gone."""
    stores = hwctl("inspect", "--json").document["totals"]["stores"]
    assert "/dev/shm" in [store["store"] for store in stores]
    if not any(sum(store["states"].values()) for store in stores):
        assert on_a_terminal("inspect") == "no stores in /dev/shm; name one, or set HWCTL_ROOTS\n"
    assert "ktint8 /dev/shm" in on_a_terminal("inspect", "/dev/shm", env=PLAIN)


def test_a_path_that_is_not_there_is_said_once(hwctl: Run, weights: Path) -> None:
    for words in ((), ("-q",)):
        shown = on_a_terminal("inspect", "/no/such", weights, *words, status=10)
        assert shown.count("/no/such") == 1
        assert "hwctl inspect: /no/such does not exist\n" in shown
    done = hwctl("inspect", "/no/such")
    assert done.out.split("\t")[0] == "absent"
    assert "/no/such does not exist" in done.err
