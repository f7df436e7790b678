"""Small sound stores of every family, for commands that are run as real processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import make_hostweights
import make_ktint8
import make_pageweights
import private_mounts
import pytest
import run_hwctl


@pytest.fixture
def hwctl() -> Callable[..., run_hwctl.Run]:
    """Runs hwctl with words; see ``run_hwctl.hwctl_``."""
    return run_hwctl.hwctl_


@pytest.fixture
def pages(tmp_path: Path) -> Path:
    """A page cache of three sound pages."""
    root = make_pageweights.make_store(tmp_path / "pages")
    for number in range(3):
        make_pageweights.make_artifact(root, number)
        make_pageweights.put_lock(root, number)
    return root


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """A host weight store of three sound artifacts."""
    root = make_hostweights.make_store(tmp_path / "weights")
    for number in range(3):
        make_hostweights.make_artifact(root, number)
    return root


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A base with two sound kt-int8 trees."""
    folder = tmp_path / "base"
    folder.mkdir(mode=0o700)
    for run in ("job-4711", "job-4712"):
        make_ktint8.make_ready(folder, run)
    return folder


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """An empty host weight store."""
    return make_hostweights.make_store(tmp_path / "store")


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 8 MiB; skips where nothing can be mounted."""
    if (reason := private_mounts.why_not()) is not None:
        pytest.skip(reason)
    with private_mounts.tmpfs(tmp_path / "small", "size=8m,mode=700") as point:
        yield point
