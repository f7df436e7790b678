"""A full tmpfs, or one without inodes: said before the first byte, and never in the way of freeing it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import make_ktint8
import private_mounts
import pytest
from run_hwctl import hwctl_

MODEL = Path(__file__).parents[1] / "data/ktint8/golden/layers"
RUN = "full-run-1"


@pytest.fixture
def small(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    if reason := private_mounts.why_not():
        pytest.skip(reason)
    with private_mounts.tmpfs(
        tmp_path / "small", f"mode=700,{getattr(request, 'param', 'size=4m')}"
    ) as point:
        yield point


def fill_up(folder: Path) -> None:
    """Take every byte that is left."""
    with (folder / "filler").open("wb", buffering=0) as file:
        try:
            while file.write(b"x" * 4096):
                pass
        except OSError:
            return


@pytest.mark.parametrize(
    ("small", "words"), [("size=64k", "size="), ("size=4m,nr_inodes=30", "inodes")], indirect=["small"]
)
def test_publish(small: Path, words: str) -> None:
    """PUB-03: need, available and the knob, and nothing stays."""
    done = hwctl_("publish", "ktint8", "--from", MODEL, "--run-id", RUN, "--base", small, "--json")
    assert (done.status, done.error["code"]) == (14, "no-room")
    assert words in done.error["message"]
    details = done.error["details"]
    assert details["need_bytes"] > 0
    assert details["mount"] == str(small)
    assert os.listdir(small) == []


def test_publish_needs_no_more_than_it_says(small: Path) -> None:
    dry = hwctl_("publish", "ktint8", "--from", MODEL, "--run-id", RUN, "--base", small, "-n", "--json")
    assert dry.status == 0
    done = hwctl_("publish", "ktint8", "--from", MODEL, "--run-id", RUN, "--base", small)
    assert done.status == 0, done.err
    assert hwctl_("verify", small / f"kt-int8-{RUN}").status == 0


def test_consuming_a_full_tmpfs(small: Path) -> None:
    """A layer is marked before it goes; without room for that nothing is lost, and evict frees it all."""
    tree = make_ktint8.make_ready(small, RUN, states=("ready",) * 3)
    fill_up(small)
    done = hwctl_("consume", tree, "--discard", "-y", "--json")
    assert (done.status, done.error["code"]) == (14, "no-room")
    assert len(list(tree.rglob("*.kt"))) == 18
    freed = hwctl_("evict", tree, "-y", "--json")
    assert freed.status == 0, freed.err
    assert freed.results[0]["bytes_freed"] > 18 * 256
    assert os.listdir(small) == ["filler"]


def test_quarantine_on_a_full_tmpfs(small: Path) -> None:
    tree = make_ktint8.make_ready(small, RUN)
    fill_up(small)
    done = hwctl_("quarantine", tree, "--reason", "flipped bits", "--json", "-y")
    assert done.status in (0, 14)
    if done.status == 0:
        assert not tree.exists()
        (entry,) = (small / ".hwctl-quarantine").iterdir()
        assert (entry / tree.name / make_ktint8.MANIFEST).exists()
    else:
        assert tree.exists()


def test_reclaiming_on_a_full_tmpfs(small: Path) -> None:
    staging = make_ktint8.make_staging(small, RUN, process=make_ktint8.dead_process())
    fill_up(small)
    done = hwctl_("reclaim-stale", small, "-y", "--json")
    assert done.status == 0, done.err
    assert not staging.exists()
