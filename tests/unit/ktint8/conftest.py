"""Trees for the unit tests: the builders of the conformance cases, written from the format alone."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "conformance/ktint8"))


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = tmp_path / "base"
    folder.mkdir(mode=0o700)
    return folder
