"""``hwctl publish ktint8`` and ``consume`` ended at random moments (PUB-07).

A few rounds by default; HWCTL_KILL_ROUNDS=50 for many.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import make_ktint8
import pytest
import torch
from run_hwctl import hwctl_, start
from safetensors.torch import save_file

ROUNDS = int(os.environ.get("HWCTL_KILL_ROUNDS", "2"))
HIDDEN, WIDTH, EXPERTS, LAYERS = 512, 512, 16, 6


@pytest.fixture
def base(shm: Path) -> Path:
    return shm


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("model")
    config = {
        "model_type": "qwen3_moe",
        "hidden_size": HIDDEN,
        "moe_intermediate_size": WIDTH,
        "num_experts": EXPERTS,
        "num_hidden_layers": LAYERS,
    }
    (folder / "config.json").write_text(json.dumps(config))
    torch.manual_seed(3)
    weight = torch.randn(WIDTH, HIDDEN).bfloat16()
    names = [
        f"model.layers.{layer}.mlp.experts.{expert}.{name}_proj.weight"
        for layer in range(LAYERS)
        for expert in range(EXPERTS)
        for name in ("gate", "up", "down")
    ]
    save_file({name: weight.clone() for name in names}, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def moments(model: Path) -> Iterator[random.Random]:
    yield random.Random(os.environ.get("HWCTL_SEED", "7"))


def begun(base: Path, process: object) -> float:
    """Wait for the staging root to appear; the moment it did."""
    while not any(base.glob("kt-int8-*")):
        assert process.poll() is None, process.communicate()  # type: ignore[attr-defined]
        time.sleep(0.002)
    return time.monotonic()


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL], ids=["TERM", "KILL"])
def test_publishing(base: Path, model: Path, moments: random.Random, signum: signal.Signals) -> None:
    words = ("publish", "ktint8", "--from", model, "--base", base, "--run-id")
    ended = 0
    for number in range(ROUNDS):
        run = f"round-{number:04d}"
        process = start(*words, run)
        begun(base, process)
        time.sleep(moments.uniform(0, 0.4))
        process.send_signal(signum)
        process.communicate(timeout=60)
        assert process.returncode in (0, -signum)
        ended += process.returncode != 0
        ready, staging = base / f"kt-int8-{run}", base / f"kt-int8-{run}.staging"
        if signum is signal.SIGTERM:
            assert not staging.exists()
        else:
            reclaimed = hwctl_("reclaim-stale", base, "-y", "--json")
            assert reclaimed.status == 0, reclaimed.err
            assert not staging.exists()
        if ready.exists():
            assert hwctl_("verify", ready, "--for", model).status == 0
            shutil.rmtree(ready)
        assert [name for name in os.listdir(base) if not name.startswith(".")] == []
    assert ended


def test_going_on_after_many_kills(base: Path, model: Path, moments: random.Random) -> None:
    """However often it is killed, the work that was finished is never done again, and it comes to its end."""
    words = ("publish", "ktint8", "--from", model, "--base", base, "--run-id", "stubborn-1")
    staging = base / "kt-int8-stubborn-1.staging"
    finished: set[str] = set()
    for _ in range(ROUNDS):
        process = start(*words)
        while not staging.exists() and process.poll() is None:
            time.sleep(0.002)
        time.sleep(moments.uniform(0.05, 0.5))
        process.kill()
        process.communicate()
        if (base / "kt-int8-stubborn-1").exists():
            break
        now = {path.name for path in staging.glob("_layer_*") if "." not in path.name}
        assert finished <= now
        finished = now
    done = hwctl_(*words, "--json")
    assert done.status == 0, done.err
    assert (
        done.results[0]["outcome"] == "already-published"
        or done.results[0]["kept_layers"] >= len(finished) - 1
    )
    assert hwctl_("verify", base / "kt-int8-stubborn-1", "--for", model).status == 0


def test_consuming(base: Path, moments: random.Random, tmp_path: Path) -> None:
    """Killed at any moment: every layer is either still there whole, or was handed over."""
    tree = make_ktint8.make_ready(base, "consumed-1", states=("ready",) * 40)
    out = tmp_path / "out"
    for _ in range(ROUNDS):
        process = start("consume", tree, "--to", out)
        while not out.exists() and process.poll() is None:
            time.sleep(0.002)
        time.sleep(moments.uniform(0, 0.3))
        process.kill()
        process.communicate()
        if not tree.exists():
            break
        whole = {
            int(path.parts[-2][7:]) for path in tree.glob("_layer_*/_numa_0") if len(os.listdir(path)) == 6
        }
        written = {int(path.stem[6:]) for path in out.glob("layer-*.safetensors")}
        assert whole | written == set(range(40))
    if tree.exists():
        assert hwctl_("consume", tree, "--to", out).status == 0
    assert len(list(out.glob("layer-*.safetensors"))) == 40
    assert os.listdir(base) == []
