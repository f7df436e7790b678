"""The page cache's own protocol, small and independent of hwctl, written from its format document.

It takes the same steps in the same order and at the same cost: two digests and two looks at every weight a
publication, whole-tensor finiteness, a listing after every access. It raises where the cache's own program
does. Weights are torch tensors by name.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson
import torch
from safetensors import safe_open
from safetensors.torch import save_file

LOCATOR = "nnf.resynthesis.none_shared_page_weights_cache_locator.v1"
RECEIPT = "nnf.resynthesis.none_shared_page_weights_cache.v1"
NAMES = (
    *("page_ids_t", "ffn_mode_t", "gate_t", "up_t", "down_t", "glyph_down_t", "glyph_up_t"),
    *("translation_gate_t", "outcome_memory_t", "repair_memory_t", "transfer_memory_t"),
)
BLOCK = 8 << 20

Weights = dict[str, torch.Tensor]


class OracleError(RuntimeError):
    """What the cache's own program calls by a step of its validation."""


def digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def require(sound: bool, step: str) -> None:
    if not sound:
        raise OracleError(step)


def protected(path: Path) -> None:
    st = path.lstat()
    regular = stat.S_ISREG(st.st_mode) and st.st_uid == os.geteuid() and not st.st_mode & 0o077
    require(regular, "unprotected")


def file_digest(path: Path) -> str:
    before, sha = path.stat(), hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            sha.update(block)
    after = path.stat()
    same = (before.st_ino, before.st_size, before.st_mtime_ns) == (
        after.st_ino,
        after.st_size,
        after.st_mtime_ns,
    )
    require(same, "changed")
    return sha.hexdigest()


def sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def read_record(path: Path, schema: str) -> dict[str, object]:
    protected(path)
    try:
        record = json.loads(path.read_text("utf-8"))
    except ValueError:
        raise OracleError("malformed-record") from None
    require(isinstance(record, dict), "malformed-record")
    body = {name: value for name, value in record.items() if name != "recordPayloadSha256"}
    sound = record.get("schema") == schema and record.get("recordPayloadSha256") == digest(body)
    require(sound, "record-authority")
    return record


def write_record(path: Path, body: dict[str, object]) -> None:
    record = {**body, "recordPayloadSha256": digest(body)}
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    temporary.unlink(missing_ok=True)
    with temporary.open("xb") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(orjson.dumps(record, option=orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE))
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    path.chmod(0o600)
    sync(path.parent)


def judge(weights: Weights, authority: dict[str, object]) -> None:
    ids = weights["page_ids_t"]
    sound = ids.shape == (1,) and ids.dtype == torch.int64 and int(ids[0]) == authority["pageId"]
    for name, tensor in weights.items():
        wanted = "int64" if name == "page_ids_t" else authority["materializedDtype"]
        sound = sound and tensor.device.type == "cpu" and not tensor.requires_grad
        sound = sound and tensor.shape[0] == 1 and str(tensor.dtype) == f"torch.{wanted}"
    require(sound, "tensor-authority")
    finite = all(bool(torch.isfinite(weights[name]).all()) for name in NAMES[1:])
    require(finite, "nonfinite")


def geometry_of(weights: Weights) -> dict[str, object]:
    return {n: {"shape": list(weights[n].shape), "dtype": str(weights[n].dtype).split(".")[1]} for n in NAMES}


def copied(weights: Weights) -> Weights:
    return {
        name: tensor.detach().to(device="cpu", copy=True).contiguous() for name, tensor in weights.items()
    }


class OracleCache:
    """One root. ``budget`` in bytes is held to after every access."""

    def __init__(self, root: Path, budget: int) -> None:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        root.chmod(0o700)
        self.root = root.resolve()
        self.budget = budget

    def load_or_build(self, authority: dict[str, object], builder: Callable[[], Weights]) -> Weights:
        prefix = digest(authority)
        with self._locked(f".{prefix}.lock"):
            locator = self._locator(authority, prefix)
            weights = None if locator is None else self._hit(authority, prefix, locator)
            if weights is None:
                if locator is not None:
                    self._remove(prefix, str(locator["cacheKey"]))
                weights = self._publish(authority, prefix, builder())
        self.evict()
        return weights

    @contextmanager
    def _locked(self, name: str, how: int = fcntl.LOCK_EX) -> Iterator[None]:
        fd = os.open(self.root / name, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
        try:
            os.fchmod(fd, 0o600)
            fcntl.flock(fd, how)
            try:
                yield
            finally:
                fcntl.flock(fd, fcntl.LOCK_UN)
        finally:
            os.close(fd)

    def _names(self, prefix: str, key: str) -> tuple[Path, Path, Path]:
        pair = self.root / f"{prefix}.{key}.receipt.json", self.root / f"{prefix}.{key}.safetensors"
        return self.root / f"{prefix}.locator.json", *pair

    def _remove(self, prefix: str, key: str) -> None:
        for path in self._names(prefix, key):
            path.unlink(missing_ok=True)
        sync(self.root)

    def _locator(self, authority: dict[str, object], prefix: str) -> dict[str, object] | None:
        path = self.root / f"{prefix}.locator.json"
        if not path.exists():
            return None
        record = read_record(path, LOCATOR)
        sound = record["authority"] == authority and record["authorityPrefix"] == prefix
        require(sound, "locator-authority")
        return record

    def _hit(self, authority: dict[str, object], prefix: str, locator: dict[str, object]) -> Weights | None:
        key = str(locator["cacheKey"])
        locator_path, receipt_path, path = self._names(prefix, key)
        if not path.exists() or not receipt_path.exists():
            return None
        require(file_digest(receipt_path) == locator["receiptSha256"], "receipt-hash")
        receipt = read_record(receipt_path, RECEIPT)
        said, facts = receipt["geometry"], receipt["artifact"]
        assert isinstance(facts, dict)
        sound = receipt["authority"] == authority and receipt["authorityPrefix"] == prefix
        sound = sound and receipt["cacheKey"] == key and facts["path"] == path.name
        flags = [receipt[name] for name in ("weightsOnly", "optimizerStateStored", "candidateStateStored")]
        require(sound and flags == [True, False, False], "receipt-authority")
        protected(path)
        sound = path.stat().st_size == facts["bytes"] and file_digest(path) == facts["sha256"]
        require(sound, "artifact-hash")
        with safe_open(str(path), framework="pt", device="cpu") as file:
            require(set(file.keys()) == set(NAMES), "tensor-set")
            weights = {name: file.get_tensor(name) for name in NAMES}
        judge(weights, authority)
        geometry = geometry_of(weights)
        require(geometry == said and digest(geometry) == receipt["geometrySha256"], "geometry")
        require(self._key(authority, str(facts["sha256"]), geometry) == key, "content-key")
        os.utime(locator_path)
        return copied(weights)

    @staticmethod
    def _key(authority: dict[str, object], sha256: str, geometry: dict[str, object]) -> str:
        return digest({"authority": authority, "artifactSha256": sha256, "geometrySha256": digest(geometry)})

    def _publish(self, authority: dict[str, object], prefix: str, weights: Weights) -> Weights:
        judge(weights, authority)
        geometry = geometry_of(weights)
        numbers = f"{os.getpid()}.{threading.get_ident()}.{time.time_ns()}"
        temporary = self.root / f".{prefix}.{numbers}.tmp"
        save_file(copied(weights), str(temporary))
        temporary.chmod(0o600)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        sha256 = file_digest(temporary)
        key = self._key(authority, sha256, geometry)
        locator_path, receipt_path, path = self._names(prefix, key)
        there = path.exists(), receipt_path.exists()
        if there[0] != there[1]:
            path.unlink(missing_ok=True)
            receipt_path.unlink(missing_ok=True)
            sync(self.root)
        if all(there):
            temporary.unlink()
        else:
            temporary.replace(path)
            path.chmod(0o400)
            sync(self.root)
            facts = {"path": path.name, "sha256": sha256, "bytes": path.stat().st_size}
            flags = {"weightsOnly": True, "optimizerStateStored": False, "candidateStateStored": False}
            access = {"acceptedSourceAuthorityRequiredOnEveryAccess": True}
            shape = {"geometry": geometry, "geometrySha256": digest(geometry), "artifact": facts}
            about = {"authority": authority, "authorityPrefix": prefix, "cacheKey": key}
            write_record(receipt_path, {"schema": RECEIPT, **about, **shape, **flags, **access})
        about = {"authority": authority, "authorityPrefix": prefix, "cacheKey": key}
        locator = {"schema": LOCATOR, **about, "receiptSha256": file_digest(receipt_path)}
        write_record(locator_path, locator)
        loaded = self._hit(authority, prefix, locator)
        require(loaded is not None, "incomplete")
        assert loaded is not None
        return loaded

    def evict(self) -> None:
        with self._locked(".eviction.lock"):
            resident = sum(path.stat().st_size for path in self.root.glob("*.safetensors"))
            if resident <= self.budget:
                return
            locators = list(self.root.glob("*.locator.json"))
            for path in sorted(locators, key=lambda one: one.stat().st_mtime_ns):
                if resident <= self.budget:
                    return
                prefix = path.name.removesuffix(".locator.json")
                try:
                    with self._locked(f".{prefix}.lock", fcntl.LOCK_EX | fcntl.LOCK_NB):
                        key = str(read_record(path, LOCATOR)["cacheKey"])
                        artifact = self._names(prefix, key)[2]
                        size = artifact.stat().st_size if artifact.is_file() else 0
                        self._remove(prefix, key)
                        resident -= size
                except BlockingIOError:
                    continue
