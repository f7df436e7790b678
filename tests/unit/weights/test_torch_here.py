"""Whether torch loads, asked by several workers at once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ASK = """
from concurrent.futures import ThreadPoolExecutor
from hwctl.weights.torch_here import torch_loads
with ThreadPoolExecutor(8) as pool:
    print(*{future.result() for future in [pool.submit(torch_loads) for _ in range(8)]})
"""


@pytest.mark.parametrize("fault", ["ImportError('no torch')", "OSError('libgomp.so.1: no such file')"])
def test_all_workers_hear_that_torch_cannot_be_loaded(tmp_path: Path, fault: str) -> None:
    """Without a lock all but the first are handed the module that the failing import has begun."""
    (tmp_path / "torch.py").write_text(f"import time; time.sleep(0.3); raise {fault}")
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[3])])
    run = subprocess.run(
        [sys.executable, "-c", ASK], env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True
    )
    assert (run.stdout, run.stderr) == ("False\n", "")
