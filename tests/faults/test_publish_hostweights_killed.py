"""``hwctl publish hostweights`` killed at random moments (PUB-07): the artifact is whole or absent.

A few rounds by default; HWCTL_KILL_ROUNDS=50 for many.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from run_hwctl import hwctl_, start

from hwctl.weights.safetensors_file import build_header

ROUNDS = int(os.environ.get("HWCTL_KILL_ROUNDS", "8"))
TENSORS, TENSOR_BYTES = 16, 2 << 20


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """In memory where that is possible, so that the publication and not the disk takes the time."""
    memory = Path("/dev/shm")
    folder = memory / f"hwctl-killed-{os.getpid()}" if memory.is_dir() else tmp_path_factory.mktemp("killed")
    folder.mkdir(exist_ok=True)
    yield folder
    for path in folder.rglob("*"):
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o700)
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def source(place: Path) -> Path:
    path = place / "source" / "model.safetensors"
    path.parent.mkdir()
    header, _ = build_header([(f"t{n:02d}", "U8", (TENSOR_BYTES,)) for n in range(TENSORS)], None)
    with path.open("wb") as file:
        file.write(header)
        for number in range(TENSORS):
            file.write(random.Random(number).randbytes(1 << 16) * (TENSOR_BYTES >> 16))
    return path


@pytest.fixture(scope="module")
def seconds(source: Path, place: Path) -> float:
    """How long an undisturbed publication takes."""
    begun = time.monotonic()
    done = hwctl_("publish", "hostweights", "--from", source, "--store", place / "undisturbed")
    assert done.status == 0, done.err
    return time.monotonic() - begun


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL], ids=["TERM", "KILL"])
def test_whole_or_absent(
    signum: signal.Signals, source: Path, seconds: float, place: Path, request: pytest.FixtureRequest
) -> None:
    rnd = random.Random(f"{signum}{time.time_ns()}")
    met = {"whole": 0, "absent": 0}
    for number in range(ROUNDS):
        store = place / f"{request.node.callspec.id}-{number}"
        moment = rnd.uniform(0.3, 1.05) * seconds
        process = start("publish", "hostweights", "--from", source, "--store", store)
        time.sleep(moment)
        process.send_signal(signum)
        _out, err = process.communicate(timeout=30)
        assert process.returncode in (0, -signum), err
        context = (
            f"round {number}, {signum.name} after {moment:.3f} of {seconds:.3f} s, ended {process.returncode}"
        )

        artifacts = list((store / "artifacts").glob("*")) if store.exists() else []
        if not artifacts and signum == signal.SIGTERM and store.exists():
            assert list((store / "tmp").glob("*")) == [], context
        if process.returncode == 0:
            assert artifacts, context
        met["whole" if artifacts else "absent"] += 1
        if artifacts:
            seconds = min(seconds, moment)  # it was through by then: a machine's load comes and goes

        again = hwctl_("publish", "hostweights", "--from", source, "--store", store, "--json")
        assert again.status == 0, (context, again.err)
        # What was there counts as sound at once; that it is, byte for byte, is verified below.
        assert again.results[0]["outcome"] == ("already-published" if artifacts else "published"), context
        assert list((store / "tmp").glob("*")) == [], context
        assert hwctl_("verify", store).status == 0, context
        with contextlib.suppress(FileNotFoundError):
            _remove(store)
    assert met["absent"], f"no kill came in time: {met}"


def _remove(store: Path) -> None:
    for artifact in (store / "artifacts").iterdir():
        artifact.chmod(0o700)
    shutil.rmtree(store)


def test_a_second_signal_ends_at_once(source: Path, seconds: float, place: Path) -> None:
    """However much there is to clean up: the staging that stays is the next publication's to remove."""
    store = place / "twice"
    process = start("publish", "hostweights", "--from", source, "--store", store)
    time.sleep(0.6 * seconds)
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=10)
    assert process.returncode in (0, -signal.SIGTERM, -signal.SIGINT)
    assert hwctl_("publish", "hostweights", "--from", source, "--store", store).status == 0
    assert os.listdir(store / "tmp") == []
