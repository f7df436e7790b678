"""Cleanup and publication leave the store exactly as vLLM-Omni leaves it, down to every mode."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hw_artifact
import hw_engine
import hw_operations
import hw_registry
import hw_store
import pytest

from hwctl.errors import HwctlError
from hwctl.fs.deadline import Deadline
from hwctl.stores.base import Level
from hwctl.stores.hostweights.build import cleanup, get_or_build
from hwctl.stores.hostweights.identity import Identity
from hwctl.stores.hostweights.identity_document import read_identity
from hwctl.stores.hostweights.opening import Wanted, open_root
from hwctl.stores.hostweights.publication import Publication
from hwctl.stores.hostweights.store_root import StoreRoot
from hwctl.stores.hostweights.tensors import TensorSpec
from hwctl.stores.hostweights.verdict import failure_of
from hwctl.stores.hostweights.writer import ArtifactWriter

OPERATIONS = hw_registry.registry.operations
Build = Callable[..., hw_store.Store]


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_operation(name: str, build: Build, expected: dict[str, Any]) -> None:
    operation, recorded = OPERATIONS[name], expected["operations"][name]
    store = build(operation)
    source = hw_engine.write_source(store.artifacts[operation.subject], store.root.parent / "source")
    root = open_root(store.root, Wanted())
    with hw_engine.held_locks(operation, store):
        act = {"cleanup": clean, "publish": publish}[operation.action]
        result = act(root, source, operation.deadline_s)
    assert {key: result.get(key) for key in recorded["result"]} == recorded["result"]
    assert hw_engine.state_rows(store.root) == recorded["state"]


def clean(root: StoreRoot, source: Path, _seconds: float) -> dict[str, Any]:
    try:
        cleanup(root, identity_of(source).key)
    except HwctlError as exc:
        failure = failure_of(exc)
        return {
            "status": "failed",
            "stage": str(failure.stage),
            "code": str(failure.code),
            "retryable": failure.retryable,
        }
    return {"status": "removed"}


def publish(root: StoreRoot, source: Path, seconds: float) -> dict[str, Any]:
    contents = {name: (source / name).read_bytes() for name in document(source, "files.json")}
    roles = document(source, "tensors.json")
    specs = tuple(
        TensorSpec(name, dtype_of(entry), tuple(entry["shape"]), file, **roles[name])
        for file, data in contents.items()
        for name, entry in tensors_of(data).items()
    )

    def produce(writer: ArtifactWriter) -> None:
        for file in writer.file_names:
            data = contents[file]
            start = 8 + int.from_bytes(data[:8], "little")
            with writer.open(file, ordered=True) as payload:
                for name, entry in sorted(tensors_of(data).items()):
                    begin, end = entry["data_offsets"]
                    payload.write_tensor(name, data[start + begin : start + end])

    publication = Publication(identity_of(source), specs, document(source, "format_metadata.json"))
    found = get_or_build(root, publication, produce, level=Level.FULL, deadline=Deadline.after(seconds))
    assert found.lease is not None
    found.lease.release()
    return {"status": str(found.outcome)}


def document(source: Path, name: str) -> Any:
    return json.loads((source / name).read_bytes())


def identity_of(source: Path) -> Identity:
    identity = read_identity((source / "identity.json").read_bytes())
    assert isinstance(identity, Identity)
    return identity


def tensors_of(data: bytes) -> dict[str, Any]:
    header = hw_artifact.header_of(data)
    del header["__metadata__"]
    return header


def dtype_of(entry: dict[str, Any]) -> str:
    (name,) = [name for name, (code, _) in hw_artifact.ALL_DTYPES.items() if code == entry["dtype"]]
    return name


def test_the_bytes_are_those_of_the_reference(build: Build) -> None:
    """The untouched store has the payloads and manifests that vLLM-Omni's own writer makes."""
    store = build(OPERATIONS["publish.fresh"])
    for label in ("alpha", "beta", "gamma"):
        artifact = store.artifacts[label]
        hw_store.force_remove(artifact.path)
        source = hw_engine.write_source(artifact, store.root.parent / f"source-{label}")
        publish(open_root(store.root, Wanted()), source, 5.0)
        payloads = artifact.payloads()
        for name, data in payloads.items():
            assert (artifact.path / name).read_bytes() == data
        manifest = hw_artifact.canonical(artifact.manifest(payloads))
        assert (artifact.path / "manifest.json").read_bytes() == manifest


@pytest.mark.parametrize("name", sorted(hw_operations.VECTORS))
def test_identity_vector(name: str, expected: dict[str, Any]) -> None:
    recorded = expected["identity_vectors"][name]
    found = read_identity(hw_engine.identity_text(hw_operations.VECTORS[name]))
    if recorded.get("error"):
        assert not isinstance(found, Identity)
    elif name in hw_operations.VECTORS_MAY_FAIL:
        assert not isinstance(found, Identity) or found.key == recorded["key"]
    else:
        assert isinstance(found, Identity) and found.key == recorded["key"]
