"""The key of a checkpoint published without an identity is permanent: pinned here by the rule alone."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from hwctl.stores.hostweights.derived import (
    SourceFile,
    derive_identity,
    promised_contract,
    tensor_contract,
)
from hwctl.stores.hostweights.identity_document import read_identity
from hwctl.stores.hostweights.tensors import TensorSpec

TINY = Path(__file__).parents[2] / "data" / "tiny-llama"
TINY_KEY = "f88d3cd5f18795ce6b35abc58ad18b19a18b3d502f514025f6ce1800a70b3700"


def canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def sources(folder: Path) -> list[SourceFile]:
    return [
        SourceFile(file.name, file.stat().st_size, hashlib.sha256(file.read_bytes()).hexdigest())
        for file in folder.glob("*.safetensors")
    ]


def by_the_rule(files: list[SourceFile], model_id: str, revision: str, dtype: str) -> dict[str, object]:
    """The document as the design note words it, written out field by field."""
    listed = sorted([file.name, file.size, file.sha256] for file in files)
    return {
        "schema_version": 1,
        "source": {
            "model_id": model_id,
            "revision": revision,
            "fingerprint": "sha256:" + hashlib.sha256(canonical(listed)).hexdigest(),
            "metadata": {},
        },
        "component": {"name": "checkpoint", "ownership": "all-tensors", "metadata": {}},
        "representation": {"name": "checkpoint-raw", "dtype": dtype, "metadata": {}},
        "layout": {
            "name": "checkpoint-v1",
            "tensor_parallel_size": 1,
            "tensor_parallel_rank": 0,
            "sequence_parallel_size": 1,
            "sequence_parallel_backend": "none",
            "metadata": {},
        },
        "adaptation": {"kind": "base", "fingerprint": None, "metadata": {}},
        "producer": {
            "producer_id": "hwctl.checkpoint",
            "version": "1",
            "implementation_fingerprint": "hwctl-checkpoint-writer-v1",
            "manifest_schema": "hwctl-checkpoint-manifest-v1",
            "restorer_schema": "hwctl-checkpoint-restorer-v1",
        },
    }


def test_the_key_of_the_tiny_checkpoint() -> None:
    files = sources(TINY)
    derived = derive_identity("tiny-llama", "local", files, ["torch.bfloat16"] * 21)
    document = by_the_rule(files, "tiny-llama", "local", "torch.bfloat16")
    assert derived.document() == document
    assert derived.key == hashlib.sha256(canonical(document)).hexdigest() == TINY_KEY


def test_the_order_of_the_files_does_not_matter_but_their_names_do() -> None:
    files = sources(TINY)
    key = derive_identity("tiny-llama", "local", files, ["torch.bfloat16"]).key
    assert derive_identity("tiny-llama", "local", files[::-1], ["torch.bfloat16"]).key == key
    renamed = [files[0]._replace(name="model.safetensors"), *files[1:]]
    assert derive_identity("tiny-llama", "local", renamed, ["torch.bfloat16"]).key != key


def test_several_dtypes_are_mixed() -> None:
    files = sources(TINY)
    derived = derive_identity("acme/tiny-ü", "0123abc", files, ["torch.float32", "torch.bfloat16"])
    assert derived.document() == by_the_rule(files, "acme/tiny-ü", "0123abc", "mixed")


def test_a_derived_identity_reads_back() -> None:
    derived = derive_identity("tiny-llama", "local", sources(TINY), ["torch.bfloat16"])
    assert read_identity(canonical(derived.document())) == derived


def test_the_contract_of_an_identity_with_its_tensors() -> None:
    """As vLLM-Omni's producer states it in layout.metadata."""
    specs = [
        TensorSpec("b", "torch.float32", (), "x.safetensors", kind="buffer", role="persistent_buffer"),
        TensorSpec("a", "torch.bfloat16", (3, 0, 2), "x.safetensors"),
    ]
    listed = [
        {
            "dtype": "torch.bfloat16",
            "kind": "parameter",
            "name": "a",
            "role": "weight",
            "shape": [3, 0, 2],
            "stride": [2, 2, 1],
        },
        {
            "dtype": "torch.float32",
            "kind": "buffer",
            "name": "b",
            "role": "persistent_buffer",
            "shape": [],
            "stride": [],
        },
    ]
    contract = hashlib.sha256(canonical(listed)).hexdigest()
    assert tensor_contract(specs) == contract
    document = by_the_rule(sources(TINY), "m", "r", "mixed")
    assert isinstance(document["layout"], dict)
    document["layout"]["metadata"] = {"tensor_contract_sha256": contract}
    identity = read_identity(canonical(document))
    assert not isinstance(identity, tuple)
    assert promised_contract(identity) == contract
    assert promised_contract(derive_identity("m", "r", sources(TINY), ["torch.int8"])) is None
