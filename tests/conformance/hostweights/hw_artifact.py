"""Small artifacts as plain values: canonical JSON, containers, identities, manifests."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import stat
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


def canonical(value) -> bytes:
    """Canonical JSON: sorted keys, no spaces, pure ASCII, no NaN/Infinity."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    ).encode("ascii")


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def stream(label: str, size: int) -> bytes:
    """`size` reproducible bytes for one label."""
    out = bytearray()
    counter = 0
    while len(out) < size:
        out += hashlib.sha256(f"{label}/{counter}".encode("utf-8", "surrogatepass")).digest()
        counter += 1
    return bytes(out[:size])


@contextlib.contextmanager
def opened(path: Path):
    """Temporarily make one directory writable for its owner."""
    mode = stat.S_IMODE(path.stat().st_mode)
    path.chmod(mode | 0o700)
    try:
        yield
    finally:
        path.chmod(mode)


# torch dtype string -> (safetensors code, bytes per element)
DTYPES = {
    "torch.bool": ("BOOL", 1),
    "torch.uint8": ("U8", 1),
    "torch.int8": ("I8", 1),
    "torch.int16": ("I16", 2),
    "torch.int32": ("I32", 4),
    "torch.int64": ("I64", 8),
    "torch.float16": ("F16", 2),
    "torch.bfloat16": ("BF16", 2),
    "torch.float32": ("F32", 4),
    "torch.float64": ("F64", 8),
    "torch.float8_e4m3fn": ("F8_E4M3", 1),
    "torch.float8_e5m2": ("F8_E5M2", 1),
    "torch.float8_e4m3fnuz": ("F8_E4M3FNUZ", 1),
    "torch.float8_e5m2fnuz": ("F8_E5M2FNUZ", 1),
}
# readable by current safetensors/torch but outside the upstream writer's table
EXTRA_DTYPES = {
    "torch.uint16": ("U16", 2),
    "torch.uint32": ("U32", 4),
    "torch.uint64": ("U64", 8),
    "torch.complex64": ("C64", 8),
    "torch.float8_e8m0fnu": ("F8_E8M0", 1),
}
ALL_DTYPES = {**DTYPES, **EXTRA_DTYPES}


@dataclass
class Tensor:
    name: str
    dtype: str
    shape: tuple[int, ...]
    kind: str = "parameter"
    role: str = "weight"
    storage_key: str | None = None
    data: bytes | None = None

    @property
    def key(self) -> str:
        return self.name if self.storage_key is None else self.storage_key

    @property
    def nbytes(self) -> int:
        count = 1
        for dimension in self.shape:
            count *= dimension
        return count * ALL_DTYPES[self.dtype][1]

    @property
    def stride(self) -> list[int]:
        """Strides torch reports for a contiguous tensor (a 0 dimension counts as 1)."""
        out: list[int] = []
        step = 1
        for dimension in reversed(self.shape):
            out.append(step)
            step *= max(dimension, 1)
        return out[::-1]

    def payload(self, label: str) -> bytes:
        if self.data is not None:
            assert len(self.data) == self.nbytes
            return self.data
        raw = stream(f"{label}/{self.name}", self.nbytes)
        if self.dtype == "torch.bool":
            raw = bytes(byte & 1 for byte in raw)
        return raw


def safetensors_bytes(
    entries: list[tuple[str, str, tuple[int, ...], bytes]],
    *,
    metadata: dict | None = None,
    header_override: bytes | None = None,
    align: int = 8,
    pad: bytes = b" ",
) -> bytes:
    """Container with tensors laid out in the given order.

    `entries` are (storage key, safetensors dtype code, shape, raw bytes).
    """
    if metadata is None:
        metadata = {"format": "pt", "host_weight_runtime": "1"}
    header: dict[str, object] = {}
    if metadata:
        header["__metadata__"] = metadata
    cursor = 0
    body = bytearray()
    for key, code, shape, raw in entries:
        header[key] = {"dtype": code, "shape": list(shape), "data_offsets": [cursor, cursor + len(raw)]}
        cursor += len(raw)
        body += raw
    encoded = header_override if header_override is not None else canonical(header)
    if align:
        encoded += pad * (-len(encoded) % align)
    return struct.pack("<Q", len(encoded)) + encoded + bytes(body)


def header_of(data: bytes) -> dict:
    size = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8 : 8 + size])


def identity(tag: str, **sections) -> dict:
    """A complete identity document; keyword arguments override whole sections."""
    document = {
        "schema_version": 1,
        "source": {
            "model_id": f"example-org/{tag}",
            "revision": sha256(tag.encode())[:40],
            "fingerprint": sha256(b"source " + tag.encode()),
            "metadata": {},
        },
        "component": {"name": "transformer", "ownership": "diffusion.dit", "metadata": {}},
        "representation": {"name": "runtime-mixed", "dtype": "torch.bfloat16", "metadata": {}},
        "layout": {
            "name": "final-module-layout",
            "tensor_parallel_size": 1,
            "tensor_parallel_rank": 0,
            "sequence_parallel_size": 1,
            "sequence_parallel_backend": "none",
            "metadata": {},
        },
        "adaptation": {"kind": "base", "fingerprint": None, "metadata": {}},
        "producer": {
            "producer_id": "fixture.writer",
            "version": "1",
            "implementation_fingerprint": sha256(b"fixture implementation"),
            "manifest_schema": "fixture-manifest-v1",
            "restorer_schema": "fixture-restorer-v1",
        },
    }
    document.update(copy.deepcopy(sections))
    return document


def identity_key(document: dict) -> str:
    return sha256(canonical(document))


@dataclass
class Artifact:
    """One artifact description plus the paths of its published form."""

    label: str
    identity: dict
    files: dict[str, list[Tensor]]
    format_metadata: object = field(default_factory=dict)
    store: Any = None

    @property
    def key(self) -> str:
        return identity_key(self.identity)

    @property
    def path(self) -> Path:
        assert self.store is not None
        return self.store.root / "artifacts" / self.key

    def file_path(self, name: str) -> Path:
        return self.path / name

    @property
    def first_file(self) -> str:
        return sorted(self.files)[0]

    # -- documents ---------------------------------------------------------

    def payloads(self) -> dict[str, bytes]:
        out = {}
        for name, tensors in self.files.items():
            ordered = sorted(tensors, key=lambda tensor: tensor.key)
            out[name] = safetensors_bytes(
                [
                    (tensor.key, ALL_DTYPES[tensor.dtype][0], tensor.shape, tensor.payload(self.label))
                    for tensor in ordered
                ]
            )
        return out

    def manifest(self, payloads: dict[str, bytes]) -> dict:
        tensors = []
        for name, items in self.files.items():
            for tensor in items:
                tensors.append(
                    {
                        "name": tensor.name,
                        "kind": tensor.kind,
                        "role": tensor.role,
                        "file_name": name,
                        "storage_key": tensor.key,
                        "shape": list(tensor.shape),
                        "dtype": tensor.dtype,
                        "stride": tensor.stride,
                        "nbytes": tensor.nbytes,
                        "sha256": sha256(tensor.payload(self.label)),
                    }
                )
        tensors.sort(key=lambda entry: entry["name"])
        return {
            "schema_version": 1,
            "artifact_key": self.key,
            "identity": copy.deepcopy(self.identity),
            "producer_schema": self.identity["producer"]["manifest_schema"],
            "restorer_schema": self.identity["producer"]["restorer_schema"],
            "tensors": tensors,
            "files": [
                {"file_name": name, "size": len(payloads[name]), "sha256": sha256(payloads[name])}
                for name in sorted(payloads)
            ],
            "artifact_content_sha256": content_digest(tensors),
            "format_metadata": copy.deepcopy(self.format_metadata),
        }

    def marker(self, manifest: dict, manifest_bytes: bytes | None = None) -> dict:
        return {
            "schema_version": 1,
            "publication_id": sha256(f"publication {self.label}".encode())[:32],
            "manifest_sha256": sha256(manifest_bytes if manifest_bytes is not None else canonical(manifest)),
            "artifact_content_sha256": manifest["artifact_content_sha256"],
            "integrity_mode": "full_checksum",
        }

    # -- mutation helpers ----------------------------------------------------

    def read_manifest(self) -> dict:
        return json.loads((self.path / "manifest.json").read_bytes())

    def read_marker(self) -> dict:
        return json.loads((self.path / "READY.json").read_bytes())

    def overwrite(self, name: str, data: bytes, mode: int = 0o444) -> None:
        """Replace one file of the artifact, keeping directory and file modes."""
        with opened(self.path):
            target = self.path / name
            if target.is_symlink() or target.exists():
                target.unlink()
            target.write_bytes(data)
            target.chmod(mode)

    def reseal(self, manifest: dict, *, manifest_bytes: bytes | None = None, **marker_changes) -> None:
        """Store a changed manifest and a READY marker that matches it."""
        data = manifest_bytes if manifest_bytes is not None else canonical(manifest)
        marker = self.marker(manifest)
        marker.update(marker_changes)
        self.overwrite("manifest.json", data)
        self.overwrite("READY.json", canonical(marker))

    def edit_manifest(self, change, **marker_changes) -> None:
        manifest = self.read_manifest()
        change(manifest)
        self.reseal(manifest, **marker_changes)

    def edit_marker(self, change) -> None:
        marker = self.read_marker()
        change(marker)
        self.overwrite("READY.json", canonical(marker))

    def replace_payload(self, name: str, data: bytes, *, reseal: bool, change=None) -> None:
        """Replace a payload; with `reseal` the manifest size and digest follow."""
        self.overwrite(name, data)
        if not reseal:
            return
        manifest = self.read_manifest()
        for entry in manifest["files"]:
            if entry["file_name"] == name:
                entry["size"] = len(data)
                entry["sha256"] = sha256(data)
        if change is not None:
            change(manifest)
        self.reseal(manifest)


def content_digest(tensor_entries: list[dict]) -> str:
    """Digest over the semantic part of every tensor entry, in name order."""
    digest = hashlib.sha256()
    for entry in sorted(tensor_entries, key=lambda item: item["name"]):
        digest.update(
            canonical({key: value for key, value in entry.items() if key not in ("file_name", "storage_key")})
        )
    return digest.hexdigest()
