"""The page cache's own program and hwctl evict the same cache at the same time."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from run_hwctl import environment, hwctl_

pytestmark = pytest.mark.interop

ROUNDS = int(os.environ.get("HWCTL_TEST_ROUNDS", "1"))
PAGES = 12

_USER = """
import random, sys, time
import torch
torch.set_num_threads(1)
sys.path.insert(0, sys.argv[1])
from page_oracle import NAMES, OracleCache
root, budget, seed, accesses = sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5])
from pathlib import Path
cache, chance, built = OracleCache(Path(root), budget), random.Random(seed), 0

def authority(page):
    return {"contractRevision": 1, "pageId": page, "sourceObjectSha256": "ab" * 32,
            "sourceObjectBytes": 4096, "sourceFileIdentity": [1, 2, 4096, 3, 4],
            "sourceFormatRevision": 1, "materializedDtype": "float32"}

def build(page):
    global built
    built += 1
    weights = {name: torch.full((1, 256), float(page)) for name in NAMES[1:]}
    weights["page_ids_t"] = torch.tensor([page])
    return weights

for _ in range(accesses):
    page = chance.randrange(int(sys.argv[6]))
    weights = cache.load_or_build(authority(page), lambda: build(page))
    assert int(weights["page_ids_t"][0]) == page
    assert all(bool((weights[name] == float(page)).all()) for name in NAMES[1:])
print(built)
"""


def user(root: Path, budget: int, seed: int, accesses: int) -> subprocess.Popen[str]:
    words = [str(Path(__file__).parent), str(root), str(budget), str(seed), str(accesses), str(PAGES)]
    return subprocess.Popen(
        [sys.executable, "-c", _USER, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )


def resident(root: Path) -> int:
    return sum(path.lstat().st_size for path in root.glob("*.safetensors"))


@pytest.mark.parametrize("program_evicts", [False, True], ids=["hwctl-alone", "both-evict"])
def test_accesses_go_on_while_hwctl_evicts(tmp_path: Path, program_evicts: bool) -> None:
    root = tmp_path / "cache"
    page = 12_000
    budget = 6 * page if program_evicts else 1 << 40
    chance = random.Random(4711)
    for _round in range(ROUNDS):
        users = [user(root, budget, chance.randrange(1 << 30), 40) for _ in range(2)]
        evictions = []
        while any(process.poll() is None for process in users):
            if root.exists():
                evictions.append(hwctl_("evict", root, "--max-size", str(3 * page), "-y", "--json"))
        built = 0
        for process in users:
            out, err = process.communicate(timeout=60)
            assert process.returncode == 0, err
            built += int(out)
        # No room is said when every page that was in the way was being read just then.
        assert {run.status for run in evictions} <= {0, 14}, [run.err for run in evictions]
        assert built >= PAGES // 2
        last = hwctl_("evict", root, "--max-size", str(3 * page), "-y")
        assert last.status == 0 and resident(root) <= 3 * page
        assert hwctl_("verify", root).status == 0
        assert hwctl_("reclaim-stale", root, "-n", "--json").results == []


def test_what_hwctl_evicts_last_is_what_the_program_used_last(tmp_path: Path) -> None:
    """The clock is the program's own: the locator's mtime, moved by every hit."""
    root = tmp_path / "cache"
    done = user(root, 1 << 40, 1, 60)
    assert done.wait(timeout=60) == 0
    clocks = {path: path.stat().st_mtime_ns for path in root.glob("*.locator.json")}
    assert hwctl_("evict", root, "--keep", "1", "-y").status == 0
    (left,) = root.glob("*.locator.json")
    # Two accesses within one tick of the kernel's clock are equally recent.
    assert clocks[left] == max(clocks.values())
