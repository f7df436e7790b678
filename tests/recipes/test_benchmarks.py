"""The benchmarks run, and the README's figures are theirs.

A sample of each, since a script that nobody runs breaks unseen. How fast anything is says nothing on a shared
machine: whether the README's figures still hold is for ``tests/bench/readme_figures.py`` to find out by hand.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest

from hwctl.weights.torch_here import torch_loads

BENCH = Path(__file__).parents[1] / "bench"
SAMPLES: dict[str, Sequence[str]] = {
    "bench_hostweights.py": ["/dev/shm", "--mib", "16", "--tensors", "200", "--shards", "8", "--rounds", "1"],
    "bench_ktint8.py": ["--base", "FOLDER", "--rounds", "1"],
    "bench_ktint8_verify.py": ["--base", "FOLDER", "--rounds", "1"],
    "bench_ktint8_store.py": ["--base", "FOLDER", "--files", "300"],
    "bench_pageweights.py": ["FOLDER", "1", "20"],
    "bench_startup.py": ["--rounds", "1"],
    "bench_lifecycle.py": ["--folder", "FOLDER", "--counts", "2", "4", "6", "--trees", "5", "--files", "600"],
}
OWN_PEERS = {"bench_hostweights.py": "vllm_omni", "bench_ktint8.py": "kt_kernel"}


@pytest.fixture(scope="module")
def figures() -> ModuleType:
    spec = importlib.util.spec_from_file_location("readme_figures", BENCH / "readme_figures.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["readme_figures"] = module
    spec.loader.exec_module(module)
    return module


def test_every_command_of_the_readme_is_measured(figures: ModuleType) -> None:
    named = re.findall(r"`(?:python tests/bench/)?(bench_\w+\.py)[^`]*`", figures.readme())
    assert set(named) == set(SAMPLES)
    assert {command.split()[0] for command in figures.FIGURES} <= set(named)


def test_every_figure_stands_in_the_readme(figures: ModuleType) -> None:
    text = figures.readme()
    missing = [
        figure.readme
        for found in figures.FIGURES.values()
        for figure in found
        if figures.number(figure.readme, text) is None
    ]
    assert not missing


@pytest.mark.parametrize("script", sorted(SAMPLES))
def test_a_sample_prints_every_figure(script: str, figures: ModuleType, tmp_path: Path) -> None:
    if not torch_loads():
        pytest.skip("torch is not installed")
    peer = OWN_PEERS.get(script)
    if peer is not None and importlib.util.find_spec(peer) is None:
        pytest.skip(f"{peer} is not installed")
    words = [str(tmp_path) if word == "FOLDER" else word for word in SAMPLES[script]]
    env = os.environ | {"PYTHONPATH": str(BENCH.parents[1])}
    command = [sys.executable, str(BENCH / script), *words]
    run = subprocess.run(command, capture_output=True, text=True, env=env, timeout=300)
    assert run.returncode in (0, 1), run.stderr  # 1: a floor was missed
    assert "Traceback" not in run.stderr
    for command_, found in figures.FIGURES.items():
        if command_.split()[0] == script:
            for figure in found:
                assert figures.number(figure.output, run.stdout) is not None, (figure.output, run.stdout)


@pytest.mark.parametrize(("script", "size"), [("fs_digest.py", "1"), ("fs_remove.py", "600")])
def test_the_benchmarks_of_one_module_run(script: str, size: str, tmp_path: Path) -> None:
    env = os.environ | {"PYTHONPATH": str(BENCH.parents[1])}
    command = [sys.executable, str(BENCH / script), str(tmp_path), size]
    run = subprocess.run(command, capture_output=True, text=True, env=env, timeout=300)
    assert run.returncode == 0 and run.stdout, run.stderr
