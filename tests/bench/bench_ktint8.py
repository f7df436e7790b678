"""Conversion to kt-int8 beside kt-kernel's own writer.

    python tests/bench/bench_ktint8.py [--rounds N] [--base DIR] [EXPERTS,HIDDEN,INTERMEDIATE …]

Everything runs on two threads with its output in memory, round by round in turn, since a shared machine is
never the same twice; medians and paired ratios are given, by the clock and by processor time, which others on
the machine disturb less. The two sides do not start alike: kt-kernel has its tensors in memory, hwctl reads
them from a safetensors file (in the page cache). ``write`` converts and writes files only; ``publish`` is the
whole of hwctl's publication, with the SHA-256 of every file. Memory is the growth of the peak over what the
process had before. Without kt-kernel its columns stay empty.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import secrets
import shutil
import statistics
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file

sys.path.insert(0, str(Path(__file__).parents[1] / "makers"))
from upstream_writer import KtKernel, installed

from hwctl.core.ktint8_material import from_checkpoint, plan_checkpoint
from hwctl.core.ktint8_target import Target
from hwctl.core.publish_ktint8 import Work, publish
from hwctl.weights.amx import Piece
from hwctl.weights.int8 import one_thread
from hwctl.weights.moe.convert import Converter
from hwctl.weights.moe.crew import crew_of
from hwctl.weights.moe.plan import MoePlan
from hwctl.weights.tensor_reader import TensorReader

THREADS = 2
SHAPES = ["32,2048,768", "3,7168,2048"]
MIB = 1 << 20


def write_inputs(folder: Path, experts: int, hidden: int, intermediate: int) -> None:
    """One layer of random weights, once as a checkpoint and once as kt-kernel takes them."""
    generator = torch.Generator().manual_seed(1)
    shapes = {"gate": (intermediate, hidden), "up": (intermediate, hidden), "down": (hidden, intermediate)}
    stacked = {
        name: (torch.randn(experts, *shape, generator=generator) * 0.02).to(torch.bfloat16)
        for name, shape in shapes.items()
    }
    save_file(stacked, folder / "input.safetensors")
    config = {
        "model_type": "qwen3_moe",
        "hidden_size": hidden,
        "moe_intermediate_size": intermediate,
        "num_experts": experts,
        "num_hidden_layers": 1,
    }
    (model := folder / "model").mkdir()
    (model / "config.json").write_text(json.dumps(config))
    tensors = {
        f"model.layers.0.mlp.experts.{expert}.{name}_proj.weight": matrix[expert].contiguous()
        for name, matrix in stacked.items()
        for expert in range(experts)
    }
    save_file(tensors, model / "model.safetensors")


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds by the clock and of processor time; bytes that the peak of memory rose above the start."""

    seconds: float
    cpu: float
    memory: int


def measured(work: Callable[..., object], *args: object) -> Cost:
    Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    began, used = time.perf_counter(), time.process_time()
    work(*args)
    took = time.perf_counter() - began
    return Cost(took, time.process_time() - used, resident("VmHWM") - before)


def resident(field: str) -> int:
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def convert(plan: MoePlan, folder: Path) -> None:
    """All pieces into files, and nothing else: no digest, no manifest, no sync."""
    folder.mkdir()
    local = threading.local()
    crew = crew_of(plan, THREADS)

    def work(unit: tuple[int, int]) -> None:
        layer, expert = unit
        if not hasattr(local, "converter"):
            local.converter = Converter(plan, tensors, crew.block)
        files: dict[str, int] = {}
        for piece in local.converter.expert(layer, expert):
            name = f"{layer}-{expert}-{piece.part}-{piece.projection}-{piece.kind}"
            if name not in files:
                files[name] = os.open(folder / name, os.O_WRONLY | os.O_CREAT, 0o600)
            write_piece(files[name], piece)
        for fd in files.values():
            os.close(fd)

    with TensorReader(plan.checkpoint) as tensors, one_thread(), ThreadPoolExecutor(crew.workers) as pool:
        list(pool.map(work, [(layer, e) for layer in plan.layers for e in range(plan.geometry.experts)]))


def write_piece(fd: int, piece: Piece) -> None:
    if os.pwrite(fd, piece.data, piece.offset) != piece.data.nbytes:
        raise OSError("short write")


def publish_as(plan: MoePlan, target: Target) -> None:
    with from_checkpoint(plan, target, THREADS) as material:
        publish(material, Work(jobs=THREADS))


def bench(folder: Path, base: Path, rounds: int, upstream: KtKernel | None) -> None:
    plan = plan_checkpoint(folder / "model", 1, None)
    costs: dict[str, list[Cost]] = {"kt-kernel": [], "write": [], "publish": []}
    for _ in range(rounds + 1):
        if upstream is not None:
            before = upstream.ask()["rss"]
            (out := base / "upstream").mkdir()
            request = {"input": str(folder / "input.safetensors"), "layer": 0, "parts": 1}
            answer = upstream.ask(**request, threads=THREADS, out=str(out))
            costs["kt-kernel"].append(Cost(answer["seconds"], answer["cpu"], answer["peak"] - before))
            shutil.rmtree(out)
        costs["write"].append(measured(convert, plan, base / "plain"))
        shutil.rmtree(base / "plain")
        target = Target.ephemeral(base, f"bench-{secrets.token_hex(4)}")
        costs["publish"].append(measured(publish_as, plan, target))
        shutil.rmtree(target.path)
    report(costs)


def report(costs: dict[str, list[Cost]]) -> None:
    """The first round only warms up, and counts for memory alone."""
    for name, found in costs.items():
        if found:
            seconds = statistics.median(cost.seconds for cost in found[1:])
            cpu = statistics.median(cost.cpu for cost in found[1:])
            memory = max(cost.memory for cost in found) / MIB
            print(f"  {name:10}{seconds:8.3f} s{cpu:8.3f} s of processor time{memory:6.0f} MiB more")
    for name, floor in (("write", 1.3), ("publish", 1.15)):
        pairs = list(zip(costs["kt-kernel"][1:], costs[name][1:], strict=False))
        if pairs:
            clock = [other.seconds / own.seconds for other, own in pairs]
            cpu = statistics.median(other.cpu / own.cpu for other, own in pairs)
            spread = f"from {min(clock):.2f} to {max(clock):.2f}"
            median = statistics.median(clock)
            print(f"  {name} is {median:.2f} times as fast ({spread}; floor {floor}), by processor {cpu:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shapes", nargs="*", default=SHAPES, metavar="SHAPE")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--base", type=Path, default=Path("/dev/shm"))
    options = parser.parse_args()
    upstream = KtKernel() if installed() else None
    base = options.base / f"hwctl-bench-{secrets.token_hex(4)}"
    try:
        for shape in options.shapes:
            base.mkdir(mode=0o700)
            (inputs := base / "inputs").mkdir()
            write_inputs(inputs, *map(int, shape.split(",")))
            print(f"{shape}: {(inputs / 'input.safetensors').stat().st_size / 1e6:.0f} MB of bf16")
            bench(inputs, base, options.rounds, upstream)
            shutil.rmtree(base)
    finally:
        shutil.rmtree(base, ignore_errors=True)
        if upstream is not None:
            upstream.close()


if __name__ == "__main__":
    main()
