"""How often a run over many entries looks at all of /proc: the cache's own program waits for it."""

from __future__ import annotations

from pathlib import Path

import make_pageweights
import pytest

from hwctl.fs import openers, openfiles
from hwctl.fs.deadline import Deadline
from hwctl.fs.lock_table import Mode
from hwctl.fs.openfiles import OpenFiles
from hwctl.stores.base import State
from hwctl.stores.pageweights.store import open_store

PAGES = 12


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The passes over /proc, where no file system tells by a lease of the kernel who has a file open."""
    made: list[Path] = []
    read = OpenFiles.read

    def counted(proc: Path = Path("/proc")) -> OpenFiles:
        made.append(proc)
        return read(proc)

    monkeypatch.setattr(OpenFiles, "read", staticmethod(counted))
    for module in (openers, openfiles):
        monkeypatch.setattr(module, "plain_devices", frozenset)
    return made


def test_a_pass_over_proc_serves_for_many_pages(tmp_path: Path, passes: list[Path]) -> None:
    root = make_pageweights.make_store(tmp_path / "cache")
    for number in range(PAGES):
        make_pageweights.make_artifact(root, number)
    store = open_store(root)
    pages = list(store.scan())
    with store.sweep(Deadline.now()):
        for page in pages:
            with store.lease(page, Mode.EXCLUSIVE, Deadline.now()):
                assert page.state is State.READY and store.remove(page).files == 3
    assert 1 <= len(passes) <= 3  # one a second; each page made one
