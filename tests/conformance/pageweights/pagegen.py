"""Deterministic builder of small page-weights caches, for conformance cases.

Everything it writes follows the cache's format document, without hwctl; any link of it can be bent. The
cases that bend it are registered through ``pagecase``.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import torch

STORE_SCHEMA = "nnf.resynthesis.none_shared_page_weights_cache.v1"
LOCATOR_SCHEMA = "nnf.resynthesis.none_shared_page_weights_cache_locator.v1"
IDS = "page_ids_t"
WEIGHTS = (
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
)
TENSORS = (IDS, *WEIGHTS)
EPOCH_NS = 1_700_000_000_000_000_000  # locator clock of base page 0
STEP_NS = 10_000_000_000  # each later page is 10 s younger

# torch dtype name -> (safetensors code, bytes per element, layout rank)
DTYPES = {
    "bool": ("BOOL", 1, 0),
    "uint8": ("U8", 1, 1),
    "int8": ("I8", 1, 2),
    "float8_e5m2": ("F8_E5M2", 1, 3),
    "float8_e4m3fn": ("F8_E4M3", 1, 4),
    "int16": ("I16", 2, 6),
    "float16": ("F16", 2, 8),
    "bfloat16": ("BF16", 2, 9),
    "int32": ("I32", 4, 10),
    "float32": ("F32", 4, 12),
    "complex64": ("C64", 8, 13),
    "float64": ("F64", 8, 14),
    "int64": ("I64", 8, 15),
}


# ------------------------------------------------------------------ documents
def canonical(value: Any) -> bytes:
    """The byte form every digest of a document is taken over."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def digest(value: Any) -> str:
    return hashlib.sha256(canonical(value)).hexdigest()


def stored(value: Any) -> bytes:
    """The byte form documents have on disk: sorted keys, UTF-8, one newline."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE)


def signed(record: dict[str, Any]) -> dict[str, Any]:
    body = {k: v for k, v in record.items() if k != "recordPayloadSha256"}
    return {**body, "recordPayloadSha256": digest(body)}


# -------------------------------------------------------------------- tensors
class Blob(NamedTuple):
    dtype: str
    shape: tuple[int, ...]
    data: bytes


def raw_bytes(tensor: torch.Tensor) -> bytes:
    """Without numpy, which torch does not bring along."""
    flat = tensor.reshape(-1).contiguous()
    return bytes(flat.view(torch.uint8).tolist()) if flat.numel() else b""


def ramp(dtype: str, shape: tuple[int, ...], salt: int) -> Blob:
    """Small exact numbers, the same on every machine."""
    count = 1
    for extent in shape:
        count *= extent
    numbers = [((i * 37 + salt * 11) % 251) - 125 for i in range(count)]
    kind = getattr(torch, dtype)
    if dtype == "bool":
        made = torch.tensor([n % 2 == 0 for n in numbers], dtype=kind)
    elif kind.is_floating_point or kind.is_complex:
        made = (torch.tensor(numbers, dtype=torch.float32) / 64).to(kind)
    else:
        made = torch.tensor(numbers, dtype=torch.int64).to(kind)
    return Blob(dtype, tuple(shape), raw_bytes(made))


def ids_blob(page_id: int, dtype: str = "int64", shape: tuple[int, ...] = (1,)) -> Blob:
    code = {"int64": "<q", "int32": "<i"}[dtype]
    count = 1
    for extent in shape:
        count *= extent
    return Blob(dtype, shape, struct.pack(code, page_id) * count)


def special(blob: Blob, index: int, value: float) -> Blob:
    """The same tensor with one element replaced (NaN, an infinity, ...)."""
    kind = getattr(torch, blob.dtype)
    flat = torch.frombuffer(bytearray(blob.data), dtype=kind).clone()
    flat[index] = value
    return Blob(blob.dtype, blob.shape, raw_bytes(flat))


def as_torch(blob: Blob) -> torch.Tensor:
    kind = getattr(torch, blob.dtype)
    if not blob.data:
        return torch.empty(blob.shape, dtype=kind)
    return torch.frombuffer(bytearray(blob.data), dtype=kind).clone().reshape(blob.shape)


def layout(blobs: dict[str, Blob]) -> list[str]:
    """Tensor order the safetensors library writes: widest kind first, then name."""
    return sorted(blobs, key=lambda n: (-DTYPES[blobs[n].dtype][2], n))


def encode(
    blobs: dict[str, Blob],
    *,
    order: list[str] | None = None,
    metadata: dict[str, str] | None = None,
    pad: int = 0,
) -> bytes:
    header: dict[str, Any] = {}
    if metadata is not None:
        header["__metadata__"] = metadata
    at, body = 0, []
    for name in order or layout(blobs):
        blob = blobs[name]
        header[name] = {
            "dtype": DTYPES[blob.dtype][0],
            "shape": list(blob.shape),
            "data_offsets": [at, at + len(blob.data)],
        }
        at += len(blob.data)
        body.append(blob.data)
    return frame(json.dumps(header, separators=(",", ":")).encode(), b"".join(body), pad)


def frame(header: bytes, body: bytes, pad: int = 0) -> bytes:
    header += b" " * (-len(header) % 8 + pad)
    return struct.pack("<Q", len(header)) + header + body


def geometry_of(blobs: dict[str, Blob]) -> dict[str, Any]:
    return {n: {"shape": list(blobs[n].shape), "dtype": blobs[n].dtype} for n in TENSORS if n in blobs}


# ---------------------------------------------------------------------- pages
@dataclass
class Page:
    label: str
    authority: dict[str, Any]
    blobs: dict[str, Blob]

    @property
    def prefix(self) -> str:
        return digest(self.authority)

    def key(self, artifact_sha: str, geometry_sha: str) -> str:
        return digest(
            {"authority": self.authority, "artifactSha256": artifact_sha, "geometrySha256": geometry_sha}
        )


def authority(
    page_id: int,
    source: str,
    size: int,
    dtype: str,
    *,
    inode: int = 4242,
    mtime: int = 1_690_000_000_123_456_789,
    ctime: int = 1_690_000_001_000_000_007,
    device: int = 2049,
    revision: int = 1,
) -> dict[str, Any]:
    return {
        "contractRevision": 1,
        "pageId": page_id,
        "sourceObjectSha256": hashlib.sha256(source.encode()).hexdigest(),
        "sourceObjectBytes": size,
        "sourceFileIdentity": [device, inode, size, mtime, ctime],
        "sourceFormatRevision": revision,
        "materializedDtype": dtype,
    }


STANDARD = {
    "ffn_mode_t": (1, 3),
    "gate_t": (1, 8, 4),
    "up_t": (1, 8, 4),
    "down_t": (1, 4, 8),
    "glyph_down_t": (1, 2, 4),
    "glyph_up_t": (1, 4, 2),
    "translation_gate_t": (1, 4),
    "outcome_memory_t": (1, 2, 4),
    "repair_memory_t": (1, 2, 4),
    "transfer_memory_t": (1, 2, 4),
}
ODD = {**STANDARD, "glyph_down_t": (1, 0, 4), "glyph_up_t": (1, 4, 0), "ffn_mode_t": (1, 1, 1, 1, 5)}
FLAT = dict.fromkeys(WEIGHTS, (1,))


def blobs_for(page_id: int, dtype: str, shapes: dict[str, tuple[int, ...]], salt: int) -> dict[str, Blob]:
    return {IDS: ids_blob(page_id), **{n: ramp(dtype, shapes[n], salt + i) for i, n in enumerate(WEIGHTS)}}


def base_pages() -> list[Page]:
    return [
        Page("P0", authority(0, "alpha", 4096, "float32"), blobs_for(0, "float32", STANDARD, 1)),
        Page(
            "P1",
            authority(
                17, "beta", 2**40 + 3, "bfloat16", inode=2**63 + 5, mtime=-7, ctime=2**62 + 1, device=0
            ),
            blobs_for(17, "bfloat16", STANDARD, 2),
        ),
        Page(
            "P2",
            authority(2**53 + 1, "gamma", 77, "float16", revision=3),
            blobs_for(2**53 + 1, "float16", ODD, 3),
        ),
        Page("P3", authority(5, "delta", 1, "float64"), blobs_for(5, "float64", FLAT, 4)),
        # Same page, same bytes as P0, from another source object.
        Page(
            "P4",
            authority(0, "alpha, second object", 4096, "float32", inode=4243),
            blobs_for(0, "float32", STANDARD, 1),
        ),
        Page("P5", authority(6, "epsilon", 512, "int8"), blobs_for(6, "int8", STANDARD, 5)),
        Page("P6", authority(7, "zeta", 512, "float8_e5m2"), blobs_for(7, "float8_e5m2", STANDARD, 6)),
    ]


def sized_page(label: str, floats: int, number: int) -> Page:
    """A page whose artifact grows with `floats`; for eviction scenarios."""
    shapes = {**FLAT, "gate_t": (1, floats)}
    return Page(
        label,
        authority(number, f"sized {number}", 1000 + number, "float32", inode=9000 + number),
        blobs_for(number, "float32", shapes, number),
    )


class Names(NamedTuple):
    prefix: str
    key: str
    locator: Path
    receipt: Path
    artifact: Path
    lock: Path


def put(path: Path, data: bytes, mode: int) -> None:
    if path.is_symlink() or path.exists():
        path.unlink()
    with open(path, "xb") as handle:
        handle.write(data)
    os.chmod(path, mode)


Edit = Callable[[dict[str, Any]], Any]


def store(
    root: Path,
    page: Page,
    *,
    blobs: dict[str, Blob] | None = None,
    artifact: bytes | None = None,
    geometry: Any = None,
    geometry_sha: str | None = None,
    key: str | None = None,
    receipt: Edit | None = None,
    receipt_signed: Edit | None = None,
    receipt_bytes: Callable[[bytes], bytes] | None = None,
    locator: Edit | None = None,
    locator_signed: Edit | None = None,
    locator_bytes: Callable[[bytes], bytes] | None = None,
    clock_ns: int | None = None,
) -> Names:
    """Write one page; every argument bends one link, all later links stay consistent.

    `receipt`/`locator` edit a document before it is signed, `*_signed` after,
    `*_bytes` rewrite its encoded form.
    """
    blobs = page.blobs if blobs is None else blobs
    data = encode(blobs) if artifact is None else artifact
    geometry = geometry_of(blobs) if geometry is None else geometry
    geometry_sha = digest(geometry) if geometry_sha is None else geometry_sha
    data_sha = hashlib.sha256(data).hexdigest()
    key = page.key(data_sha, geometry_sha) if key is None else key
    prefix = page.prefix
    names = Names(
        prefix,
        key,
        root / f"{prefix}.locator.json",
        root / f"{prefix}.{key}.receipt.json",
        root / f"{prefix}.{key}.safetensors",
        root / f".{prefix}.lock",
    )
    put(names.artifact, data, 0o400)

    def finish(
        record: dict[str, Any], edit: Edit | None, late: Edit | None, raw: Callable[[bytes], bytes] | None
    ) -> bytes:
        if edit:
            edit(record)
        record = signed(record)
        if late:
            late(record)
        encoded = stored(record)
        return raw(encoded) if raw else encoded

    receipt_raw = finish(
        {
            "schema": STORE_SCHEMA,
            "authority": dict(page.authority),
            "authorityPrefix": prefix,
            "cacheKey": key,
            "geometry": geometry,
            "geometrySha256": geometry_sha,
            "artifact": {"path": names.artifact.name, "sha256": data_sha, "bytes": len(data)},
            "weightsOnly": True,
            "optimizerStateStored": False,
            "candidateStateStored": False,
            "acceptedSourceAuthorityRequiredOnEveryAccess": True,
        },
        receipt,
        receipt_signed,
        receipt_bytes,
    )
    put(names.receipt, receipt_raw, 0o600)
    locator_raw = finish(
        {
            "schema": LOCATOR_SCHEMA,
            "authority": dict(page.authority),
            "authorityPrefix": prefix,
            "cacheKey": key,
            "receiptSha256": hashlib.sha256(receipt_raw).hexdigest(),
        },
        locator,
        locator_signed,
        locator_bytes,
    )
    put(names.locator, locator_raw, 0o600)
    if clock_ns is not None:
        os.utime(names.locator, ns=(clock_ns, clock_ns))
    if not os.path.lexists(names.lock):
        put(names.lock, b"", 0o600)
    return names
