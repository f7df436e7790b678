"""A small store written directly, and its three artifacts."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
from pathlib import Path

from hw_artifact import Artifact, Tensor, canonical, identity, sha256

SUBDIRECTORIES = ("locks", "artifacts", "tmp", "quarantine", "deny")

TMPFS_TYPES = {"tmpfs", "ramfs"}


def filesystem_type(path: Path) -> str:
    """Type of the longest mount prefix of `path` according to mountinfo."""
    target = path.resolve()
    best: tuple[int, str] | None = None
    for line in (
        Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    ):
        left, separator, right = line.partition(" - ")
        fields = left.split()
        if not separator or len(fields) < 5 or not right.split():
            continue
        point = fields[4]
        for escaped, plain in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
            point = point.replace(escaped, plain)
        inside = point == "/" or target == Path(point) or str(target).startswith(point.rstrip("/") + "/")
        if inside and (best is None or len(point) > best[0]):
            best = (len(point), right.split()[0])
    if best is None:
        raise SystemExit(f"no mount found for {path}")
    return best[1]


def storage_class(fs_type: str) -> str:
    return "tmpfs" if fs_type in TMPFS_TYPES else "disk"


class Store:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.artifacts: dict[str, Artifact] = {}
        self.fs_type = ""

    # -- construction --------------------------------------------------------

    def create(self) -> None:
        self.root.mkdir(parents=True)
        self.root.chmod(0o700)
        for name in SUBDIRECTORIES:
            (self.root / name).mkdir()
            (self.root / name).chmod(0o700)
        self.fs_type = filesystem_type(self.root)
        self.write_json("domain.json", self.domain())
        self.write_json("domain-policy.json", self.policy())

    def domain(self) -> dict:
        return {
            "schema_version": 1,
            "domain_uuid": sha256(b"fixture domain")[:32],
            "scope": "node",
            "domain_id": "node",
            "backend": "local_filesystem",
            "storage_class": storage_class(self.fs_type),
            "filesystem_type": self.fs_type,
        }

    @staticmethod
    def policy() -> dict:
        return {
            "schema_version": 1,
            "policy_version": 1,
            "max_artifact_bytes": None,
            "max_store_bytes": None,
            "min_free_bytes": 0,
            "eviction": "none",
        }

    def write_json(self, name: str, value) -> None:
        self.write_file(name, canonical(value))

    def write_file(self, name: str, data: bytes, mode: int = 0o444) -> None:
        path = self.root / name
        if path.is_symlink() or path.exists():
            path.unlink()
        path.write_bytes(data)
        path.chmod(mode)

    def edit_json(self, name: str, change) -> None:
        document = json.loads((self.root / name).read_bytes())
        change(document)
        self.write_json(name, document)

    def publish(self, artifact: Artifact) -> None:
        artifact.store = self
        self.artifacts[artifact.label] = artifact
        path = artifact.path
        path.mkdir()
        payloads = artifact.payloads()
        for name, data in payloads.items():
            (path / name).write_bytes(data)
        manifest = artifact.manifest(payloads)
        (path / "manifest.json").write_bytes(canonical(manifest))
        (path / "READY.json").write_bytes(canonical(artifact.marker(manifest)))
        for child in path.iterdir():
            child.chmod(0o444)
        path.chmod(0o555)

    # -- inspection ----------------------------------------------------------

    def tree_digest(self) -> str:
        """Digest over names, types, modes, link counts and contents.

        `domain.json` is skipped because it names the file system type, and
        files above 1 MiB count by size only (they are sparse).
        """
        digest = hashlib.sha256()
        rows = []
        for directory, names, files in os.walk(self.root, followlinks=False):
            for name in names + files:
                path = Path(directory) / name
                relative = path.relative_to(self.root)
                info = path.lstat()
                kind = stat.S_IFMT(info.st_mode)
                if str(relative) == "domain.json" and kind == stat.S_IFREG:
                    content = "-"
                elif kind == stat.S_IFREG:
                    content = sha256(path.read_bytes()) if info.st_size <= 1 << 20 else f"size {info.st_size}"
                elif kind == stat.S_IFLNK:
                    content = "link"
                else:
                    content = "-"
                mode = stat.S_IMODE(info.st_mode) if kind != stat.S_IFLNK else 0
                links = info.st_nlink if kind == stat.S_IFREG else 0
                rows.append(f"{os.fsencode(relative).hex()} {kind:o} {mode:o} {links} {content}")
        for row in sorted(rows):
            digest.update(row.encode() + b"\n")
        return digest.hexdigest()


def force_remove(path: Path) -> None:
    """rmtree that copes with read-only directories (also for a normal user)."""
    if path.is_symlink() or not path.exists():
        if path.is_symlink():
            path.unlink()
        return
    for directory, names, _files in os.walk(path, followlinks=False):
        os.chmod(directory, 0o700)
        for name in names:
            child = Path(directory) / name
            if not child.is_symlink():
                os.chmod(child, 0o700)
    shutil.rmtree(path)


def alpha() -> Artifact:
    """One file, every dtype of the writer's table, scalars, empty tensors.

    Because tensors are laid out in name order without padding, most
    multi-byte tensors here start at an odd offset.
    """
    shapes = {
        "a.flag": ("torch.bool", (3,)),
        "b.weight": ("torch.bfloat16", (4, 6)),
        "c.bias": ("torch.float32", (3,)),
        "d.half": ("torch.float16", (2, 2, 2)),
        "e.double_scalar": ("torch.float64", ()),
        "f.step": ("torch.int64", ()),
        "g.index": ("torch.int32", (2, 3)),
        "h.short": ("torch.int16", (5,)),
        "i.q": ("torch.int8", (5,)),
        "j.packed": ("torch.uint8", (7,)),
        "k.fp8": ("torch.float8_e4m3fn", (4, 4)),
        "l.fp8b": ("torch.float8_e5m2", (2, 3)),
        "m.fp8c": ("torch.float8_e4m3fnuz", (3,)),
        "n.fp8d": ("torch.float8_e5m2fnuz", (1, 1)),
        "o.empty": ("torch.float32", (0, 5)),
        "p.empty": ("torch.bfloat16", (3, 0, 2)),
        "q.byte_scalar": ("torch.uint8", ()),
        "A.upper": ("torch.bfloat16", (2, 1)),
    }
    tensors = [
        Tensor(
            name,
            dtype,
            shape,
            kind="buffer" if name[0] in "aefg" else "parameter",
            role="persistent_buffer" if name[0] in "aefg" else "weight",
        )
        for name, (dtype, shape) in shapes.items()
    ]
    return Artifact("alpha", identity("alpha"), {"model-00001-of-00001.safetensors": tensors})


def beta() -> Artifact:
    """Three payload files, tensors of one layer spread over files, metadata."""
    files: dict[str, list[Tensor]] = {f"model-{index:05d}-of-00003.safetensors": [] for index in (1, 2, 3)}
    names = list(files)
    for layer in range(4):
        for position, (suffix, dtype, shape) in enumerate(
            (
                ("attn.weight", "torch.bfloat16", (8, 4)),
                ("mlp.weight", "torch.bfloat16", (4, 8)),
                ("norm.scale", "torch.float32", (8,)),
            )
        ):
            files[names[(layer + position) % 3]].append(Tensor(f"blocks.{layer}.{suffix}", dtype, shape))
    document = identity("beta")
    document["source"]["metadata"] = {
        "files": [{"name": "модель.safetensors", "size": 12345678901234567890}, {"name": "b", "size": 0}],
        "ratio": 0.1,
        "tiny": 1e-07,
        "big": 1e16,
        "negative_zero": -0.0,
    }
    document["component"]["metadata"] = {"component_names": ["transformer", "ref\u2028iner \U0001f9e9"]}
    return Artifact(
        "beta",
        document,
        files,
        format_metadata={"format": "fixture", "tensor_count": 12, "nested": {"b": [1, 2.5, None], "a": True}},
    )


def gamma() -> Artifact:
    """Tensor-parallel shard with a merged adapter and non-ASCII tensor names."""
    document = identity("gamma")
    document["layout"].update(
        {
            "tensor_parallel_size": 2,
            "tensor_parallel_rank": 1,
            "sequence_parallel_size": 4,
            "sequence_parallel_backend": "ulysses",
        }
    )
    document["adaptation"] = {
        "kind": "merged-lora",
        "fingerprint": sha256(b"adapter"),
        "metadata": {"scale": 0.75},
    }
    return Artifact(
        "gamma",
        document,
        {
            "weights.safetensors": [
                Tensor("слой.вес", "torch.bfloat16", (2, 3)),
                Tensor("\U0001f9e9.scale", "torch.float32", (2,), kind="buffer", role="scale"),
                Tensor("\ufb01.ligature", "torch.int8", (4,)),
            ]
        },
    )


def build_base(root: Path) -> Store:
    force_remove(root)
    store = Store(root)
    store.create()
    for artifact in (alpha(), beta(), gamma()):
        store.publish(artifact)
    return store
