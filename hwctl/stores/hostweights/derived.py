"""The identity of a checkpoint that was published without one, and the contract of an identity with tensors.

Pure. Keys are permanent: whatever changes here gives every derived artifact another name, so a test pins the
key of a fixed checkpoint. Reading and hashing the sources is the publisher's work.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from hwctl.stores.hostweights import canonical
from hwctl.stores.hostweights.identity import (
    Adaptation,
    Component,
    Identity,
    Layout,
    Producer,
    Representation,
    Source,
)
from hwctl.stores.hostweights.records import contiguous_stride
from hwctl.stores.hostweights.tensors import TensorSpec

PRODUCER = Producer(
    producer_id="hwctl.checkpoint",
    version="1",
    implementation_fingerprint="hwctl-checkpoint-writer-v1",
    manifest_schema="hwctl-checkpoint-manifest-v1",
    restorer_schema="hwctl-checkpoint-restorer-v1",
)
MIXED_DTYPES = "mixed"
CONTRACT_FIELD = "tensor_contract_sha256"


class SourceFile(NamedTuple):
    """One weight file of a checkpoint: its name there, its size in bytes and the SHA-256 of all of them."""

    name: str
    size: int
    sha256: str


def derive_identity(
    model_id: str, revision: str, files: Iterable[SourceFile], dtypes: Iterable[str]
) -> Identity:
    """The identity of a checkpoint made of these weight files, whose tensors have these torch dtypes."""
    distinct = sorted(set(dtypes))
    return Identity(
        source=Source(model_id, revision, fingerprint(files)),
        component=Component("checkpoint", "all-tensors"),
        representation=Representation("checkpoint-raw", distinct[0] if len(distinct) == 1 else MIXED_DTYPES),
        layout=Layout("checkpoint-v1"),
        adaptation=Adaptation(),
        producer=PRODUCER,
    )


def fingerprint(files: Iterable[SourceFile]) -> str:
    """``sha256:`` and the digest over [name, size, sha256] of every file, sorted by name."""
    listed = [list(file) for file in sorted(files)]
    return "sha256:" + hashlib.sha256(canonical.encode(listed)).hexdigest()


def tensor_contract(specs: Sequence[TensorSpec]) -> str:
    """SHA-256 over name, kind, role, dtype, shape and stride of all tensors, as vLLM-Omni computes it."""
    contract = [
        {
            "dtype": spec.dtype,
            "kind": spec.kind,
            "name": spec.name,
            "role": spec.role,
            "shape": list(spec.shape),
            "stride": contiguous_stride(spec.shape),
        }
        for spec in sorted(specs, key=lambda spec: spec.name)
    ]
    return hashlib.sha256(canonical.encode(contract)).hexdigest()


def promised_contract(identity: Identity) -> str | None:
    """The contract an identity states about its tensors, None when it states none."""
    metadata = identity.layout.metadata
    stated = metadata.get(CONTRACT_FIELD) if isinstance(metadata, dict) else None
    return stated if isinstance(stated, str) else None
