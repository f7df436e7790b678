"""Every test of the suite runs for each family, on a disk file system and in memory."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from kits import KITS, Kit
from make_hostweights import fs_type

_MEMORY = {"tmpfs", "ramfs"}


@pytest.fixture(params=["disk", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """An empty folder on the kind of file system asked for."""
    if request.param == "disk":
        if fs_type(tmp_path) in _MEMORY:
            pytest.skip("the temporary folder lies in memory; no disk file system to test on")
        yield tmp_path
        return
    if fs_type(Path("/dev/shm")) not in _MEMORY:
        pytest.skip("/dev/shm is no tmpfs here")
    path = Path(tempfile.mkdtemp(prefix="hwctl-test-", dir="/dev/shm"))
    try:
        yield path
    finally:
        for published in path.rglob("*/"):
            published.chmod(0o700)
        shutil.rmtree(path)


@pytest.fixture(params=sorted(KITS))
def kit(request: pytest.FixtureRequest, folder: Path) -> Kit:
    """An empty store of each family."""
    made: Kit = KITS[request.param](folder)
    return made
