"""A page-weights cache in a few lines, independent of hwctl. One page holds eleven tiny tensors."""

from __future__ import annotations

import hashlib
import json
import os
import struct
from pathlib import Path

SCHEMA = "nnf.resynthesis.none_shared_page_weights_cache.v1"
LOCATOR_SCHEMA = "nnf.resynthesis.none_shared_page_weights_cache_locator.v1"
WEIGHTS = [
    "ffn_mode_t",
    "gate_t",
    "up_t",
    "down_t",
    "glyph_down_t",
    "glyph_up_t",
    "translation_gate_t",
    "outcome_memory_t",
    "repair_memory_t",
    "transfer_memory_t",
]


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def digest(value: object) -> str:
    return sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode("ascii"))


def stored(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


def make_store(root: Path) -> Path:
    root.mkdir(mode=0o700, parents=True)
    return root


def authority(number: int) -> dict[str, object]:
    return {
        "contractRevision": 1,
        "pageId": number,
        "sourceObjectSha256": sha256(b"source object"),
        "sourceObjectBytes": 4096,
        "sourceFileIdentity": [2049, 4242, 4096, 1690000000123456789, 1690000001000000007],
        "sourceFormatRevision": 1,
        "materializedDtype": "float32",
    }


def prefix_of(number: int) -> str:
    return digest(authority(number))


def artifact_bytes(number: int, floats: int) -> bytes:
    """``page_ids_t`` first, then the weights by name, as the library lays them out."""
    header: dict[str, object] = {"page_ids_t": {"dtype": "I64", "shape": [1], "data_offsets": [0, 8]}}
    data = struct.pack("<q", number)
    for name in sorted(WEIGHTS):
        span = [len(data), len(data) + 4 * floats]
        header[name] = {"dtype": "F32", "shape": [1, floats], "data_offsets": span}
        data += struct.pack("<f", 0.5 + number) * floats
    raw = json.dumps(header, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    return struct.pack("<Q", len(raw)) + raw + data


def make_artifact(root: Path, number: int, floats: int = 8, *, locator: bool = True) -> Path:
    """Publish a page; the path of its locator (or of its artifact, an orphan, without one)."""
    prefix, presented = prefix_of(number), authority(number)
    payload = artifact_bytes(number, floats)
    geometry = {name: {"shape": [1, floats], "dtype": "float32"} for name in WEIGHTS}
    geometry["page_ids_t"] = {"shape": [1], "dtype": "int64"}
    facts = {"artifactSha256": sha256(payload), "authority": presented, "geometrySha256": digest(geometry)}
    key = digest(facts)
    receipt = {
        "schema": SCHEMA,
        "authority": presented,
        "authorityPrefix": prefix,
        "cacheKey": key,
        "geometry": geometry,
        "geometrySha256": digest(geometry),
        "artifact": {
            "path": f"{prefix}.{key}.safetensors",
            "sha256": sha256(payload),
            "bytes": len(payload),
        },
        "weightsOnly": True,
        "optimizerStateStored": False,
        "candidateStateStored": False,
        "acceptedSourceAuthorityRequiredOnEveryAccess": True,
    }
    receipt_bytes = stored(receipt | {"recordPayloadSha256": digest(receipt)})
    record = {
        "schema": LOCATOR_SCHEMA,
        "authority": presented,
        "authorityPrefix": prefix,
        "cacheKey": key,
        "receiptSha256": sha256(receipt_bytes),
    }
    artifact = root / f"{prefix}.{key}.safetensors"
    _put(artifact, payload, 0o400)
    if not locator:
        return artifact
    _put(root / f"{prefix}.{key}.receipt.json", receipt_bytes, 0o600)
    path = root / f"{prefix}.locator.json"
    _put(path, stored(record | {"recordPayloadSha256": digest(record)}), 0o600)
    put_lock(root, number)
    return path


def put_eviction_lock(root: Path) -> None:
    """The other lock that every access leaves."""
    _put(root / ".eviction.lock", b"", 0o600)


def put_lock(root: Path, number: int) -> None:
    """The page's lock file, as every access leaves it."""
    _put(root / f".{prefix_of(number)}.lock", b"", 0o600)


def set_last_use(root: Path, number: int, ns: int) -> None:
    os.utime(root / f"{prefix_of(number)}.locator.json", ns=(ns, ns))


def _put(path: Path, data: bytes, mode: int) -> None:
    path.write_bytes(data)
    path.chmod(mode)
