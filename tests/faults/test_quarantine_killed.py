"""SIGKILL before every change that a quarantine or a restore makes to the disk, in every family.

Whatever the moment, no byte is lost: after reclaim-stale the artifact is in its place, or whole in quarantine
and ``quarantine --restore`` takes it back.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import make_pageweights
import pytest
from kits import KITS, Kit
from nth_call import killed_at, moments_of
from run_hwctl import hwctl_

from hwctl.core import quarantine, reclaim_stale
from hwctl.core.plan import NOTHING, Action, Outcome, Result, Target
from hwctl.fs.deadline import Deadline
from hwctl.fs.lock_table import Mode
from hwctl.stores.base import Artifact, CheckOptions, Level, StalePolicy, State
from hwctl.stores.pageweights import roots
from hwctl.stores.pageweights.eviction import evict_to_budget

POLICY = StalePolicy()


def only(kit: Kit, *states: State) -> Artifact:
    (found,) = [entry for entry in kit.open().scan() if entry.state in states]
    return found


def set_aside(kit: Kit) -> None:
    store, artifact = kit.open(), only(kit, State.READY)
    with store.lease(artifact, Mode.EXCLUSIVE, Deadline.now()):
        store.set_aside(artifact, "a doubt")


def restore(kit: Kit) -> None:
    store, artifact = kit.open(), only(kit, State.QUARANTINED)
    with store.lease(artifact, Mode.EXCLUSIVE, Deadline.now()):
        store.restore(artifact)


def reclaimed(kit: Kit) -> list[Outcome]:
    steps = reclaim_stale.plan(Target(kit.open()), reclaim_stale.Selection(), POLICY, ())
    return [reclaim_stale.reclaim(POLICY, step, Deadline.now()) for step in steps]


def ready(kit: Kit) -> Kit:
    kit.artifact(0)
    return kit


def quarantined(kit: Kit) -> Kit:
    set_aside(ready(kit))
    return kit


@pytest.mark.parametrize("prepared", [ready, quarantined])
@pytest.mark.parametrize("family", sorted(KITS))
def test_no_moment_of_a_move_costs_a_byte(
    family: str, prepared: Callable[[Kit], Kit], tmp_path: Path
) -> None:
    work = set_aside if prepared is ready else restore
    (tmp_path / "counted").mkdir()
    counted = prepared(KITS[family](tmp_path / "counted"))
    finished = kept = 0
    for number in moments_of(lambda: work(counted)):
        folder = tmp_path / str(number)
        folder.mkdir()
        kit = prepared(KITS[family](folder))
        if not killed_at(number, lambda kit=kit: work(kit)):
            continue
        for outcome in reclaimed(kit):
            assert outcome.result is Result.DONE, (number, outcome.reason)
            assert outcome.step.action is Action.QUARANTINE or outcome.step.artifact.bytes < 1000
            if outcome.step.action is Action.QUARANTINE:
                assert outcome.removed == NOTHING
                finished += 1
        assert reclaimed(kit) == []  # one run is enough
        if not kit.open_path(0).exists():
            kept += 1
            step = quarantine.plan_restore(Target(kit.open(), only(kit, State.QUARANTINED)), ())
            assert quarantine.restore(CheckOptions(), step, Deadline.now()).result is Result.DONE, number
        artifact = only(kit, State.READY, State.DENIED)
        if artifact.state is State.DENIED:  # back in its place, and not yet let go: for a person to lift
            step = quarantine.plan_restore(Target(kit.open(), artifact), ())
            assert quarantine.restore(CheckOptions(), step, Deadline.now()).result is Result.DONE, number
        artifact = only(kit, State.READY)
        assert kit.open().check(artifact, Level.FULL, CheckOptions()).valid, number
    assert kept > 0
    assert finished > 0 or family == "ktint8"  # whose move is one rename


def test_an_interrupted_move_is_told_as_kept(tmp_path: Path) -> None:
    kit = quarantined(KITS["hostweights"](tmp_path))
    aside = only(kit, State.QUARANTINED)
    aside.path.chmod(0o1555)
    dry = hwctl_("reclaim-stale", kit.root, "-n", "--json")
    run = hwctl_("reclaim-stale", kit.root, "-y", "--json")
    for row, outcome in ((dry.results[0], "planned"), (run.results[0], "done")):
        assert (row["action"], row["outcome"], row["bytes_freed"]) == ("quarantine", outcome, 0)
        assert row["reason"].startswith("stale: a move into quarantine that was not finished; its artifact")
    assert run.document["totals"]["bytes_freed"] == 0
    assert aside.path.stat().st_mode & 0o7777 == 0o555
    assert hwctl_("quarantine", "--restore", aside.path, "-y").status == 0
    assert hwctl_("verify", kit.open_path(0)).status == 0


def test_a_verified_artifact_at_01755_is_set_aside_with_the_reason(tmp_path: Path) -> None:
    kit = ready(KITS["hostweights"](tmp_path))
    kit.open_path(0).chmod(0o1755)
    run = hwctl_("reclaim-stale", kit.root, "-y", "--json")
    (row,) = run.results
    assert (run.status, row["action"], row["bytes_freed"]) == (0, "quarantine", 0)
    (listed,) = hwctl_("inspect", kit.root, "--json").results
    assert listed["state"] == "quarantined" and listed["path"] == row["moved_to"]
    assert listed["reason"] == "a publication or a move that was not finished (mode 01755)"
    assert hwctl_("quarantine", "--restore", row["moved_to"], "-y").status == 0


def test_half_a_page_is_no_garbage_for_evict_either(tmp_path: Path) -> None:
    """Killed once the locator had moved: the pair is not what an eviction may begin with."""
    kit = quarantined(KITS["pageweights"](tmp_path))
    aside = only(kit, State.QUARANTINED)
    for path in aside.path.iterdir():
        if path.suffix == ".safetensors" or ".receipt." in path.name:
            path.rename(kit.root / path.name)
    assert hwctl_("evict", kit.root, "--max-size", "1B", "-y").status == 14
    run = hwctl_("reclaim-stale", kit.root, "-y", "--json")
    (row,) = run.results
    assert (row["action"], row["outcome"], row["bytes_freed"]) == ("quarantine", "done", 0)
    assert row["moved_to"] == str(aside.path)
    assert hwctl_("quarantine", "--restore", aside.path, "-y").status == 0
    assert hwctl_("verify", kit.root).status == 0


@pytest.mark.parametrize("way", ["reclaim-stale", "evict", "publish"])
def test_half_a_page_is_no_garbage_once_the_page_is_built_anew_of_other_bytes(
    way: str, tmp_path: Path
) -> None:
    """Killed once the locator had moved, then a program made the page again: the old pair is kept still."""
    kit = quarantined(KITS["pageweights"](tmp_path))
    aside = only(kit, State.QUARANTINED)
    pair = [
        path.name for path in aside.path.iterdir() if aside.key in path.name and "locator" not in path.name
    ]
    for name in pair:
        (aside.path / name).rename(kit.root / name)
    make_pageweights.make_artifact(kit.root, 0, 64)
    if way == "reclaim-stale":
        rows = hwctl_("reclaim-stale", kit.root, "-y", "--json").results
        assert [(row["action"], row["outcome"], row["moved_to"]) for row in rows] == [
            ("quarantine", "done", str(aside.path))
        ]
        assert all((aside.path / name).exists() for name in pair)
        return
    if way == "evict":
        hwctl_("evict", kit.root, "--max-size", "1B", "-y")
    else:
        with roots.writable(kit.root) as root:
            done = evict_to_budget(root, 1, Deadline.now())
        assert done.reclaimed == () and "locator lies in" in done.passed[0].reason
    assert all((kit.root / name).exists() for name in pair)


def test_a_pair_that_was_built_anew_is_no_part_of_what_lies_in_quarantine(tmp_path: Path) -> None:
    kit = quarantined(KITS["pageweights"](tmp_path))
    make_pageweights.make_artifact(kit.root, 0, locator=False)
    (row,) = hwctl_("reclaim-stale", kit.root, "-y", "--json").results
    assert (row["action"], row["outcome"]) == ("remove", "done")
    assert only(kit, State.QUARANTINED).files == 4
