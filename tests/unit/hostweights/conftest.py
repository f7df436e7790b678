"""A fresh store, and one small artifact published into it by hwctl itself."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import make_hostweights
import pytest
from publishing import identity_of

from hwctl.fs.deadline import Deadline
from hwctl.stores.base import Level
from hwctl.stores.hostweights.build import get_or_build
from hwctl.stores.hostweights.identity import Identity
from hwctl.stores.hostweights.opening import Wanted, open_root
from hwctl.stores.hostweights.publication import Publication
from hwctl.stores.hostweights.store_root import StoreRoot
from hwctl.stores.hostweights.tensors import TensorSpec
from hwctl.stores.hostweights.writer import ArtifactWriter


@pytest.fixture
def root(tmp_path: Path) -> Iterator[StoreRoot]:
    """An empty store."""
    yield open_root(tmp_path / "store", Wanted())
    for directory, _, _ in os.walk(tmp_path):
        os.chmod(directory, 0o700)


@pytest.fixture
def identity() -> Identity:
    return identity_of(make_hostweights.identity(1))


@pytest.fixture
def publication(identity: Identity) -> Publication:
    """Two payload files with three tensors."""
    return Publication(
        identity,
        (
            TensorSpec("a", "torch.float32", (2, 3), "one.safetensors"),
            TensorSpec("b", "torch.bfloat16", (), "one.safetensors", "buffer", "scale"),
            TensorSpec("c", "torch.int8", (70_000,), "two.safetensors"),
        ),
        {"note": "made by a test"},
    )


def produce(writer: ArtifactWriter) -> None:
    """Writes the tensors of ``publication``."""
    with writer.open("one.safetensors", ordered=True) as payload:
        payload.write_tensor("a", bytes(range(24)))
        payload.write_tensor("b", b"\1\2")
    with writer.open("two.safetensors") as payload:
        payload.write_rows("c", 10_000, b"y" * 60_000)
        payload.write_rows("c", 0, b"x" * 10_000)


@pytest.fixture
def producer() -> object:
    return produce


@pytest.fixture
def artifact(root: StoreRoot, publication: Publication) -> Path:
    """The published artifact's directory; nobody leases it."""
    found = get_or_build(root, publication, produce, level=Level.FULL, deadline=Deadline.after(10))
    assert found.lease is not None
    found.lease.release()
    return found.path
