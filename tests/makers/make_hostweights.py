"""A host weight store in a few lines, independent of hwctl: what a lifecycle verb may meet in the field.

Written after the format's description only. One artifact holds one tensor ``w`` of F32 in one file.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import uuid
from pathlib import Path


def canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _sha256_with_hole(data: bytes, mebibytes: int) -> str:
    digest = hashlib.sha256(data)
    zeros = bytes(1 << 20)
    for _ in range(mebibytes):
        digest.update(zeros)
    return digest.hexdigest()


def fs_type(path: Path) -> str:
    """The kernel's name of the file system a path lies on."""
    best, found = "", ""
    for line in Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape").splitlines():
        before, _, after = line.partition(" - ")
        point = before.split()[4]
        if path.resolve().is_relative_to(point) and len(point) >= len(best):
            best, found = point, after.split()[0]
    return found


def make_store(root: Path) -> Path:
    """The six folders and both documents, without any limit, as vLLM-Omni wants them."""
    root.mkdir(mode=0o700, parents=True)
    for name in ("locks", "artifacts", "tmp", "quarantine", "deny"):
        (root / name).mkdir(mode=0o700)
    kind = fs_type(root)
    domain = {
        "schema_version": 1,
        "domain_uuid": uuid.uuid4().hex,
        "scope": "node",
        "domain_id": "node",
        "backend": "local_filesystem",
        "storage_class": "tmpfs" if kind in ("tmpfs", "ramfs") else "disk",
        "filesystem_type": kind,
    }
    policy = {
        "schema_version": 1,
        "policy_version": 1,
        "max_artifact_bytes": None,
        "max_store_bytes": None,
        "min_free_bytes": 0,
        "eviction": "none",
    }
    for name, document in (("domain.json", domain), ("domain-policy.json", policy)):
        (root / name).write_bytes(canonical(document))
        (root / name).chmod(0o444)
    lock(root, "domain-init.lock")
    return root


def lock(root: Path, name: str) -> Path:
    path = root / "locks" / name
    path.touch(mode=0o600)
    path.chmod(0o600)
    return path


def identity(number: int) -> dict[str, object]:
    return {
        "schema_version": 1,
        "source": {"model_id": f"org/model-{number}", "revision": "r", "fingerprint": "f", "metadata": {}},
        "component": {"name": "c", "ownership": "o", "metadata": {}},
        "representation": {"name": "raw", "dtype": "torch.float32", "metadata": {}},
        "layout": {
            "name": "l",
            "tensor_parallel_size": 1,
            "tensor_parallel_rank": 0,
            "sequence_parallel_size": 1,
            "sequence_parallel_backend": "none",
            "metadata": {},
        },
        "adaptation": {"kind": "base", "fingerprint": None, "metadata": {}},
        "producer": {
            "producer_id": "p",
            "version": "1",
            "implementation_fingerprint": "i",
            "manifest_schema": "m",
            "restorer_schema": "r",
        },
    }


def key_of(number: int) -> str:
    return sha256(canonical(identity(number)))


def make_artifact(root: Path, number: int, floats: int = 1024, *, locks: bool = True) -> Path:
    """Publish ``floats`` numbers under identity ``number``; the artifact's folder."""
    return _publish(root, number, struct.pack("<f", float(number)) * floats, 0, locks=locks)


def make_sparse(root: Path, number: int, mebibytes: int) -> Path:
    """One of nothing but zeros, which takes neither room nor memory."""
    return _publish(root, number, b"", mebibytes, locks=True)


def _publish(root: Path, number: int, data: bytes, mebibytes: int, *, locks: bool) -> Path:
    """``data`` and so many mebibytes of a hole behind it."""
    key, folder = key_of(number), root / "artifacts" / key_of(number)
    folder.mkdir(mode=0o700)
    size = len(data) + (mebibytes << 20)
    floats = size // 4
    entry = {"dtype": "F32", "shape": [floats], "data_offsets": [0, size]}
    header = canonical({"__metadata__": {"format": "pt", "host_weight_runtime": "1"}, "w": entry})
    header += b" " * (-len(header) % 8)
    payload = struct.pack("<Q", len(header)) + header + data
    tensor: dict[str, object] = {
        "name": "w",
        "kind": "parameter",
        "role": "weight",
        "shape": [floats],
        "dtype": "torch.float32",
        "stride": [1],
        "nbytes": size,
        "sha256": _sha256_with_hole(data, mebibytes),
    }
    content = sha256(canonical(tensor))
    whole = _sha256_with_hole(payload, mebibytes)
    file = {"file_name": "model.safetensors", "size": len(payload) + (mebibytes << 20), "sha256": whole}
    manifest = {
        "schema_version": 1,
        "artifact_key": key,
        "identity": identity(number),
        "producer_schema": "m",
        "restorer_schema": "r",
        "tensors": [tensor | {"file_name": "model.safetensors", "storage_key": "w"}],
        "files": [file],
        "artifact_content_sha256": content,
        "format_metadata": {},
    }
    ready = {
        "schema_version": 1,
        "publication_id": uuid.uuid4().hex,
        "manifest_sha256": sha256(canonical(manifest)),
        "artifact_content_sha256": content,
        "integrity_mode": "full_checksum",
    }
    files = {
        "model.safetensors": payload,
        "manifest.json": canonical(manifest),
        "READY.json": canonical(ready),
    }
    for name, raw in files.items():
        (folder / name).write_bytes(raw)
        if name == "model.safetensors":
            os.truncate(folder / name, len(raw) + (mebibytes << 20))
        (folder / name).chmod(0o444)
    folder.chmod(0o555)
    if locks:
        lock(root, f"{key}.artifact.lock")
        lock(root, f"{key}.build.lock")
    return folder


def make_staging(root: Path, number: int, size: int = 8192, pid: int = 4_000_000) -> Path:
    """What a killed publisher leaves: staging with a payload, and the build lock it no longer holds."""
    key = key_of(number)
    folder = root / "tmp" / f"{key}.{pid}.{uuid.uuid4().hex}"
    folder.mkdir(mode=0o700)
    (folder / "model.safetensors").write_bytes(b"\0" * size)
    lock(root, f"{key}.build.lock")
    return folder


def set_last_use(root: Path, number: int, ns: int) -> None:
    """Put the clocks of an artifact's last use at ``ns``: READY.json and the artifact lock."""
    key = key_of(number)
    os.utime(root / "artifacts" / key / "READY.json", ns=(ns, ns))
    os.utime(root / "locks" / f"{key}.artifact.lock", ns=(ns, ns))
