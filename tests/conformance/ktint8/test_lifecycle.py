"""Every published lifecycle case: the verdict wanted of hwctl, and nothing changed where it refuses."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ktroot
import mutations
import pytest
from operations import OPERATIONS

from hwctl.errors import HwctlError

DATA = Path(__file__).parents[2] / "data/ktint8/lifecycle"
VERDICTS: dict[str, dict[str, Any]] = {
    case["id"]: case for case in json.loads((DATA / "verdicts.json").read_bytes())["cases"]
}


@pytest.fixture
def base(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "base"
    folder.mkdir(mode=0o700)
    yield folder
    ktroot.release_locks()


def test_the_cases_are_all_there() -> None:
    assert len(VERDICTS) == 93
    assert set(VERDICTS) == set(mutations.cases)
    for case_id, case in mutations.cases.items():
        assert VERDICTS[case_id]["hwctl"] == case["hwctl"]


@pytest.mark.parametrize("case", mutations.cases.values(), ids=list(mutations.cases))
def test_verdict(case: dict[str, Any], base: Path) -> None:
    if case["needs_root"] and os.getuid() != 0:
        pytest.skip("only root can build this case")
    root = case["build"](base)
    before = ktroot.snapshot(base)
    try:
        verdict = OPERATIONS[case["op"]](case, base, root)
    except HwctlError as exc:
        verdict = "reject"
        assert exc.message
        assert "\n" not in exc.message
    wanted = case["hwctl"]
    assert verdict == wanted or (wanted == "either" and verdict in ("accept", "reject", "reclaim"))
    after = ktroot.snapshot(base)
    if verdict in ("reject", "keep") and not case["after_open"]:
        assert after == before
    if verdict == "reclaim":
        assert not root.exists()
    if case["op"] == "consume-all" and verdict == "accept":
        assert not root.exists()
    for path, facts in before.items():
        if not path.startswith(root.name):
            assert after[path] == facts, "something outside the root was touched"
