"""Every published byte case, and every checkpoint that must be refused before a byte is written.

The expected bytes were written by kt-kernel's own writer. Each case runs in both floating-point modes,
since importing kt_kernel leaves a thread flushing subnormals.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ktinputs
import pytest
import refusals
import torch
from safetensors.torch import load_file

from hwctl.errors import Damaged, HwctlError, Unsupported, Usage
from hwctl.weights.amx_content import ContentCheck
from hwctl.weights.checkpoint import open_checkpoint
from hwctl.weights.moe.convert import Converter
from hwctl.weights.moe.crew import crew_of
from hwctl.weights.moe.plan import plan_conversion
from hwctl.weights.tensor_reader import TensorReader

GOLDEN = Path(__file__).parents[2] / "data/ktint8/golden"
CASES: list[dict[str, Any]] = json.loads((GOLDEN / "cases.json").read_bytes())["cases"]


@pytest.fixture(params=[False, True], ids=["plain", "flushing"])
def floating_point_mode(request: pytest.FixtureRequest) -> Iterator[None]:
    torch.set_flush_denormal(request.param)
    yield
    torch.set_flush_denormal(False)


def convert(folder: Path, parts: int) -> dict[str, bytes]:
    """Path below the root -> bytes, named here and not by the store's own code."""
    plan = plan_conversion(open_checkpoint(folder), parts)
    files: dict[str, bytearray] = {}
    with TensorReader(plan.checkpoint) as tensors:
        converter = Converter(plan, tensors, crew_of(plan, 1).block)
        for layer in plan.layers:
            for expert in range(plan.geometry.experts):
                for piece in converter.expert(layer, expert):
                    stem = f"_layer_{layer}/_numa_{piece.part}/INT8_{piece.projection}_{expert}_"
                    file = files.setdefault(f"{stem}|{piece.kind}", bytearray())
                    assert len(file) == piece.offset
                    file += piece.data
    return {
        f"{stem}{len(data)}Byte_{kind}_.kt": bytes(data)
        for (stem, kind), data in ((name.split("|"), data) for name, data in files.items())
    }


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_bytes(case: dict[str, Any], tmp_path: Path, floating_point_mode: None) -> None:
    folder = GOLDEN / case["id"]
    if case.get("generated"):
        ktinputs.write_checkpoint(case, folder := tmp_path / "model")
    made = convert(folder, case["numa"])
    assert {name: [len(data), hashlib.sha256(data).hexdigest()] for name, data in made.items()} == case[
        "files"
    ]
    if not case.get("generated"):
        expected = load_file(GOLDEN / "expected" / f"{case['id']}.safetensors")
        assert made == {name: data.numpy().tobytes() for name, data in expected.items()}


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_content_rules_hold(case: dict[str, Any], tmp_path: Path) -> None:
    if case.get("generated"):
        ktinputs.write_checkpoint(case, tmp_path / "model")
        files = convert(tmp_path / "model", case["numa"])
    else:
        expected = load_file(GOLDEN / "expected" / f"{case['id']}.safetensors")
        files = {name: data.numpy().tobytes() for name, data in expected.items()}
    check = ContentCheck()
    for name, quant in files.items():
        if not name.endswith("_quant_.kt"):
            continue
        rows = len(quant) // columns_of(case, name)
        scales = files[name.replace(f"{len(quant)}Byte_quant", f"{4 * rows}Byte_scale")]
        stretch = check.start(rows, len(quant) // rows)
        for begin in range(0, len(quant), stretch):
            check.feed(bytearray(quant[begin : begin + stretch]))
        assert check.finish(scales) == ()


def columns_of(case: dict[str, Any], name: str) -> int:
    columns: int = case["intermediate"] // case["numa"] if "_down_" in name else case["hidden"]
    return columns


REFUSALS = {
    "r-nan": (Damaged, "model.layers.0.mlp.experts.1.up_proj.weight[5, 9]"),
    "r-width-96": (Unsupported, "96"),
    "r-parts": (Usage, "3 parts"),
    "r-fewer-experts": (Damaged, "model.layers.0.mlp.experts.2.gate_proj.weight"),
    "r-truncated-shard": (Damaged, "model-00002-of-00002.safetensors"),
    "r-swapped-sizes": (Damaged, "model.layers.0.mlp.experts.0.gate_proj.weight"),
    "r-fp8-no-scale": (Damaged, "model.layers.0.mlp.experts.0.down_proj.weight_scale_inv"),
    "r-one-odd-shape": (Damaged, "model.layers.0.mlp.experts.1.up_proj.weight"),
    "r-no-experts": (Damaged, "model.layers.0.mlp.experts"),
}


@pytest.mark.parametrize("case", refusals.cases.values(), ids=list(refusals.cases))
def test_refusal(case: dict[str, Any], tmp_path: Path) -> None:
    case["build"](tmp_path / "model")
    if case["want"] == "refuse or right bytes":
        assert convert(tmp_path / "model", case["numa"]) == right_bytes(case["id"], tmp_path)
        return
    with pytest.raises(HwctlError) as caught:
        convert(tmp_path / "model", case["numa"])
    status, named = REFUSALS[case["id"]]
    assert type(caught.value) is status
    assert named in caught.value.message
    if isinstance(caught.value, Damaged):
        assert any(named in (finding.file or "") + finding.message for finding in caught.value.findings)


def right_bytes(case_id: str, tmp_path: Path) -> dict[str, bytes]:
    """What the same weights give in the form that has a golden case of its own."""
    plain = dict(refusals.BASE)
    if case_id == "r-fp8-block":
        plain |= {"hidden": 128, "intermediate": 128, "dtype": "fp8"}
    ktinputs.write_checkpoint(plain, tmp_path / "plain")
    return convert(tmp_path / "plain", 1)
