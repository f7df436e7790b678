"""Makes the cases of host weight stores importable, and builds one of them in a fresh folder."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import hw_cases_entry
import hw_cases_manifest
import hw_cases_payload
import hw_cases_store
import hw_engine
import hw_operations
import hw_store

REGISTERED = (hw_cases_store, hw_cases_entry, hw_cases_manifest, hw_cases_payload, hw_operations)
EXPECTED = json.loads((Path(__file__).parents[2] / "data/hostweights/expected.json").read_bytes())


@pytest.fixture
def expected() -> dict[str, Any]:
    """What was recorded of vLLM-Omni: verdicts by case, results by operation, keys by vector."""
    return EXPECTED


@pytest.fixture
def build(tmp_path: Path) -> Iterator[Callable[..., hw_store.Store]]:
    """Builds a case or an operation in a folder of its own."""
    made: list[Path] = []

    def built(case: hw_engine.Case | hw_engine.Operation, folder: str = "case") -> hw_store.Store:
        made.append(tmp_path / folder)
        return hw_engine.build_case(case, tmp_path / folder)

    yield built
    for directory in made:
        hw_store.force_remove(directory)
