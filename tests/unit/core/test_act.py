"""What a child that acts for another user reports comes back as what it was."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hwctl.core.act import record, recorded
from hwctl.core.plan import Action, Outcome, Result, Step
from hwctl.errors import (
    Busy,
    Damaged,
    Finding,
    HwctlError,
    IoFailed,
    NoRoom,
    NotFound,
    Refused,
    Status,
    Unsupported,
    Usage,
)
from hwctl.stores.base import Artifact, Family, State, Store
from hwctl.stores.ktint8.store import open_store

FINDING = Finding("digest-mismatch", "the bytes are others", "model.safetensors", "ab", 3)
FAILURES: list[HwctlError] = [
    Usage("no sense", path="/x"),
    NotFound("gone"),
    Busy("held", details={"holders": [1]}),
    Refused("unsafe", details={"owner_uid": 3}),
    Unsupported("later"),
    NoRoom("full", retryable=True),
    IoFailed("broken", path="/y", retryable=True),
    Damaged("torn", [FINDING], path="/z"),
    HwctlError("a bug"),
]


@pytest.fixture
def step(tmp_path: Path) -> Step:
    store: Store = open_store(tmp_path)
    artifact = Artifact(Family.KTINT8, tmp_path, "run-1", tmp_path / "kt-int8-run-1", State.READY)
    return Step(store, artifact, Action.REMOVE, "named")


@pytest.mark.parametrize("failure", FAILURES, ids=[failure.status.word for failure in FAILURES])
def test_a_failure_keeps_its_kind_and_its_findings(step: Step, failure: HwctlError) -> None:
    outcome = Outcome(step, Result.FAILED, failure.message, failure.status, error=failure)
    back = recorded(step, json.loads(json.dumps(record(outcome))))
    assert back.error is not None and type(back.error) is type(failure)
    assert back.status == back.error.status == failure.status
    assert vars(back.error) == vars(failure)


def test_no_status_is_without_its_kind() -> None:
    assert {failure.status for failure in FAILURES} == set(Status) - {Status.OK}
