"""kt-kernel's own writer and hwctl side by side: the same tensors, the same bytes.

And the other way round: what hwctl wrote is loaded by kt-kernel's inference class, and computes what the
weights say.
"""

from __future__ import annotations

import json
import secrets
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from upstream_writer import KtKernel

from hwctl.core import publish_ktint8
from hwctl.core.ktint8_material import from_checkpoint, plan_checkpoint
from hwctl.core.ktint8_target import Target
from hwctl.core.publish_ktint8 import Work

pytestmark = pytest.mark.interop

# (experts, hidden, intermediate): odd multiples of 64, past one block of 3584 columns, many experts.
SHAPES = [
    (1, 64, 64),
    (1, 64, 192),
    (2, 64, 128),
    (3, 128, 128),
    (1, 64, 384),
    (2, 192, 128),
    (2, 192, 640),
    (1, 320, 384),
    (4, 256, 256),
    (1, 448, 1408),
    (1, 704, 896),
    (2, 512, 768),
    (2, 1024, 512),
    (8, 128, 256),
    (1, 2048, 768),
    (1, 1472, 1152),
    (1, 64, 3584),
    (1, 64, 3648),
    (1, 64, 7296),
    (1, 3648, 128),
    (1, 128, 7168),
    (1, 7168, 256),
    (5, 64, 896),
    (1, 3584, 128),
]
CASES = [(shape, parts) for shape in SHAPES for parts in (1, 2) if shape[2] % (64 * parts) == 0]


@pytest.fixture
def base(shm: Path) -> Path:
    return shm


def weights(shape: tuple[int, int, int], seed: int) -> dict[str, torch.Tensor]:
    """Random weights with outliers, empty rows, and rows of any size down to subnormals."""
    experts, hidden, intermediate = shape
    generator = torch.Generator().manual_seed(seed)
    found = {}
    for name, rows, columns in (
        ("gate", intermediate, hidden),
        ("up", intermediate, hidden),
        ("down", hidden, intermediate),
    ):
        tensor = torch.randn(experts, rows, columns, generator=generator) * 0.02
        tensor[:, ::17] *= torch.logspace(-38, 30, tensor[:, ::17].shape[1]).view(1, -1, 1)
        tensor[:, 5] = 0
        tensor[:, ::13, 3] *= 60
        found[name] = tensor.to(torch.bfloat16)
    return found


def write_model(folder: Path, matrices: dict[str, torch.Tensor]) -> Path:
    """The same weights as a checkpoint of one MoE layer."""
    experts, intermediate, hidden = matrices["gate"].shape
    config = {
        "model_type": "qwen3_moe",
        "hidden_size": hidden,
        "moe_intermediate_size": intermediate,
        "num_experts": experts,
        "num_hidden_layers": 1,
    }
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {
        f"model.layers.0.mlp.experts.{expert}.{name}_proj.weight": matrix[expert].contiguous()
        for name, matrix in matrices.items()
        for expert in range(experts)
    }
    save_file(tensors, folder / "model.safetensors")
    return folder


def publish(model: Path, base: Path, parts: int) -> Path:
    run = f"test-{secrets.token_hex(6)}"
    plan, target = plan_checkpoint(model, parts, None), Target.ephemeral(base, run)
    with from_checkpoint(plan, target, 2) as material:
        return publish_ktint8.publish(material, Work(jobs=2)).path


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*.kt")}


@pytest.mark.parametrize(("shape", "parts"), CASES, ids=[f"{s[0]}x{s[1]}x{s[2]}-{p}" for s, p in CASES])
def test_same_bytes(
    kt_kernel: KtKernel, tmp_path: Path, base: Path, shape: tuple[int, int, int], parts: int
) -> None:
    matrices = weights(shape, seed=CASES.index((shape, parts)))
    save_file(matrices, tmp_path / "input.safetensors")
    (upstream := base / "upstream").mkdir()
    kt_kernel.ask(
        input=str(tmp_path / "input.safetensors"), layer=0, parts=parts, threads=2, out=str(upstream)
    )
    made = contents(publish(write_model(tmp_path / "model", matrices), base, parts))
    expected = contents(upstream)
    assert sorted(made) == sorted(expected)
    assert [name for name in made if made[name] != expected[name]] == []


@pytest.mark.parametrize("parts", [1, 2])
def test_forward_pass_over_what_hwctl_wrote(
    kt_kernel: KtKernel, tmp_path: Path, base: Path, parts: int
) -> None:
    """16 tokens through 4 experts, two each, against the same weights in float: activations are INT8 too."""
    experts, hidden, intermediate, count = 4, 256, 256, 16
    torch.manual_seed(1)
    matrices = {
        "gate": torch.randn(experts, intermediate, hidden) * 0.05,
        "up": torch.randn(experts, intermediate, hidden) * 0.05,
        "down": torch.randn(experts, hidden, intermediate) * 0.05,
    }
    matrices = {name: matrix.to(torch.bfloat16) for name, matrix in matrices.items()}
    root = publish(write_model(tmp_path / "model", matrices), base, parts)
    tokens = torch.randn(count, hidden).to(torch.bfloat16)
    ids = torch.stack([torch.randperm(experts)[:2] for _ in range(count)])
    shares = torch.rand(count, 2)
    save_file({"input": tokens, "ids": ids, "weights": shares}, tmp_path / "tokens.safetensors")
    kt_kernel.ask(
        tokens=str(tmp_path / "tokens.safetensors"),
        result=str(tmp_path / "result.safetensors"),
        out=str(root),
        layer=0,
        parts=parts,
        threads=2,
        experts=experts,
        hidden=hidden,
        intermediate=intermediate,
    )
    output = load_file(tmp_path / "result.safetensors")["output"].float()
    expected = forward(matrices, tokens, ids, shares)
    assert ((output - expected).norm() / expected.norm()).item() < 0.03


def forward(
    matrices: dict[str, torch.Tensor], tokens: torch.Tensor, ids: torch.Tensor, shares: torch.Tensor
) -> torch.Tensor:
    out = torch.zeros(tokens.shape)
    for token, (chosen, share) in enumerate(zip(ids.tolist(), shares.tolist(), strict=True)):
        x = tokens[token].float()
        for expert, part in zip(chosen, share, strict=True):
            gate, up, down = (matrices[name][expert].float() for name in ("gate", "up", "down"))
            out[token] += part * (down @ (torch.nn.functional.silu(gate @ x) * (up @ x)))
    return out
