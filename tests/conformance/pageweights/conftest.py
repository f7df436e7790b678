"""Makes the cases of the page cache importable, and builds one of them in a fresh folder."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import cases_around
import cases_artifact
import cases_changes
import cases_records
from pagecase import CASES, Ctx

REGISTERED = (cases_records, cases_artifact, cases_around, cases_changes)
EXPECTED = json.loads((Path(__file__).parents[2] / "data/pageweights/expected.json").read_bytes())["cases"]


@pytest.fixture
def expected() -> dict[str, Any]:
    """What was recorded of the original, and what hwctl has to answer, by case id."""
    return EXPECTED


@pytest.fixture
def build(tmp_path: Path) -> Iterator[Callable[[str, str], Ctx]]:
    """Builds a case by its id in a folder of its own."""
    made: list[Ctx] = []

    def built(case_id: str, folder: str = "case") -> Ctx:
        case = CASES[case_id]
        if "root" in case.needs and os.geteuid() != 0:
            pytest.skip("only root can build this case")
        ctx = Ctx(tmp_path / folder, case)
        made.append(ctx)
        ctx.apply()
        return ctx

    yield built
    for ctx in made:
        ctx.close()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """``load_case``, ``publish_case`` and ``evict_case`` run over all cases of that operation."""
    for op in ("load", "publish", "evict"):
        if f"{op}_case" in metafunc.fixturenames:
            metafunc.parametrize(f"{op}_case", [name for name, case in CASES.items() if case.op == op])
