"""A process of the real vLLM-Omni that works on a host weight store and is asked one thing at a time."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import make_hostweights
import pytest

# The package's own __init__ wants vllm; the store below it does not, given a bare parent package.
_PROGRAM = r"""
import hashlib, importlib.util, json, sys, time, types
bare = types.ModuleType("vllm_omni")
bare.__path__ = list(importlib.util.find_spec("vllm_omni").submodule_search_locations)
sys.modules["vllm_omni"] = bare
import torch
from pathlib import Path
from safetensors.torch import load_file
from vllm_omni import host_weight_runtime as runtime
from vllm_omni.host_weight_runtime.filesystem import FilesystemHostWeightStore
torch.set_num_threads(1)


def told(result, key):
    if result.lease is not None:
        leases[key] = result.lease
    failure = result.failure
    words = None if failure is None else [failure.stage.value, failure.code.value, failure.retryable]
    return {"status": result.status.value, "failure": words}


class Producer:
    def __init__(self, identity, source, ordered, pause):
        self.identity, self.source, self.ordered, self.pause = identity, Path(source), ordered, pause

    @property
    def spec(self):
        return runtime.WeightProductionSpec(
            producer_id=self.identity.producer.producer_id,
            outputs=(self.identity,),
            source_mode=runtime.ProductionSourceMode.CHECKPOINT_STREAM,
        )

    def produce(self, writer):
        print(json.dumps("producing"), flush=True)
        time.sleep(self.pause)
        for path in sorted(self.source.glob("*.safetensors")):
            tensors = load_file(path)
            specs = tuple(runtime.TensorWriteSpec(n, tuple(t.shape), t.dtype) for n, t in tensors.items())
            with writer.open_tensor_file(path.name, specs, ordered=self.ordered) as file:
                for name in sorted(tensors):
                    if tensors[name].numel():
                        file.write_tensor(name, tensors[name])
        return runtime.ProductionMetadata(
            self.identity.producer.manifest_schema, self.identity.producer.restorer_schema
        )


def answer(verb, *rest):
    if verb == "lookup":
        identity = runtime.WeightArtifactIdentity.from_dict(rest[0])
        level = runtime.ValidationLevel(rest[1])
        return told(store.lookup(identity, validation=level, deadline=None), identity.key)
    if verb == "publish":
        identity = runtime.WeightArtifactIdentity.from_dict(rest[0])
        result = store.get_or_build(
            runtime.BuildRequest(identity),
            Producer(identity, rest[1], rest[2], rest[3]),
            validation=runtime.ValidationLevel.FULL_CHECKSUM,
            deadline=time.monotonic() + rest[4],
        )
        return told(result, identity.key)
    if verb == "tensors":
        return {
            name: [str(t.dtype), list(t.shape), hashlib.sha256(raw(t)).hexdigest()]
            for name, t in leases[rest[0]].tensors.items()
        }
    if verb == "cleanup":
        failure = store.cleanup(runtime.WeightArtifactIdentity.from_dict(rest[0]))
        return None if failure is None else [failure.stage.value, failure.code.value]
    if verb == "inventory":
        return [[e.artifact_key, e.state.value, e.size_bytes] for e in store.inspect_domain().inventory]
    if verb == "close":
        leases.pop(rest[0]).close()
        return "closed"


def raw(tensor):
    flat = tensor.detach().clone().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


domain = runtime.StorageDomainPolicy(root=Path(sys.argv[1]), storage_class=runtime.StorageClass(sys.argv[2]))
store = FilesystemHostWeightStore(domain, runtime.CapacityPolicy(), runtime.IntegrityPolicy())
leases = {}
print(json.dumps("open"), flush=True)
for line in sys.stdin:
    print(json.dumps(answer(*json.loads(line))), flush=True)
"""


class Omni:
    """One running process. ``pid`` is what holds its locks."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.pid = process.pid

    def ask(self, *words: object) -> Any:
        """Ask and wait for the answer."""
        self.tell(*words)
        return self.hear()

    def tell(self, *words: object) -> None:
        """Ask without waiting."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()

    def hear(self) -> Any:
        """The next line it says."""
        assert self._process.stdout is not None and self._process.stderr is not None
        line = self._process.stdout.readline()
        assert line, self._process.stderr.read()
        return json.loads(line)

    def kill(self) -> None:
        """End it without a chance to clean up."""
        self._process.kill()
        self._process.wait(timeout=10)


@contextmanager
def omni(root: Path) -> Iterator[Omni]:
    """The real software at work on the store at ``root``, which it creates if need be."""
    if importlib.util.find_spec("vllm_omni") is None:
        pytest.skip("vllm-omni is not installed")
    storage_class = "tmpfs" if make_hostweights.fs_type(root.parent) in ("tmpfs", "ramfs") else "disk"
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, str(root), storage_class],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        running = Omni(process)
        assert running.hear() == "open"
        yield running
    finally:
        process.communicate(timeout=60)
