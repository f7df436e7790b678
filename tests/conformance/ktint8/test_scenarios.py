"""The published scenarios with whole processes: signals, forks, two consumers, publications that fail."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ktroot import GEO, LEASE, MANIFEST, RUN, lease, one, ready, snapshot, staging
from operations import entry, expectation

from hwctl.errors import Busy, Damaged, Refused
from hwctl.fs.deadline import Deadline
from hwctl.fs.lock_table import Mode
from hwctl.stores.base import Death, StalePolicy
from hwctl.stores.ktint8.adoption import Adoption, publish_staging
from hwctl.stores.ktint8.opening import Opening, open_tree

HERE = Path(__file__).parent
SCENARIOS = json.loads((HERE.parents[1] / "data/ktint8/lifecycle/scenarios.json").read_bytes())["scenarios"]
EXPECTED = expectation({**GEO})

Consumer = Callable[[str], subprocess.Popen[str]]


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = tmp_path / "base"
    folder.mkdir(mode=0o700)
    return folder


@pytest.fixture
def consumer(base: Path) -> Iterator[Consumer]:
    """Starts a consumer on the base and waits until it has said something."""
    started: list[subprocess.Popen[str]] = []
    paths = os.pathsep.join([str(HERE), *filter(None, sys.path)])

    def start(task: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, str(HERE / "consumer.py"), str(base), task],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": paths},
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    if not line:
        raise AssertionError(process.communicate()[1])
    return line


def test_every_scenario_has_its_test() -> None:
    names = {f"test_{scenario['id'].replace('-', '_')}" for scenario in SCENARIOS}
    assert len(names) == 7
    assert names <= set(globals())


def test_two_consumers(base: Path, consumer: Consumer) -> None:
    root = ready(base)
    with open_tree(root, Opening(EXPECTED)) as first:
        first.consume(3)
        before = snapshot(base)
        assert said(consumer("refused")).startswith("busy: ")
        with pytest.raises(Busy):
            open_tree(root, Opening(EXPECTED))
        assert snapshot(base) == before
        first.consume(4)
        first.finish()
    assert not root.exists()


def test_forked_child_exits(base: Path, consumer: Consumer) -> None:
    ready(base)
    before = snapshot(base)
    process = consumer("fork")
    assert said(process) == "open"
    assert snapshot(base) == before
    with pytest.raises(Busy):
        open_tree(base / f"kt-int8-{RUN}", Opening(EXPECTED))


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_sigterm(base: Path, consumer: Consumer, signum: signal.Signals) -> None:
    ready(base)
    process = consumer("sleep")
    assert said(process) == "open"
    process.send_signal(signum)
    code = process.wait(20)
    # Python turns SIGINT into KeyboardInterrupt first, and then dies of it all the same.
    assert code == -signum
    assert list(base.iterdir()) == []


def test_sighup(base: Path, consumer: Consumer) -> None:
    test_sigterm(base, consumer, signal.SIGHUP)


def test_failed_publish_then_retry(base: Path) -> None:
    root = staging(base, lease_doc=lease(pid=os.getpid()))
    path = one(root)
    data = path.read_bytes()
    path.unlink()
    before = snapshot(base)
    with pytest.raises(Damaged) as caught:
        publish_staging(root, RUN, Adoption(EXPECTED))
    assert [finding.code for finding in caught.value.findings] == ["missing-file"]
    assert snapshot(base) == before
    assert (root / LEASE).exists()
    path.write_bytes(data)
    path.chmod(0o600)
    published = publish_staging(root, RUN, Adoption(EXPECTED)).published
    assert published is not None
    assert published.path == base / f"kt-int8-{RUN}"
    assert not root.exists()
    assert sorted(os.listdir(published.path)) == ["_layer_3", "_layer_4", MANIFEST]


def test_publish_blocked_by_ready_root(base: Path) -> None:
    obstacle = ready(base)
    root = staging(base, lease_doc=lease(pid=os.getpid()))
    before = snapshot(base)
    with pytest.raises(Refused):
        publish_staging(root, RUN, Adoption(EXPECTED))
    assert snapshot(base) == before
    shutil.rmtree(obstacle)
    assert publish_staging(root, RUN, Adoption(EXPECTED)).published is not None


def test_lease_names_finished_child(base: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    child.wait()
    root = staging(base, lease_doc=lease(pid=child.pid))
    store, artifact = entry(root)
    verdict = store.stale(artifact, StalePolicy())
    assert verdict.death is Death.LIVE
    assert any("changed" in clause for clause in verdict.evidence)
    with store.lease(artifact, Mode.EXCLUSIVE, Deadline.now()):
        # Whoever asks under its own lease gets the same answer.
        assert store.stale(artifact, StalePolicy()).death is Death.LIVE
    assert root.exists()
