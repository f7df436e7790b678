"""A finished tree as a source: whose error is whose, and what a tree that goes meanwhile is called."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import ktroot
import pytest

from hwctl.errors import HwctlError, IoFailed, NotFound
from hwctl.fs.deadline import Deadline
from hwctl.stores.ktint8.copying import TreeSource, opened_source
from hwctl.weights.amx import Projection


def read_layer(tree: TreeSource) -> int:
    return sum(piece.data.nbytes for piece in tree.matrix(3, 0, Projection.DOWN))


def test_every_piece_of_a_matrix(base: Path) -> None:
    root = ktroot.ready(base)
    with opened_source(root, Deadline.now()) as tree:
        files = list((root / "_layer_3").rglob("INT8_down_0_*"))
        assert len(files) == 4
        assert read_layer(tree) == sum(path.stat().st_size for path in files)


def test_the_callers_errors_are_not_those_of_the_tree(base: Path) -> None:
    root = ktroot.ready(base)
    missing = base / "destination/file"
    with pytest.raises(FileNotFoundError) as met, opened_source(root, Deadline.now()):
        os.open(missing, os.O_RDONLY)
    assert met.value.filename == str(missing)


def removed(root: Path) -> None:
    shutil.rmtree(root / "_layer_3")


def one_file_removed(root: Path) -> None:
    next((root / "_layer_3").rglob("INT8_down_0_*")).unlink()


def replaced(root: Path) -> None:
    shutil.rmtree(root / "_layer_3")
    (root / "_layer_3").touch()


@pytest.mark.parametrize(
    ("damage", "kind", "words"),
    [
        (removed, NotFound, "was published, consumed, moved or removed meanwhile"),
        (one_file_removed, NotFound, "was published, consumed, moved or removed meanwhile"),
        (replaced, IoFailed, "cannot read layer 3: Not a directory"),
    ],
)
def test_a_layer_that_goes_while_it_is_read(
    base: Path, damage: Callable[[Path], None], kind: type[HwctlError], words: str
) -> None:
    """kt-kernel's consumer takes no lock: the tree that is held shared here can go all the same."""
    root = ktroot.ready(base)
    with opened_source(root, Deadline.now()) as tree:
        damage(root)
        with pytest.raises(kind) as met:
            read_layer(tree)
    assert met.value.message == words
    assert met.value.path == str(root)


def test_absent(base: Path) -> None:
    with pytest.raises(NotFound, match="is absent"), opened_source(base / "kt-int8-absent", Deadline.now()):
        pass
