"""The lease of a staging root: strict to read, and what hwctl adds to it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwctl.fs.liveness import Process
from hwctl.stores.ktint8.lease import Progress, StagingLease, compose, parse
from hwctl.weights.amx import Geometry

RUN = "case-run-01"
IDENTITY = {"boot_id": "01234567-89ab-cdef-0123-456789abcdef", "pid_ns": 4026531836, "start_ticks": 99}
PROCESS = Process(17, 99, IDENTITY["boot_id"], 4026531836)  # type: ignore[arg-type]
UPSTREAM: dict[str, Any] = {"schema_version": 1, "run_id": RUN, "owner_uid": 0, "producer_pid": 17}


def read(**changes: object) -> StagingLease | tuple[object, ...]:
    return parse(json.dumps(UPSTREAM | changes).encode(), RUN, 0)


def test_upstream() -> None:
    assert read() == StagingLease(RUN, 0, 17)


def test_with_our_key() -> None:
    assert read(hwctl=IDENTITY, other=[1]) == StagingLease(RUN, 0, 17, PROCESS)


@pytest.mark.parametrize("layers", [{}, {3: "ab" * 32, 12: "cd" * 32}])
def test_round_trip(layers: dict[int, str]) -> None:
    progress = Progress("checkpoint:x", Geometry(64, 128, 2, 2), layers)
    lease = StagingLease(RUN, 0, 17, PROCESS, progress)
    assert parse(compose(lease), RUN, 0) == lease


@pytest.mark.parametrize(
    "changes",
    [
        {"schema_version": 2},
        {"schema_version": True},
        {"schema_version": 1.0},
        {"run_id": "another"},
        {"run_id": None},
        {"owner_uid": 1},
        {"owner_uid": False},
        {"owner_uid": 0.0},
        {"producer_pid": 0},
        {"producer_pid": -1},
        {"producer_pid": True},
        {"producer_pid": "17"},
        {"producer_pid": 17.0},
        {"producer_pid": 2**31},
        {"producer_pid": None},
        {"hwctl": None},
        {"hwctl": {}},
        {"hwctl": IDENTITY | {"boot_id": "x"}},
        {"hwctl": IDENTITY | {"pid_ns": "4026531836"}},
        {"hwctl": IDENTITY | {"start_ticks": -1}},
        {"hwctl": IDENTITY | {"start_ticks": True}},
    ],
)
def test_faults(changes: dict[str, object]) -> None:
    found = read(**changes)
    assert isinstance(found, tuple)
    assert found


@pytest.mark.parametrize(
    "progress",
    [
        [],
        {"source": 1, "geometry": {}, "layers": {}},
        {"source": "x", "geometry": {"hidden": 64}, "layers": {}},
        {
            "source": "x",
            "geometry": {"hidden": 64, "intermediate": 64, "experts": 1, "parts": 1},
            "layers": {"03": "ab" * 32},
        },
        {
            "source": "x",
            "geometry": {"hidden": 64, "intermediate": 64, "experts": 1, "parts": 1},
            "layers": {"3": "xy"},
        },
    ],
)
def test_progress_that_cannot_be_trusted_is_none(progress: object) -> None:
    found = read(hwctl=IDENTITY | {"progress": progress})
    assert isinstance(found, StagingLease)
    assert found.progress is None


@given(st.binary(max_size=300))
def test_any_bytes(data: bytes) -> None:
    found = parse(data, RUN, 0)
    assert isinstance(found, tuple)
    assert found
