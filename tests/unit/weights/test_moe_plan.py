"""Which tensors a conversion takes, and everything that can be wrong with them before one is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from hwctl.errors import Damaged, Finding, Unsupported, Usage
from hwctl.weights.amx import Projection
from hwctl.weights.checkpoint import Checkpoint
from hwctl.weights.moe.plan import plan_conversion

HIDDEN, INNER, COUNT = 128, 64, 2
CONFIG: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "hidden_size": HIDDEN,
    "moe_intermediate_size": INNER,
    "num_experts": COUNT,
    "num_hidden_layers": 2,
}
FUSED = CONFIG | {"model_type": "qwen3_5_moe"}
FP8 = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
Tensors = dict[str, torch.Tensor]
WriteMoe = Callable[[dict[str, Any], Tensors], Checkpoint]


def experts(layers: tuple[int, ...] = (0, 1), prefix: str = "model.", hidden: int = HIDDEN) -> Tensors:
    tensors = {}
    for layer in layers:
        for expert in range(COUNT):
            base = f"{prefix}layers.{layer}.mlp.experts.{expert}"
            for name, shape in (
                ("gate", (INNER, hidden)),
                ("up", (INNER, hidden)),
                ("down", (hidden, INNER)),
            ):
                tensors[f"{base}.{name}_proj.weight"] = torch.zeros(shape, dtype=torch.bfloat16)
    return tensors


def fused(hidden: int = HIDDEN, *, input_first: bool = False) -> Tensors:
    tensors = {}
    for layer in range(2):
        base = f"model.language_model.layers.{layer}.mlp.experts"
        shapes = {"gate_up_proj": (COUNT, 2 * INNER, hidden), "down_proj": (COUNT, hidden, INNER)}
        for name, (count, rows, columns) in shapes.items():
            shape = (count, columns, rows) if input_first else (count, rows, columns)
            tensors[f"{base}.{name}"] = torch.zeros(shape, dtype=torch.bfloat16)
    return tensors


def e4m3(tensors: Tensors) -> Tensors:
    out = {}
    for name, tensor in tensors.items():
        blocks = (-(-tensor.shape[-2] // 128), -(-tensor.shape[-1] // 128))
        out[name] = tensor.to(torch.float8_e4m3fn)
        out[f"{name}_scale_inv"] = torch.ones(*tensor.shape[:-2], *blocks)
    return out


def findings(checkpoint: Checkpoint) -> list[Finding]:
    with pytest.raises(Damaged) as caught:
        plan_conversion(checkpoint, 1)
    assert caught.value.findings[0].message in caught.value.message
    return list(caught.value.findings)


def test_every_matrix_is_found(write_moe: WriteMoe) -> None:
    plan = plan_conversion(write_moe(CONFIG, experts()), 1)
    assert plan.layers == (0, 1)
    assert plan.family == "qwen3_moe"
    assert plan.shards == ("model.safetensors",)
    matrix = plan.matrix(1, 1, Projection.DOWN)
    assert (matrix.tensor, matrix.rows, matrix.columns) == (
        "model.layers.1.mlp.experts.1.down_proj.weight",
        HIDDEN,
        INNER,
    )


@pytest.mark.parametrize("prefix", ["model.language_model.", "language_model.model.", "model."])
def test_language_model_is_taken_out_wherever_it_stands(write_moe: WriteMoe, prefix: str) -> None:
    assert plan_conversion(write_moe(CONFIG, experts(prefix=prefix)), 1).layers == (0, 1)


def test_omni_takes_the_thinker_and_leaves_the_talker(write_moe: WriteMoe) -> None:
    text = {"text_config": CONFIG | {"model_type": "qwen3_omni_moe_text"}}
    config = {"model_type": "qwen3_omni_moe", "thinker_config": text}
    tensors = experts(prefix="thinker.model.") | experts((0,), prefix="talker.model.", hidden=256)
    plan = plan_conversion(write_moe(config, tensors), 1)
    assert plan.matrix(0, 0, Projection.UP).tensor == "thinker.model.layers.0.mlp.experts.0.up_proj.weight"


def test_mtp_layers_are_left_out(write_moe: WriteMoe) -> None:
    tensors = experts((0, 1, 2)) | experts((0,), prefix="mtp.", hidden=256)
    tensors["model.layers.2.mlp.experts.0.gate_proj.weight_packed"] = torch.zeros(3)
    assert plan_conversion(write_moe(CONFIG, tensors), 1).layers == (0, 1)


def test_shared_experts_are_no_experts(write_moe: WriteMoe) -> None:
    tensors = experts() | {"model.layers.0.mlp.shared_experts.up_proj.weight": torch.zeros(3, 3)}
    plan_conversion(write_moe(CONFIG, tensors), 1)


def test_some_layers(write_moe: WriteMoe) -> None:
    """What is wrong in the other layers does not matter then."""
    checkpoint = write_moe(CONFIG | {"num_hidden_layers": 5}, experts((1, 3)))
    assert plan_conversion(checkpoint, 1, range(1, 4, 2)).layers == (1, 3)
    with pytest.raises(Usage, match="those that have are 0-4"):
        plan_conversion(checkpoint, 1, {7})


def test_a_missing_layer(write_moe: WriteMoe) -> None:
    (finding,) = findings(write_moe(CONFIG, experts((0,))))
    assert finding.code == "missing-layer"
    assert "model.layers.1.mlp.experts" in finding.message


def test_a_missing_tensor(write_moe: WriteMoe) -> None:
    tensors = experts()
    del tensors["model.layers.1.mlp.experts.0.up_proj.weight"]
    (finding,) = findings(write_moe(CONFIG, tensors))
    assert finding.code == "missing-tensor"
    assert "model.layers.1.mlp.experts.0.up_proj.weight" in finding.message


def test_gaps_among_the_experts(write_moe: WriteMoe) -> None:
    """Experts 1 and 3 are not experts 0 and 1."""
    tensors = {name.replace("experts.1.", "experts.3."): tensor for name, tensor in experts().items()}
    codes = sorted(finding.code for finding in findings(write_moe(CONFIG, tensors)))
    assert codes == ["missing-tensor"] * 6 + ["tensor-unexpected"] * 6


def test_more_experts_than_promised(write_moe: WriteMoe) -> None:
    codes = {finding.code for finding in findings(write_moe(CONFIG | {"num_experts": 1}, experts()))}
    assert codes == {"tensor-unexpected"}


def test_experts_in_a_dense_layer(write_moe: WriteMoe) -> None:
    found = findings(write_moe(CONFIG | {"mlp_only_layers": [1]}, experts()))
    assert {finding.code for finding in found} == {"tensor-unexpected"}
    assert len(found) == 6


def test_one_matrix_under_two_names(write_moe: WriteMoe) -> None:
    tensors = experts()
    tensors["model.language_model.layers.0.mlp.experts.0.up_proj.weight"] = torch.zeros(INNER, HIDDEN)
    (finding,) = findings(write_moe(CONFIG, tensors))
    assert finding.code == "tensor-ambiguous"


def test_a_tensor_of_another_shape(write_moe: WriteMoe) -> None:
    tensors = experts()
    tensors["model.layers.0.mlp.experts.1.down_proj.weight"] = torch.zeros(INNER, HIDDEN)
    (finding,) = findings(write_moe(CONFIG, tensors))
    assert (finding.code, finding.file) == ("tensor-shape", "model.safetensors")
    assert (finding.expected, finding.actual) == ([HIDDEN, INNER], [INNER, HIDDEN])


def test_a_flood_of_findings_is_capped(write_moe: WriteMoe) -> None:
    """A config.json that promises millions of tensors costs neither the time nor the memory of saying so."""
    found = findings(write_moe(CONFIG | {"num_experts": 60000, "num_hidden_layers": 9999}, experts()))
    assert len(found) == 101
    assert found[-1].message == f"and at least {3 * 59998 - 100} more"


@pytest.mark.parametrize(
    "suffix", ["0.up_proj.bias", "0.up_proj.weight_packed", "0.up_proj.weight_scale", "bias"]
)
def test_experts_stored_in_another_form(write_moe: WriteMoe, suffix: str) -> None:
    name = f"model.layers.0.mlp.experts.{suffix}"
    with pytest.raises(Unsupported, match=name.replace(".", r"\.")):
        plan_conversion(write_moe(CONFIG, experts() | {name: torch.zeros(3)}), 1)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float64, torch.float8_e5m2])
def test_dtypes_that_cannot_be_converted(write_moe: WriteMoe, dtype: torch.dtype) -> None:
    tensors = experts()
    name = "model.layers.0.mlp.experts.1.down_proj.weight"
    tensors[name] = tensors[name].to(dtype)
    with pytest.raises(Unsupported, match=name.replace(".", r"\.")):
        plan_conversion(write_moe(CONFIG, tensors), 1)


def test_e4m3(write_moe: WriteMoe) -> None:
    plan = plan_conversion(write_moe(CONFIG | FP8, e4m3(experts())), 1)
    matrix = plan.matrix(0, 0, Projection.GATE)
    assert matrix.scales == f"{matrix.tensor}_scale_inv"
    assert (matrix.block, matrix.scale_shape) == ((128, 128), (1, 1))


def test_e4m3_without_a_stated_block(write_moe: WriteMoe) -> None:
    found = findings(write_moe(CONFIG, e4m3(experts())))
    assert {(finding.code, finding.file) for finding in found} == {("config-key", "config.json")}
    assert "quantization_config.weight_block_size" in found[0].message


def test_scales_of_another_shape(write_moe: WriteMoe) -> None:
    tensors = e4m3(experts())
    name = "model.layers.0.mlp.experts.0.down_proj.weight_scale_inv"
    tensors[name] = torch.ones(2, 1)
    (finding,) = findings(write_moe(CONFIG | FP8, tensors))
    assert finding.code == "tensor-shape"
    assert name in finding.message


def test_scales_of_another_dtype(write_moe: WriteMoe) -> None:
    tensors = e4m3(experts())
    name = "model.layers.0.mlp.experts.0.down_proj.weight_scale_inv"
    tensors[name] = tensors[name].half()
    with pytest.raises(Unsupported, match="F16"):
        plan_conversion(write_moe(CONFIG | FP8, tensors), 1)


def test_scales_beside_plain_weights(write_moe: WriteMoe) -> None:
    name = "model.layers.0.mlp.experts.0.down_proj.weight_scale_inv"
    (finding,) = findings(write_moe(CONFIG, experts() | {name: torch.ones(1, 1)}))
    assert finding.code == "tensor-unexpected"
    assert name in finding.message


def test_fused(write_moe: WriteMoe) -> None:
    plan = plan_conversion(write_moe(FUSED, fused()), 1)
    up = plan.matrix(1, 1, Projection.UP)
    assert (up.tensor, up.expert, up.origin) == (
        "model.language_model.layers.1.mlp.experts.gate_up_proj",
        1,
        (INNER, 0),
    )
    assert not plan.transposes


def test_fused_input_first(write_moe: WriteMoe) -> None:
    config = FUSED | {"model_type": "qwen3_vl_moe"}
    plan = plan_conversion(write_moe(config, fused(input_first=True)), 1)
    up = plan.matrix(1, 1, Projection.UP)
    assert (up.slab, up.origin, up.transposed) == ((HIDDEN, 2 * INNER), (0, INNER), True)
    assert up.position(3, 5) == f"[1, 5, {INNER + 3}]"
    assert plan.transposes


def test_fused_against_the_family(write_moe: WriteMoe) -> None:
    """The library saves them so. HIDDEN is twice INNER: gate and up look right either way, down tells."""
    plan = plan_conversion(write_moe(FUSED, fused(input_first=True)), 1)
    assert plan.matrix(0, 0, Projection.GATE).transposed


def test_fused_one_way_round_each(write_moe: WriteMoe) -> None:
    tensors = fused(192)
    for layer in range(2):
        name = f"model.language_model.layers.{layer}.mlp.experts.down_proj"
        tensors[name] = tensors[name].transpose(1, 2)
    found = findings(write_moe(FUSED | {"hidden_size": 192}, tensors))
    assert [finding.code for finding in found] == ["tensor-shape"] * 2
    assert "down_proj" in found[0].message


@pytest.mark.parametrize("model_type", [None, "qwen3_moe"])
def test_fused_either_way_round(write_moe: WriteMoe, model_type: str | None) -> None:
    with pytest.raises(Unsupported, match="either way round"):
        plan_conversion(write_moe(FUSED | {"model_type": model_type}, fused()), 1)


@pytest.mark.parametrize("input_first", [False, True])
def test_fused_told_by_the_shape(write_moe: WriteMoe, input_first: bool) -> None:
    config = FUSED | {"model_type": None, "hidden_size": 192}
    plan = plan_conversion(write_moe(config, fused(192, input_first=input_first)), 1)
    assert plan.matrix(0, 0, Projection.DOWN).transposed is input_first


def test_fused_without_down(write_moe: WriteMoe) -> None:
    tensors = {name: tensor for name, tensor in fused().items() if "down" not in name}
    found = findings(write_moe(FUSED, tensors))
    assert [finding.code for finding in found] == ["missing-tensor"] * 2
    assert "model.layers.0.mlp.experts.down_proj" in found[0].message


def test_fused_of_another_expert_count(write_moe: WriteMoe) -> None:
    assert {finding.code for finding in findings(write_moe(FUSED | {"num_experts": 3}, fused()))} == {
        "tensor-shape"
    }


def test_fused_beside_single(write_moe: WriteMoe) -> None:
    found = findings(write_moe(FUSED, fused() | experts((0,))))
    assert [finding.code for finding in found] == ["tensor-unexpected"]


def test_fused_e4m3(write_moe: WriteMoe) -> None:
    plan = plan_conversion(write_moe(FUSED | FP8, e4m3(fused())), 1)
    up = plan.matrix(0, 1, Projection.UP)
    assert (up.scales, up.scale_shape) == (f"{up.tensor}_scale_inv", (1, 1))


def test_the_shape_rule_comes_before_the_tensors(write_moe: WriteMoe) -> None:
    with pytest.raises(Usage, match="3 parts"):
        plan_conversion(write_moe(CONFIG, {"nothing": torch.zeros(1)}), 3)
