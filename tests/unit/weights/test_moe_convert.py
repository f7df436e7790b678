"""From every stored form to the same bytes, and what is said of weights that are no numbers."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
import torch

from hwctl.errors import Damaged, Refused
from hwctl.weights import amx
from hwctl.weights.amx import Kind, Projection
from hwctl.weights.checkpoint import Checkpoint
from hwctl.weights.int8 import Quantiser
from hwctl.weights.moe import rows
from hwctl.weights.moe.convert import Converter
from hwctl.weights.moe.crew import LARGEST_BLOCK, MEMORY_LIMIT, SMALLEST_BLOCK, Crew, crew_of, worker_bytes
from hwctl.weights.moe.plan import MoePlan, plan_conversion
from hwctl.weights.tensor_reader import TensorReader

HIDDEN, INNER, COUNT = 192, 384, 2
CONFIG: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "hidden_size": HIDDEN,
    "moe_intermediate_size": INNER,
    "num_experts": COUNT,
    "num_hidden_layers": 1,
}
SHAPES = {Projection.GATE: (INNER, HIDDEN), Projection.UP: (INNER, HIDDEN), Projection.DOWN: (HIDDEN, INNER)}
BASE = "model.layers.0.mlp.experts"
Tensors = dict[str, torch.Tensor]
WriteMoe = Callable[[dict[str, Any], Tensors], Checkpoint]
Files = dict[tuple[int, int, Projection, Kind], bytes]


def matrices(dtype: torch.dtype = torch.bfloat16) -> dict[tuple[int, Projection], torch.Tensor]:
    return {(e, p): torch.randn(SHAPES[p]).to(dtype) for e in range(COUNT) for p in Projection}


def single(plain: dict[tuple[int, Projection], torch.Tensor]) -> Tensors:
    return {f"{BASE}.{e}.{p}_proj.weight": matrix for (e, p), matrix in plain.items()}


def fused(plain: dict[tuple[int, Projection], torch.Tensor], *, input_first: bool) -> Tensors:
    gate_up = [torch.cat([plain[e, Projection.GATE], plain[e, Projection.UP]]) for e in range(COUNT)]
    down = [plain[e, Projection.DOWN] for e in range(COUNT)]
    stacks = {"gate_up_proj": torch.stack(gate_up), "down_proj": torch.stack(down)}
    return {f"{BASE}.{n}": s.transpose(1, 2) if input_first else s for n, s in stacks.items()}


def expected(plain: dict[tuple[int, Projection], torch.Tensor], parts: int) -> Files:
    """The same matrices, cut into parts and converted one by one, without a checkpoint."""
    files: Files = {}
    for (expert, projection), matrix in plain.items():
        for part, piece in enumerate(matrix.chunk(parts, 1 if projection is Projection.DOWN else 0)):
            block = piece.to(torch.bfloat16).contiguous()
            codes, scales = torch.empty(block.shape, dtype=torch.int8), torch.empty(block.shape[0])
            Quantiser().quantise(block, codes, scales)
            packed = torch.empty(codes.numel(), dtype=torch.int8)
            amx.Packing(codes, packed).pack()
            files[expert, part, projection, Kind.QUANT] = packed.numpy().tobytes()
            files[expert, part, projection, Kind.SCALE] = scales.numpy().tobytes()
    return files


def convert(plan: MoePlan, block: int = LARGEST_BLOCK) -> Files:
    files: dict[tuple[int, int, Projection, Kind], bytearray] = {}
    with TensorReader(plan.checkpoint) as tensors:
        converter = Converter(plan, tensors, block)
        for expert in range(plan.geometry.experts):
            for piece in converter.expert(0, expert):
                file = files.setdefault((expert, piece.part, piece.projection, piece.kind), bytearray())
                assert piece.offset == len(file)
                file += piece.data
    return {key: bytes(data) for key, data in files.items()}


@pytest.mark.parametrize("parts", [1, 2, 3, 6])
def test_parts(write_moe: WriteMoe, parts: int) -> None:
    plain = matrices()
    assert convert(plan_conversion(write_moe(CONFIG, single(plain)), parts)) == expected(plain, parts)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_other_dtypes_are_rounded_to_bf16(write_moe: WriteMoe, dtype: torch.dtype) -> None:
    plain = matrices(dtype)
    assert convert(plan_conversion(write_moe(CONFIG, single(plain)), 2)) == expected(plain, 2)


def test_every_tensor_has_its_own_dtype(write_moe: WriteMoe) -> None:
    plain = matrices()
    plain[1, Projection.UP] = plain[1, Projection.UP].float()
    assert convert(plan_conversion(write_moe(CONFIG, single(plain)), 1)) == expected(plain, 1)


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("input_first", [False, True])
@pytest.mark.parametrize("stripe", [rows.STRIPE_ELEMENTS, 64 * HIDDEN], ids=["one stripe", "many"])
def test_fused(
    write_moe: WriteMoe, monkeypatch: pytest.MonkeyPatch, input_first: bool, parts: int, stripe: int
) -> None:
    monkeypatch.setattr(rows, "STRIPE_ELEMENTS", stripe)
    plain = matrices()
    config = CONFIG | {"model_type": "qwen3_vl_moe" if input_first else "qwen3_5_moe"}
    checkpoint = write_moe(config, fused(plain, input_first=input_first))
    assert convert(plan_conversion(checkpoint, parts), 1 << 14) == expected(plain, parts)


def quantised_fp8(
    shape: tuple[int, ...], block: tuple[int, int]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(codes, scales, what they stand for) of one or several slabs, blocks cut in each from its beginning."""
    codes = torch.randint(0, 0x7F, shape, dtype=torch.uint8)
    codes |= torch.randint(0, 2, shape, dtype=torch.uint8) << 7
    blocks = -(-shape[-2] // block[0]), -(-shape[-1] // block[1])
    scales = torch.rand(*shape[:-2], *blocks) * 0.01 + 0.001
    full = scales.repeat_interleave(block[0], -2)[..., : shape[-2], :]
    full = full.repeat_interleave(block[1], -1)[..., : shape[-1]]
    stored = codes.view(torch.float8_e4m3fn)
    return stored, scales, (stored.float() * full).to(torch.bfloat16)


@pytest.mark.parametrize("block", [(128, 128), (64, 96)])
@pytest.mark.parametrize("parts", [1, 2])
def test_e4m3_blocks_are_cut_per_matrix(write_moe: WriteMoe, block: tuple[int, int], parts: int) -> None:
    """192 rows are one block and a half: the second expert begins a block of its own."""
    tensors, plain = {}, {}
    for expert in range(COUNT):
        for projection in Projection:
            name = f"{BASE}.{expert}.{projection}_proj.weight"
            stored = quantised_fp8(SHAPES[projection], block)
            tensors[name], tensors[f"{name}_scale_inv"], plain[expert, projection] = stored
    config = CONFIG | {"quantization_config": {"quant_method": "fp8", "weight_block_size": list(block)}}
    assert convert(plan_conversion(write_moe(config, tensors), parts)) == expected(plain, parts)


@pytest.mark.parametrize("input_first", [False, True])
def test_fused_e4m3(write_moe: WriteMoe, input_first: bool) -> None:
    tensors, plain = {}, {}
    ends = {"gate_up_proj": (2 * INNER, HIDDEN), "down_proj": (HIDDEN, INNER)}
    for name, (down, across) in ends.items():
        shape = (COUNT, across, down) if input_first else (COUNT, down, across)
        stored, scales, values = quantised_fp8(shape, (128, 128))
        tensors[f"{BASE}.{name}"], tensors[f"{BASE}.{name}_scale_inv"] = stored, scales
        for expert, slab in enumerate(values.transpose(1, 2) if input_first else values):
            if name == "down_proj":
                plain[expert, Projection.DOWN] = slab
            else:
                plain[expert, Projection.GATE], plain[expert, Projection.UP] = slab[:INNER], slab[INNER:]
    config = CONFIG | {"model_type": "qwen3_vl_moe" if input_first else "qwen3_5_moe"}
    config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    assert convert(plan_conversion(write_moe(config, tensors), 2)) == expected(plain, 2)


def refused(plan: MoePlan) -> str:
    with pytest.raises(Damaged) as caught:
        convert(plan)
    (finding,) = caught.value.findings
    assert (finding.code, finding.file) == ("not-finite", "model.safetensors")
    assert finding.message == caught.value.message
    return finding.message


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("projection", list(Projection))
def test_nan_is_named_by_tensor_and_position(write_moe: WriteMoe, projection: Projection, parts: int) -> None:
    plain = matrices()
    plain[1, projection][150, 190] = float("nan")
    message = refused(plan_conversion(write_moe(CONFIG, single(plain)), parts))
    assert message.startswith(f"{BASE}.1.{projection}_proj.weight[150, 190]: NaN")


@pytest.mark.parametrize("input_first", [False, True])
def test_infinity_in_a_fused_tensor(write_moe: WriteMoe, input_first: bool) -> None:
    plain = matrices()
    plain[1, Projection.UP][150, 190] = float("-inf")
    config = CONFIG | {"model_type": "qwen3_vl_moe" if input_first else "qwen3_5_moe"}
    message = refused(plan_conversion(write_moe(config, fused(plain, input_first=input_first)), 2))
    position = f"[1, 190, {INNER + 150}]" if input_first else f"[1, {INNER + 150}, 190]"
    assert message.startswith(f"{BASE}.gate_up_proj{position}: infinity")


def test_what_only_bf16_cannot_hold(write_moe: WriteMoe) -> None:
    plain = matrices(torch.float32)
    plain[0, Projection.GATE][3, 4] = 3.4e38
    assert "gate_proj.weight[3, 4]: infinity" in refused(plan_conversion(write_moe(CONFIG, single(plain)), 1))


@pytest.mark.parametrize(("code", "scale", "what"), [(0x7F, 1.0, "NaN"), (0x38, float("inf"), "infinity")])
def test_e4m3_that_is_no_number(write_moe: WriteMoe, code: int, scale: float, what: str) -> None:
    tensors = {}
    for name, matrix in single(matrices()).items():
        tensors[name] = torch.full(matrix.shape, 0x38, dtype=torch.uint8).view(torch.float8_e4m3fn)
        tensors[f"{name}_scale_inv"] = torch.ones(-(-matrix.shape[0] // 128), -(-matrix.shape[1] // 128))
    name = f"{BASE}.0.up_proj.weight"
    tensors[name].view(torch.uint8)[200, 130] = code
    tensors[f"{name}_scale_inv"][1, 1] = scale
    config = CONFIG | {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    message = refused(plan_conversion(write_moe(config, tensors), 1))
    position = "[200, 130]" if what == "NaN" else "[128, 128]"
    assert message.startswith(f"{name}{position}: {what}")


def test_a_source_that_changes(write_moe: WriteMoe) -> None:
    plan = plan_conversion(write_moe(CONFIG, single(matrices())), 1)
    os.utime(plan.checkpoint.shards[0].path, ns=(1, 1))
    with pytest.raises(Refused, match="changed"):
        convert(plan)


def test_memory_bounds_the_workers_and_their_blocks(write_moe: WriteMoe) -> None:
    """Few workers take large blocks, many take small ones, and never more of them than memory allows."""
    plan = plan_conversion(write_moe(CONFIG, single(matrices())), 1)
    assert crew_of(plan, 2) == Crew(2, LARGEST_BLOCK)
    blocks = [crew_of(plan, jobs).block for jobs in range(1, 40)]
    assert blocks == sorted(blocks, reverse=True)
    many = crew_of(plan, 1000)
    assert SMALLEST_BLOCK <= many.block < 2 * SMALLEST_BLOCK and many.workers > 20
    for jobs in (1, 3, 8, 20, 1000):
        crew = crew_of(plan, jobs)
        assert crew.workers <= jobs
        assert crew.workers * worker_bytes(plan, crew.block) <= MEMORY_LIMIT


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("layout", ["single", "fused", "turned"])
def test_a_worker_holds_no_more_than_it_is_counted_for(
    write_moe: WriteMoe, dtype: torch.dtype, parts: int, layout: str
) -> None:
    """No buffer that was given up for a larger one is kept by a view of it either."""
    plain = matrices(dtype)
    if layout == "single":
        checkpoint = write_moe(CONFIG, single(plain))
    else:
        turned = layout == "turned"
        config = CONFIG | {"model_type": "qwen3_vl_moe" if turned else "qwen3_5_moe"}
        checkpoint = write_moe(config, fused(plain, input_first=turned))
    plan = plan_conversion(checkpoint, parts)
    block = 64 * max(HIDDEN, INNER)
    with TensorReader(plan.checkpoint) as tensors:
        converter = Converter(plan, tensors, block)
        tracemalloc.start()
        try:
            for expert in range(plan.geometry.experts):
                for _ in converter.expert(0, expert):
                    pass
            held, _peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert 0 < converter.memory <= worker_bytes(plan, block)
    assert held < converter.memory + (64 << 10)
