"""The place in which a recipe runs."""

from __future__ import annotations

from pathlib import Path

import pytest
import recipes


@pytest.fixture
def place(tmp_path: Path) -> recipes.Place:
    return recipes.make_place(tmp_path)
