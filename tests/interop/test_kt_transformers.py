"""Real small MoE models, made and saved by transformers: published, verified, consumed, compared.

The comparison is with the library's own parameters in memory, [E, 2I, H] with gate first and [E, H, I], so
nothing of it depends on how hwctl reads the saved names and shapes.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
from pathlib import Path
from typing import Any

import pytest
import torch
from run_hwctl import hwctl_
from safetensors.torch import load_file

pytestmark = pytest.mark.interop

HIDDEN, WIDTH = 64, 128
SIZES: dict[str, Any] = {
    "hidden_size": HIDDEN,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "intermediate_size": WIDTH,
    "num_experts_per_tok": 2,
}
QWEN = SIZES | {"moe_intermediate_size": WIDTH, "num_experts": 4, "head_dim": 16}
ROUTED = {"moe_intermediate_size": WIDTH, "n_routed_experts": 4, "n_group": 1, "topk_group": 1}
LATENT = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
}
VISION = {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": HIDDEN}
ROPE = {"rope_type": "default", "mrope_section": [2, 3, 3]}

# model -> (the library's config class, model class, arguments, layers that have experts)
MODELS: dict[str, tuple[str, str, dict[str, Any], list[int]]] = {
    "qwen3-moe": ("Qwen3MoeConfig", "Qwen3MoeForCausalLM", QWEN | {"mlp_only_layers": [0]}, [1]),
    "mixtral": ("MixtralConfig", "MixtralForCausalLM", SIZES | {"num_local_experts": 4}, [0, 1]),
    "deepseek-v3": (
        "DeepseekV3Config",
        "DeepseekV3ForCausalLM",
        SIZES | ROUTED | LATENT | {"first_k_dense_replace": 1},
        [1],
    ),
    "glm4-moe": ("Glm4MoeConfig", "Glm4MoeForCausalLM", SIZES | ROUTED | {"first_k_dense_replace": 1}, [1]),
    "minimax-m2": ("MiniMaxM2Config", "MiniMaxM2ForCausalLM", SIZES | {"num_local_experts": 4}, [0, 1]),
    "qwen3-vl-moe": (
        "Qwen3VLMoeConfig",
        "Qwen3VLMoeForConditionalGeneration",
        {"text_config": QWEN | {"rope_scaling": ROPE}, "vision_config": VISION},
        [0, 1],
    ),
}


@pytest.fixture
def base(shm: Path) -> Path:
    return shm


def make(name: str) -> Any:
    """The model with random weights, large enough for every row to have a scale of its own."""
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("transformers is not installed")
    os.environ["HF_HUB_OFFLINE"] = "1"
    import transformers

    config_class, model_class, arguments, _layers = MODELS[name]
    torch.manual_seed(7)
    config = getattr(transformers, config_class)(**arguments)
    return getattr(transformers, model_class)(config).to(torch.bfloat16)


def experts_of(model: Any, layer: int) -> dict[str, torch.Tensor]:
    """gate, up and down of one layer as [E, rows, columns], from the parameters in memory."""
    found = {
        name.rsplit(".", 1)[1]: parameter.detach().float()
        for name, parameter in model.named_parameters()
        if f"layers.{layer}.mlp.experts." in name
    }
    gate, up = found["gate_up_proj"].chunk(2, 1)
    return {"gate": gate, "up": up, "down": found["down_proj"]}


def require_near(back: torch.Tensor, weight: torch.Tensor, parts: int) -> None:
    """Every weight within half a step of its row; a step is the row's largest magnitude over 127."""
    for stored, plain in zip(back.chunk(parts, 1), weight.chunk(parts, 1), strict=True):
        step = plain.abs().amax(1, keepdim=True) / 127
        assert ((stored - plain).abs() <= step * 0.502).all()


@pytest.mark.parametrize(("name", "parts"), [*((name, 1) for name in MODELS), ("mixtral", 2)])
def test_from_the_library_to_consumed_weights(tmp_path: Path, base: Path, name: str, parts: int) -> None:
    model = make(name)
    model.save_pretrained(tmp_path / "model", max_shard_size="200KB")
    run = f"test-{secrets.token_hex(4)}"
    numa = ("--numa", str(parts))
    published = hwctl_(
        "publish", "ktint8", "--from", tmp_path / "model", "--run-id", run, "--base", base, *numa
    )
    assert published.status == 0, published.err
    tree = base / f"kt-int8-{run}"
    verified = hwctl_("verify", tree, "--for", tmp_path / "model", *numa, "--json")
    assert verified.status == 0, verified.out + verified.err
    consumed = hwctl_("consume", tree, "--to", tmp_path / "out", "--yes")
    assert consumed.status == 0, consumed.err
    assert not tree.exists()
    layers = MODELS[name][3]
    assert len(list((tmp_path / "out").iterdir())) == len(layers)
    for layer in layers:
        back = load_file(tmp_path / "out" / f"layer-{layer:05d}.safetensors")
        for projection, weights in experts_of(model, layer).items():
            for expert, weight in enumerate(weights):
                tensor = back.pop(f"model.layers.{layer}.mlp.experts.{expert}.{projection}_proj.weight")
                require_near(tensor.float(), weight, parts if projection == "down" else 1)
        assert not back
