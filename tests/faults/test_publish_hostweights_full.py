"""A full tmpfs while ``hwctl publish hostweights`` works (PUB-03): words and a status, never SIGBUS."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import private_mounts
import pytest
from run_hwctl import hwctl_

from hwctl.weights.safetensors_file import build_header

SIZE = 4 << 20


@pytest.fixture
def source(tmp_path: Path) -> Path:
    header, _ = build_header([(f"t{number}", "U8", (SIZE // 4,)) for number in range(4)], None)
    path = tmp_path / "model.safetensors"
    path.write_bytes(header + os.urandom(SIZE))
    return path


@pytest.fixture
def small(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A tmpfs of the size that the test is parametrised with."""
    reason = private_mounts.why_not()
    if reason is not None:
        pytest.skip(reason)
    with private_mounts.tmpfs(tmp_path / "small", f"size={request.param}") as point:
        yield point


@pytest.mark.parametrize("small", ["64k", "1m", "4m"], indirect=True)
def test_no_room_is_said_with_need_mount_and_knob(small: Path, source: Path) -> None:
    run = hwctl_("publish", "hostweights", "--from", source, "--store", small / "store")
    assert run.status == 14, run.err
    (line,) = run.err.splitlines()
    for word in ("needs", "available", str(small), "tmpfs", "--shm-size"):
        assert word in line
    assert (os.listdir(small / "store" / "tmp"), os.listdir(small / "store" / "artifacts")) == ([], [])


@pytest.mark.parametrize("small", ["4200k"], indirect=True)
def test_it_fits_by_a_little(small: Path, source: Path) -> None:
    run = hwctl_("publish", "hostweights", "--from", source, "--store", small / "store")
    assert run.status == 0, run.err
