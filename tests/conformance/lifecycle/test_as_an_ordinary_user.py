"""The whole suite once more as uid 65534: what root may do proves nothing for those who are not root."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import pytest
from run_hwctl import NOBODY, environment, interpreter


@pytest.mark.skipif(os.geteuid() != 0, reason="this run is an ordinary user's already")
@pytest.mark.parametrize("name", ["test_steps.py", "test_verbs.py"])
def test_as_an_ordinary_user(name: str) -> None:
    suite = Path(__file__).with_name(name)
    with tempfile.TemporaryDirectory(prefix="hwctl-test-") as folder:
        os.chown(folder, NOBODY, NOBODY)
        words = ["-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--basetemp={folder}/base"]
        done = subprocess.run(
            [interpreter(NOBODY), *words, f"--rootdir={suite.parents[3]}", str(suite)],
            env=environment({"HOME": folder, "PYTHONDONTWRITEBYTECODE": "1"} | _strictness()),
            user=NOBODY,
            group=NOBODY,
            extra_groups=[],
            cwd=suite.parents[3],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


def _strictness() -> dict[str, str]:
    """Where a skip is a failure it is one in there too, which ``environment`` would not hand on."""
    name = "HWCTL_TESTS_MUST_RUN"
    return {name: os.environ[name]} if name in os.environ else {}
