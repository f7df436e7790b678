"""config.json: families, and which layers and experts they say there must be."""

from __future__ import annotations

from typing import Any

import pytest

from hwctl.errors import Damaged, Unsupported
from hwctl.weights.moe.config import read_config
from hwctl.weights.moe.families import FAMILIES, find_family

BASE: dict[str, Any] = {"hidden_size": 128, "moe_intermediate_size": 64, "num_hidden_layers": 6}
DEEPSEEK = BASE | {"model_type": "deepseek_v3", "n_routed_experts": 4}
QWEN = BASE | {"model_type": "qwen3_moe", "num_experts": 4}


def faults(config: dict[str, Any]) -> list[str]:
    with pytest.raises(Damaged) as caught:
        read_config(config)
    assert all(finding.file == "config.json" for finding in caught.value.findings)
    return [finding.message for finding in caught.value.findings]


@pytest.mark.parametrize(
    ("config", "layers"),
    [
        (DEEPSEEK, [3, 4, 5]),
        (DEEPSEEK | {"first_k_dense_replace": 1, "moe_layer_freq": 2}, [2, 4]),
        (DEEPSEEK | {"first_k_dense_replace": None}, [3, 4, 5]),
        (DEEPSEEK | {"mlp_only_layers": [4], "decoder_sparse_step": 2}, [3, 4, 5]),
        (DEEPSEEK | {"model_type": "deepseek_v2"}, [0, 1, 2, 3, 4, 5]),
        (DEEPSEEK | {"model_type": "kimi_k2", "first_k_dense_replace": 1}, [1, 2, 3, 4, 5]),
        (DEEPSEEK | {"model_type": "glm4_moe"}, [1, 2, 3, 4, 5]),
        (
            DEEPSEEK | {"model_type": "glm4_moe_lite", "mlp_layer_types": ["dense", "sparse"] * 3},
            [1, 3, 5],
        ),
        (QWEN, [0, 1, 2, 3, 4, 5]),
        (QWEN | {"mlp_only_layers": [0, 5]}, [1, 2, 3, 4]),
        (QWEN | {"mlp_only_layers": None}, [0, 1, 2, 3, 4, 5]),
        (QWEN | {"decoder_sparse_step": 2}, [1, 3, 5]),
        (QWEN | {"decoder_sparse_step": 2, "mlp_only_layers": [3]}, [1, 5]),
        (QWEN | {"first_k_dense_replace": 2}, [0, 1, 2, 3, 4, 5]),
        (QWEN | {"model_type": "qwen3_5_moe", "decoder_sparse_step": 2}, [0, 1, 2, 3, 4, 5]),
        (QWEN | {"model_type": None, "first_k_dense_replace": 1, "decoder_sparse_step": 2}, [1, 3, 5]),
    ],
)
def test_layers(config: dict[str, Any], layers: list[int]) -> None:
    assert list(read_config(config).layers) == layers


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_family_is_found_by_its_name_and_that_of_its_text_model(family: str) -> None:
    assert find_family({"model_type": family}) is FAMILIES[family]
    assert (
        find_family({"model_type": "wrapper", "text_config": {"model_type": f"{family}_text"}}).name == family
    )


@pytest.mark.parametrize("key", ["n_routed_experts", "num_experts", "num_local_experts"])
def test_names_of_the_expert_count(key: str) -> None:
    assert read_config(BASE | {"model_type": "qwen3_moe", key: 7}).experts == 7


@pytest.mark.parametrize("family", ["mixtral", "minimax_m2"])
def test_width_is_the_intermediate_size(family: str) -> None:
    config = {"model_type": family, "hidden_size": 128, "intermediate_size": 192, "num_local_experts": 8}
    assert read_config(config | {"num_hidden_layers": 2}).intermediate == 192


def test_width_is_never_that_of_the_dense_layers() -> None:
    config = {key: value for key, value in QWEN.items() if key != "moe_intermediate_size"}
    assert faults(config | {"intermediate_size": 512}) == ["moe_intermediate_size: missing"]


def test_nested_text_config() -> None:
    outer = {
        "model_type": "qwen3_vl_moe",
        "hidden_size": 1,
        "text_config": QWEN | {"model_type": "qwen3_vl_moe_text"},
    }
    assert read_config(outer).hidden == 128


def test_omni_is_nested_twice() -> None:
    outer = {"model_type": "qwen3_omni_moe", "thinker_config": {"text_config": QWEN, "num_experts": 9}}
    assert read_config(outer).experts == 4


def test_block_size_in_the_outer_config() -> None:
    block = {"quant_method": "fp8", "weight_block_size": [128, 64]}
    outer = {"model_type": "kimi_k25", "text_config": DEEPSEEK, "quantization_config": block}
    assert read_config(outer).block == (128, 64)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "gpt_oss"}, ["gpt_oss", "biases"]),
        ({"model_type": "deepseek_v4"}, ["deepseek_v4", "MXFP4"]),
        ({"model_type": "llama"}, ["llama"]),
        ({"model_type": "wrapper", "text_config": {"model_type": "olmoe"}}, ["wrapper"]),
        (DEEPSEEK | {"quantization_config": {"quant_method": "compressed-tensors"}}, ["compressed-tensors"]),
        (QWEN | {"quantization_config": {"quant_method": "awq"}}, ["awq", "qwen3_moe"]),
    ],
)
def test_unsupported_by_name(config: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(Unsupported) as caught:
        read_config(config)
    assert all(word in caught.value.message for word in words)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"hidden_size": None}, "hidden_size"),
        ({"hidden_size": True}, "hidden_size"),
        ({"hidden_size": 128.0}, "hidden_size"),
        ({"hidden_size": "128"}, "hidden_size"),
        ({"hidden_size": 2**31}, "hidden_size"),
        ({"moe_intermediate_size": 0}, "moe_intermediate_size"),
        ({"num_experts": None}, "n_routed_experts or num_experts or num_local_experts"),
        ({"num_experts": 0}, "num_experts"),
        ({"num_local_experts": 5}, "num_experts and num_local_experts"),
        ({"num_hidden_layers": -1}, "num_hidden_layers"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"num_experts": 10**6}, "num_experts"),
        ({"decoder_sparse_step": 0}, "decoder_sparse_step"),
        ({"mlp_only_layers": 3}, "mlp_only_layers"),
        ({"mlp_only_layers": [True]}, "mlp_only_layers"),
        ({"mlp_only_layers": [0, 1, 2, 3, 4, 5]}, "num_hidden_layers"),
        ({"quantization_config": {"weight_block_size": [128]}}, "quantization_config.weight_block_size"),
        ({"quantization_config": {"weight_block_size": [0, 128]}}, "quantization_config.weight_block_size"),
    ],
)
def test_keys_at_fault_are_named(change: dict[str, Any], key: str) -> None:
    (message,) = faults(QWEN | change)
    assert message.startswith(f"{key}: ")


def test_every_fault_is_said() -> None:
    assert len(faults({"model_type": "qwen3_moe"})) == 4


def test_no_config() -> None:
    with pytest.raises(Damaged, match=r"config\.json"):
        read_config(None)


@pytest.mark.parametrize("kinds", [["dense"] * 5, ["dense"] * 5 + ["other"], "sparse"])
def test_layer_types_that_fit_no_model(kinds: object) -> None:
    (message,) = faults(DEEPSEEK | {"model_type": "deepseek_v32", "mlp_layer_types": kinds})
    assert message.startswith("mlp_layer_types: ")
