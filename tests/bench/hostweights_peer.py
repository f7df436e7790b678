"""vLLM-Omni's own host weight library, loaded without vllm, as the benchmark calls it."""

from __future__ import annotations

import importlib.util
import json
import logging
import sys
import time
import types
from pathlib import Path
from typing import Any

import make_hostweights
import torch

_spec = importlib.util.find_spec("vllm_omni")
if _spec is None or _spec.submodule_search_locations is None:
    raise SystemExit("vllm-omni is not installed: pip install --no-deps vllm-omni==0.30.0 regex")
# The package's own __init__ wants vllm; the store below it does not, given a bare parent package.
_bare = types.ModuleType("vllm_omni")
_bare.__path__ = list(_spec.submodule_search_locations)
sys.modules["vllm_omni"] = _bare
logging.disable(logging.CRITICAL)

runtime = importlib.import_module("vllm_omni.host_weight_runtime")
filesystem = importlib.import_module("vllm_omni.host_weight_runtime.filesystem")


fs_type = make_hostweights.fs_type


def identity(tag: str) -> dict[str, Any]:
    document: dict[str, Any] = make_hostweights.identity(0)
    document["source"]["model_id"] = tag
    return document


def identity_bytes(tag: str) -> bytes:
    return json.dumps(identity(tag)).encode()


def open_store(root: Path, limit: int | None = None) -> Any:
    kind = make_hostweights.fs_type(root.parent)
    domain = runtime.StorageDomainPolicy(
        root=root, storage_class=runtime.StorageClass("tmpfs" if kind in ("tmpfs", "ramfs") else "disk")
    )
    capacity = runtime.CapacityPolicy(max_store_bytes=limit)
    return filesystem.FilesystemHostWeightStore(domain, capacity, runtime.IntegrityPolicy())


class Producer:
    """Hands over tensors that are in memory, one after the other."""

    def __init__(self, wanted: Any, files: dict[str, dict[str, torch.Tensor]], ordered: bool) -> None:
        self._wanted = wanted
        self._files = files
        self._ordered = ordered

    @property
    def spec(self) -> Any:
        return runtime.WeightProductionSpec(
            producer_id=self._wanted.producer.producer_id,
            outputs=(self._wanted,),
            source_mode=runtime.ProductionSourceMode.CHECKPOINT_STREAM,
        )

    def produce(self, writer: Any) -> Any:
        for file, tensors in self._files.items():
            specs = tuple(
                runtime.TensorWriteSpec(name, tuple(tensor.shape), tensor.dtype)
                for name, tensor in tensors.items()
            )
            with writer.open_tensor_file(file, specs, ordered=self._ordered) as payload:
                for name, tensor in tensors.items():
                    payload.write_tensor(name, tensor)
        producer = self._wanted.producer
        return runtime.ProductionMetadata(producer.manifest_schema, producer.restorer_schema)


def publish(
    root: Path,
    files: dict[str, dict[str, torch.Tensor]],
    tag: str,
    *,
    ordered: bool,
    limit: int | None = None,
) -> None:
    wanted = runtime.WeightArtifactIdentity.from_dict(identity(tag))
    result = open_store(root, limit).get_or_build(
        runtime.BuildRequest(wanted),
        Producer(wanted, files, ordered),
        validation=runtime.ValidationLevel.MANIFEST_AND_METADATA,
        deadline=time.monotonic() + 600,
    )
    assert result.status is runtime.StoreStatus.BUILT, result
    result.lease.close()


def look_up(root: Path, tag: str, level: str) -> None:
    wanted = runtime.WeightArtifactIdentity.from_dict(identity(tag))
    result = open_store(root).lookup(wanted, validation=runtime.ValidationLevel(level), deadline=None)
    assert result.status is runtime.StoreStatus.HIT, result
    result.lease.close()
