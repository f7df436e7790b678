"""The real kt-kernel and hwctl on the same trees: what one stages, publishes or keeps, the other takes."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ktint8_producer
import pytest
import torch
from run_hwctl import environment, hwctl_, start
from safetensors.torch import load_file, save_file
from upstream_ephemeral import ask, installed
from upstream_writer import KtKernel

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(not installed(), reason="kt-kernel is not installed"),
]

EXPERTS, HIDDEN, WIDTH, LAYERS = 3, 128, 256, (1, 2)
SHAPE: dict[str, Any] = {
    "layer_indices": list(LAYERS),
    "expert_num": EXPERTS,
    "hidden_size": HIDDEN,
    "intermediate_size": WIDTH,
}


@pytest.fixture
def base(shm: Path) -> Path:
    return shm


@pytest.fixture
def run() -> str:
    return f"test-{secrets.token_hex(4)}"


@pytest.fixture(scope="module")
def kt_kernel() -> Iterator[KtKernel]:
    try:
        process = KtKernel()
    except RuntimeError as exc:
        pytest.skip(f"kt-kernel does not run here: {exc}")
    if process.variant == "avx2":
        process.close()
        pytest.skip("kt-kernel's AVX2 build has no INT8 writer; it needs a processor with AVX-512")
    yield process
    process.close()


@pytest.fixture(scope="module")
def weights() -> dict[str, torch.Tensor]:
    torch.manual_seed(11)
    return {
        "gate": torch.randn(EXPERTS, WIDTH, HIDDEN).bfloat16(),
        "up": torch.randn(EXPERTS, WIDTH, HIDDEN).bfloat16(),
        "down": torch.randn(EXPERTS, HIDDEN, WIDTH).bfloat16(),
    }


@pytest.fixture(scope="module")
def model(weights: dict[str, torch.Tensor], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same weights in two MoE layers after a dense one."""
    folder: Path = tmp_path_factory.mktemp("model")
    config = {
        "model_type": "qwen3_moe",
        "hidden_size": HIDDEN,
        "moe_intermediate_size": WIDTH,
        "num_experts": EXPERTS,
        "num_hidden_layers": 3,
        "mlp_only_layers": [0],
    }
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {
        f"model.layers.{layer}.mlp.experts.{expert}.{name}_proj.weight": matrix[expert].clone()
        for layer in LAYERS
        for name, matrix in weights.items()
        for expert in range(EXPERTS)
    }
    save_file(tensors, folder / "model.safetensors")
    return folder


def publish(model: Path, base: Path, run: str, parts: int) -> Path:
    words = ("publish", "ktint8", "--from", model, "--run-id", run, "--base", base, "--numa", str(parts))
    done = hwctl_(*words)
    assert done.status == 0, done.err
    return base / f"kt-int8-{run}"


def staged_by_kt_kernel(
    kt_kernel: KtKernel, weights: dict[str, torch.Tensor], base: Path, run: str, parts: int
) -> Path:
    """As prepare_ephemeral_int8 leaves it: kt-kernel's writer, the lease of a converter that has ended."""
    root = base / f"kt-int8-{run}.staging"
    root.mkdir(mode=0o700)
    save_file(weights, base / "input.safetensors")
    for layer in LAYERS:
        kt_kernel.ask(
            input=str(base / "input.safetensors"), layer=layer, parts=parts, threads=2, out=str(root)
        )
    (base / "input.safetensors").unlink()
    converter = subprocess.Popen([sys.executable, "-c", "pass"])
    converter.wait()
    assert ask("lease", root, run=run, pid=converter.pid) == {"result": "leased"}
    return root


@pytest.mark.parametrize("parts", [1, 2])
def test_published_by_hwctl_consumed_by_kt_kernel(model: Path, base: Path, run: str, parts: int) -> None:
    root = publish(model, base, run, parts)
    document = json.loads((root / "kt-ephemeral-manifest.json").read_text())
    answer = ask("consume", root, numa_count=parts, **SHAPE)
    assert answer == {"result": {str(layer["index"]): layer["bytes"] for layer in document["layers"]}}
    assert os.listdir(base) == []


@pytest.mark.parametrize("parts", [1, 2])
def test_staged_by_kt_kernel_published_and_consumed_by_hwctl(
    kt_kernel: KtKernel, weights: dict[str, torch.Tensor], base: Path, run: str, parts: int, tmp_path: Path
) -> None:
    staging = staged_by_kt_kernel(kt_kernel, weights, base, run, parts)
    done = hwctl_("publish", "ktint8", "--from", staging, "--numa", str(parts), "--json")
    assert done.status == 0, done.err
    root = base / f"kt-int8-{run}"
    verified = hwctl_("verify", root, "--json")
    assert verified.status == 0, verified.out
    assert verified.results[0]["content"] == "checked"
    assert hwctl_("consume", root, "--to", tmp_path / "out").status == 0
    back = load_file(tmp_path / "out/layer-00002.safetensors")
    for name, matrix in weights.items():
        for expert in range(EXPERTS):
            found = back[f"model.layers.2.mlp.experts.{expert}.{name}_proj.weight"]
            plain = matrix[expert].float()
            pieces = parts if name == "down" else 1
            for mine, theirs in zip(found.chunk(pieces, 1), plain.chunk(pieces, 1), strict=True):
                step = theirs.abs().amax(1, keepdim=True) / 127
                assert ((mine - theirs).abs() <= step * 0.502).all()
    assert os.listdir(base) == []


def test_published_by_kt_kernel_verified_and_consumed_by_hwctl(
    kt_kernel: KtKernel, weights: dict[str, torch.Tensor], model: Path, base: Path, run: str
) -> None:
    staging = staged_by_kt_kernel(kt_kernel, weights, base, run, 2)
    root = Path(ask("publish", staging, run=run, numa_count=2, **SHAPE)["result"])
    assert hwctl_("verify", root, "--for", model, "--numa", "2").status == 0
    wrong = hwctl_("verify", root, "--for", model, "--numa", "1", "--json")
    assert wrong.status == 65
    assert {finding["code"] for finding in wrong.results[0]["findings"]} == {"not-expected"}
    assert hwctl_("consume", root, "--discard", "-y").status == 0
    assert os.listdir(base) == []


def test_a_half_consumed_tree_of_kt_kernel_is_gone_on_with(model: Path, base: Path, run: str) -> None:
    root = publish(model, base, run, 1)
    stopped = start("consume", root, "--each", "sh -c 'case $0 in *_layer_2) exit 1;; esac'")
    stopped.communicate(timeout=60)
    answer = ask("consume", root, numa_count=1, **SHAPE)
    assert "cannot be resumed" in answer["error"]
    assert hwctl_("consume", root, "--discard", "-y").status == 0


@pytest.mark.parametrize("parts", [1, 2])
def test_a_schema_2_store_passes_kt_kernels_own_check(model: Path, base: Path, run: str, parts: int) -> None:
    ready = publish(model, base, run, parts)
    for source, words in ((model, ("--numa", str(parts))), (ready, ())):
        store = base / f"store-{source.name}"
        done = hwctl_("publish", "ktint8", "--from", source, "--persistent", store, *words, "--json")
        assert done.status == 0, done.err
        answer = ask("validate", store, numa_count=parts, **SHAPE)
        files = len(LAYERS) * 6 * EXPERTS * parts
        assert answer["result"][:2] == [2, files]
    path = next(store.rglob("*quant*"))
    data = bytearray(path.read_bytes())
    data[3] ^= 1
    path.write_bytes(data)
    assert "SHA256 mismatch" in ask("validate", store, numa_count=parts, **SHAPE)["error"]
    assert hwctl_("verify", store).status == 65


def test_kt_kernels_reclaim_keeps_what_hwctl_is_making(base: Path, run: str) -> None:
    """Its only question is whether the pid exists; our lease names the process that really does the work."""
    staging = base / f"kt-int8-{run}.staging"
    process = subprocess.Popen(
        [sys.executable, "-P", ktint8_producer.__file__, str(base), run],
        stdout=subprocess.PIPE,
        env=environment(),
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"staged\n"
        assert ask("reclaim", staging, run=run) == {"result": False}
        assert staging.exists()
    finally:
        process.kill()
        process.communicate()
    assert ask("reclaim", staging, run=run) == {"result": True}
    assert os.listdir(base) == []
