"""What could not be found out says where: without a descriptor left, every message names its tree."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import ktroot
import pytest

from hwctl.errors import IoFailed, NotFound
from hwctl.fs.paths import opened_dir
from hwctl.stores.base import Artifact, StalePolicy
from hwctl.stores.ktint8 import content
from hwctl.stores.ktint8.documents import read_lease, read_manifest
from hwctl.stores.ktint8.layer_writer import LayerWriter
from hwctl.stores.ktint8.store import KtInt8Store, open_store
from hwctl.weights.amx import Geometry

GEOMETRY = Geometry(hidden=64, intermediate=128, experts=2, parts=2)


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def store(base: Path) -> KtInt8Store:
    ktroot.ready(base)
    return open_store(base)


@pytest.fixture
def artifact(store: KtInt8Store) -> Artifact:
    return next(store.scan())


def test_documents_name_their_tree(base: Path) -> None:
    ready, staging = ktroot.ready(base), ktroot.staging(base, run="case-run-02")
    with opened_dir(ready) as ready_fd, opened_dir(staging) as staging_fd:
        with no_descriptor_left(), pytest.raises(IoFailed) as met:
            read_manifest(ready_fd, ephemeral=True)
        assert met.value.path == str(ready / ktroot.MANIFEST)
        with no_descriptor_left(), pytest.raises(IoFailed) as met:
            read_lease(staging_fd, "case-run-02")
        assert met.value.path == str(staging / ktroot.LEASE)


def test_the_bytes_name_their_tree(base: Path) -> None:
    root = ktroot.ready(base)
    with opened_dir(root) as root_fd:
        read = content.read_tree(root_fd, GEOMETRY, [3], workers=1, rules=False)
        with no_descriptor_left(), pytest.raises(IoFailed) as met:
            next(read)
    assert met.value.path == str(root / "_layer_3/_numa_0")


def test_a_layer_that_cannot_be_written_names_its_tree(base: Path) -> None:
    root = ktroot.staging(base)
    with opened_dir(root) as root_fd, pytest.raises(IoFailed) as met:
        LayerWriter(root_fd, 5, GEOMETRY)
    assert met.value.path == str(root / "_layer_5.partial")


def test_every_step_of_the_store_tells_it(store: KtInt8Store, artifact: Artifact) -> None:
    policy = StalePolicy(ready=True)
    for step in (store.users, store.remove, lambda entry: store.stale(entry, policy)):
        with no_descriptor_left(), pytest.raises(IoFailed) as met:
            step(artifact)
        assert met.value.path == str(artifact.path)
        assert met.value.details["errno"] == "EMFILE"
    assert artifact.path.exists()


def test_a_tree_that_is_gone_is_not_found(store: KtInt8Store, artifact: Artifact, base: Path) -> None:
    os.rename(artifact.path, base / "elsewhere")
    with pytest.raises(NotFound) as met:
        store.stale(artifact, StalePolicy(ready=True))
    assert met.value.path == str(artifact.path)
