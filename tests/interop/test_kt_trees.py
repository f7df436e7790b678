"""Whole trees between hwctl and kt-kernel: each one publishes what the other one reads and consumes."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from run_hwctl import Run, command, hwctl_
from safetensors.torch import save_file
from upstream_writer import KtKernel

pytestmark = pytest.mark.interop

BASE = Path("/dev/shm")
LAYERS, PARTS, EXPERTS, HIDDEN, WIDTH = (1, 2), 2, 3, 128, 256
SHAPE = (
    f"dict(layer_indices={LAYERS}, numa_count={PARTS}, expert_num={EXPERTS}, "
    f"hidden_size={HIDDEN}, intermediate_size={WIDTH})"
)


@pytest.fixture
def run() -> Iterator[str]:
    """A run id that nobody else has: kt-kernel wants its trees in /dev/shm itself."""
    name = f"hwctl-test-{secrets.token_hex(6)}"
    yield name
    for path in BASE.glob(f"kt-int8-{name}*"):
        shutil.rmtree(path)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A checkpoint of three layers, the first dense."""
    generator = torch.Generator().manual_seed(3)
    config = {
        "model_type": "deepseek_v3",
        "hidden_size": HIDDEN,
        "moe_intermediate_size": WIDTH,
        "n_routed_experts": EXPERTS,
        "num_hidden_layers": 3,
        "first_k_dense_replace": 1,
    }
    shapes = {"gate": (WIDTH, HIDDEN), "up": (WIDTH, HIDDEN), "down": (HIDDEN, WIDTH)}
    tensors = {
        f"model.layers.{layer}.mlp.experts.{expert}.{name}_proj.weight": (
            torch.randn(shape, generator=generator) * 0.02
        ).to(torch.bfloat16)
        for layer in LAYERS
        for expert in range(EXPERTS)
        for name, shape in shapes.items()
    }
    (folder := tmp_path / "model").mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    for layer in LAYERS:
        stacked = {
            name: torch.stack(
                [tensors[f"model.layers.{layer}.mlp.experts.{e}.{name}_proj.weight"] for e in range(EXPERTS)]
            )
            for name in shapes
        }
        save_file(stacked, tmp_path / f"layer-{layer}.safetensors")
    return folder


def upstream(code: str, *args: str | Path) -> str:
    """Run some lines with kt-kernel's own functions; what they print last."""
    done = subprocess.run(
        [sys.executable, "-c", f"import os, sys\nshape = {SHAPE}\n{code}", *map(str, args)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def ok(*words: str | Path) -> Run:
    done = hwctl_(*words)
    assert done.status == 0, done.out + done.err
    return done


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*.kt"))}


def write_all(kt_kernel: KtKernel, folder: Path, root: Path) -> None:
    for layer in LAYERS:
        source = str(folder / f"layer-{layer}.safetensors")
        kt_kernel.ask(input=source, layer=layer, parts=PARTS, threads=2, out=str(root))


def test_kt_kernel_consumes_what_hwctl_published(kt_kernel: KtKernel, model: Path, run: str) -> None:
    ok("publish", "ktint8", "--from", model, "--run-id", run, "--numa", str(PARTS))
    root = BASE / f"kt-int8-{run}"
    code = """
from kt_kernel.sft.ephemeral import EphemeralKTWeightStore
store = EphemeralKTWeightStore.open(sys.argv[1], **shape)
for layer in shape["layer_indices"]:
    store.consume_layer(layer)
store.finish()
print("finished")
"""
    assert upstream(code, root) == "finished"
    assert not root.exists()


def test_hwctl_publishes_and_consumes_what_kt_kernel_staged(
    kt_kernel: KtKernel, model: Path, run: str, tmp_path: Path
) -> None:
    staging, root = BASE / f"kt-int8-{run}.staging", BASE / f"kt-int8-{run}"
    staging.mkdir(mode=0o700)
    write_all(kt_kernel, tmp_path, staging)
    # The producer becomes hwctl, so that the lease names a live process in any pid namespace: itself.
    code = """
from kt_kernel.sft.ephemeral import write_ephemeral_staging_lease
write_ephemeral_staging_lease(sys.argv[1], run_id=sys.argv[2], producer_pid=os.getpid())
os.execv(sys.argv[3], sys.argv[3:])
"""
    publish = command("publish", "ktint8", "--from", staging, "--run-id", run)
    assert upstream(code, staging, run, *publish) == str(root)
    assert not staging.exists()
    ok("verify", root, "--for", model, "--numa", str(PARTS))
    ok("consume", root, "--to", tmp_path / "out", "--yes")
    assert not root.exists()


def test_kt_kernel_validates_a_persistent_store(kt_kernel: KtKernel, model: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    ok("publish", "ktint8", "--from", model, "--persistent", store, "--numa", str(PARTS))
    code = """
from kt_kernel.sft.weight_manifest import validate_persistent_int8_weights
print(validate_persistent_int8_weights(sys.argv[1], verify_hashes=True, **shape).schema_version)
"""
    assert upstream(code, store) == "2"
    write_all(kt_kernel, tmp_path, tmp_path / "upstream")
    assert contents(store) == contents(tmp_path / "upstream")


def test_a_ready_tree_becomes_a_persistent_store(model: Path, run: str, tmp_path: Path) -> None:
    ok("publish", "ktint8", "--from", model, "--run-id", run, "--numa", str(PARTS))
    root = BASE / f"kt-int8-{run}"
    before = contents(root)
    ok("publish", "ktint8", "--from", root, "--persistent", tmp_path / "store")
    assert contents(tmp_path / "store") == before
    ok("verify", tmp_path / "store", root)
