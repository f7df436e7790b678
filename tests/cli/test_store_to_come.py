"""Waiting for an artifact whose store is not there yet: a pod may be faster than its publisher (LEA-05)."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import make_hostweights
import pytest
import run_hwctl

Run = Callable[..., run_hwctl.Run]

PUBLISH = """
import sys, time
sys.path.insert(0, sys.argv[1])
import make_hostweights
from pathlib import Path
time.sleep(1)
root = Path(sys.argv[2])
root.mkdir(exist_ok=True)
make_hostweights.make_store(root / "later")
make_hostweights.make_artifact(root / "later", 0)
(root / "later").rename(root / "weights")
"""


@contextmanager
def published_later(folder: Path) -> Iterator[Path]:
    """Where an artifact will be in a second; neither it nor its store is there yet."""
    makers = str(Path(make_hostweights.__file__).parent)
    words = [run_hwctl.interpreter(), "-c", PUBLISH, makers, str(folder)]
    with subprocess.Popen(words) as process:
        yield folder / "weights" / "artifacts" / make_hostweights.key_of(0)
    assert process.returncode == 0


@pytest.mark.parametrize("empty", [False, True])
def test_verify(hwctl: Run, tmp_path: Path, empty: bool) -> None:
    folder = tmp_path / "node"
    if empty:
        (folder / "weights").mkdir(parents=True)
    with published_later(folder) as path:
        run = hwctl("verify", path, "--wait", "30s")
        assert run.status == 0, run.err
        assert "1 artifact: all valid, no errors found" in run.out


def test_verify_of_an_identity(hwctl: Run, tmp_path: Path) -> None:
    wanted = tmp_path / "identity.json"
    wanted.write_text(json.dumps(make_hostweights.identity(0)))
    with published_later(tmp_path / "node") as path:
        run = hwctl("verify", path.parents[1], "--identity", wanted, "--wait", "30s")
        assert run.status == 0, run.err


def test_exec(hwctl: Run, tmp_path: Path) -> None:
    with published_later(tmp_path / "node") as path:
        run = hwctl("exec", path, "--wait", "30s", "--", "echo", "held")
        assert (run.status, run.out) == (0, "held\n")


@pytest.mark.parametrize("verb", ["verify", "exec"])
def test_nothing_comes(hwctl: Run, tmp_path: Path, verb: str) -> None:
    """The wait ends, and a path that could be no artifact is a mistake that is told at once."""
    command = ("--", "true") if verb == "exec" else ()
    artifact = tmp_path / "weights" / "artifacts" / make_hostweights.key_of(0)
    failed = 125 if verb == "exec" else 10
    begun = time.monotonic()
    assert hwctl(verb, artifact, "--wait", "2s", *command).status == failed
    assert time.monotonic() - begun >= 2
    begun = time.monotonic()
    assert hwctl(verb, tmp_path / "wieghts", "--wait", "1h", *command).status == failed
    assert time.monotonic() - begun < 60


def test_a_time_limit_bounds_the_waiting_too(hwctl: Run, tmp_path: Path) -> None:
    artifact = tmp_path / "weights" / "artifacts" / make_hostweights.key_of(0)
    begun = time.monotonic()
    assert hwctl("verify", artifact, "--wait", "1h", "--timeout", "1s").status == 10
    assert time.monotonic() - begun < 60
