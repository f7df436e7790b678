"""hwctl and the page cache's own protocol on one cache at once: who builds, who hits, what is ever returned.

``HWCTL_TEST_ROUNDS`` multiplies the rounds: 100 makes tens of thousands of accesses and evictions.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from run_hwctl import environment

pytest.importorskip("torch")
pytestmark = pytest.mark.interop

ROUNDS = int(os.environ.get("HWCTL_TEST_ROUNDS", "1"))
ACTORS = Path(__file__).parent / "page_actor.py"


def together(*actors: dict[str, object]) -> list[dict[str, int]]:
    """Run one process for each actor, all beginning at the same moment; what each of them did."""
    done = subprocess.run(
        [sys.executable, str(ACTORS), json.dumps(actors)],
        capture_output=True,
        text=True,
        env=environment({"OMP_NUM_THREADS": "1"}),
        timeout=180 + 60 * ROUNDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: list[dict[str, int]] = json.loads(done.stdout)
    return found


def actor(kind: str, root: Path, **options: object) -> dict[str, object]:
    return {"kind": kind, "root": str(root), **options}


def contents(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in root.iterdir() if not path.name.endswith(".lock")}


def test_four_processes_of_each_kind_build_once(tmp_path: Path) -> None:
    pages = 6 * ROUNDS
    did = together(
        *(actor(kind, tmp_path / "cache", pages=pages, sweep=1) for kind in ("oracle", "hwctl") * 4)
    )
    assert sum(one["built"] for one in did) == pages
    assert sum(one["hits"] for one in did) == 7 * pages


def test_what_either_publishes_the_other_loads_and_would_have_written(tmp_path: Path) -> None:
    """Sixteen pages, every dtype of the actors twice."""
    for kind in ("oracle", "hwctl"):
        (did,) = together(actor(kind, tmp_path / kind, pages=16, sweep=1))
        assert (did["built"], did["hits"]) == (16, 0)
    assert contents(tmp_path / "oracle") == contents(tmp_path / "hwctl")
    did = together(
        actor("hwctl", tmp_path / "oracle", pages=16, sweep=1),
        actor("oracle", tmp_path / "hwctl", pages=16, sweep=1),
    )
    assert [(one["built"], one["hits"]) for one in did] == [(0, 16), (0, 16)]


def test_each_evicts_while_the_other_publishes_and_hits(tmp_path: Path) -> None:
    """A cache for a third of the pages: every access may meet an eviction, and no torn page is returned."""
    root, accesses = tmp_path / "cache", 120 * ROUNDS
    kinds = ("oracle", "hwctl", "oracle", "hwctl")
    did = together(
        *(actor(kind, root, pages=9, accesses=accesses, seed=seed, room=3) for seed, kind in enumerate(kinds))
    )
    assert [one["built"] + one["hits"] for one in did] == [accesses] * 4
    assert all(one["built"] > 0 for one in did) and sum(one["hits"] for one in did) > 0
    # The last eviction of all leaves what fits, and what others held at that moment.
    assert len(list(root.glob("*.safetensors"))) <= 3 + len(kinds)
    assert not [name for name in contents(root) if name.endswith(".tmp")]


def test_housekeeping_runs_beside_the_program(tmp_path: Path) -> None:
    """verify, a budgeted eviction and reclaim in a loop, while the program publishes and hits."""
    root, accesses = tmp_path / "cache", 120 * ROUNDS
    did = together(
        actor("oracle", root, pages=9, accesses=accesses, seed=1, room=6),
        actor("oracle", root, pages=9, accesses=accesses, seed=2, room=6),
        actor("keeper", root, pages=9, accesses=accesses // 8, seed=3, room=4),
    )
    assert [one["built"] + one["hits"] for one in did[:2]] == [accesses] * 2
    assert did[2]["checked"] > 0 and did[2]["damaged"] == 0
