"""Finishing a foreign staging tree: an error in the middle is not taken for a tree that is absent."""

from __future__ import annotations

import os
from pathlib import Path

import ktroot
import pytest

from hwctl.errors import IoFailed, NotFound
from hwctl.stores.ktint8.adoption import Adoption, publish_staging


def test_absent(base: Path) -> None:
    with pytest.raises(NotFound, match="is absent"):
        publish_staging(base / f"kt-int8-{ktroot.RUN}.staging", ktroot.RUN, Adoption())


def test_a_file_that_is_missing_elsewhere_is_no_absent_tree(base: Path) -> None:
    """As where /proc is not mounted: the calling process is not found, the tree is there all the same."""
    root = ktroot.staging(base, lease_doc=ktroot.lease(pid=os.getpid()))
    before = ktroot.snapshot(base)

    def look_elsewhere(_count: int) -> None:
        os.stat(base / "proc/self/stat")

    with pytest.raises(IoFailed) as met:
        publish_staging(root, ktroot.RUN, Adoption(advance=look_elsewhere))
    assert met.value.message == "cannot publish it: No such file or directory"
    assert met.value.path == str(root)
    assert ktroot.snapshot(base) == before
