"""KTransformers' INT8 trees in a few lines, independent of hwctl: hidden and intermediate size 64.

A matrix is 64 x 64 codes of 127 and 64 scales of 1.0, which every content rule accepts.
"""

from __future__ import annotations

import json
import os
import struct
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

SIZE = 64
QUANT = b"\x7f" * (SIZE * SIZE)
SCALE = struct.pack("<f", 1.0) * SIZE
MANIFEST = "kt-ephemeral-manifest.json"
LEASE = "kt-ephemeral-staging-lease.json"
GONE = 2**22 - 7
"""A pid that no process has: pid_max is at most 2^22, and counting starts from the other end."""


def compact(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def this_process(pid: int | None = None) -> dict[str, object]:
    """What hwctl's own leases say of a process, here the calling one."""
    fields = Path(f"/proc/{pid or 'self'}/stat").read_text().rpartition(")")[2].split()
    return {
        "boot_id": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        "pid_ns": os.stat("/proc/self/ns/pid").st_ino,
        "start_ticks": int(fields[19]),
    }


def dead_process() -> dict[str, object]:
    """The same of a process that is certainly gone: no process started at tick 1 under that pid."""
    return this_process() | {"start_ticks": 1}


def fill(root: Path, layers: Iterable[int], experts: int = 1) -> list[dict[str, object]]:
    """Write the layers' files; the layer objects of a manifest."""
    found = []
    for layer in layers:
        files = []
        folder = root / f"_layer_{layer}" / "_numa_0"
        folder.mkdir(parents=True, mode=0o700)
        folder.parent.chmod(0o700)
        for expert in range(experts):
            for matrix in ("gate", "up", "down"):
                for kind, data in (("quant", QUANT), ("scale", SCALE)):
                    path = folder / f"INT8_{matrix}_{expert}_{len(data)}Byte_{kind}_.kt"
                    path.write_bytes(data)
                    files.append({"path": str(path.relative_to(root)), "size_bytes": len(data)})
        files.sort(key=lambda file: str(file["path"]))
        total = experts * 3 * (len(QUANT) + len(SCALE))
        found.append({"index": layer, "numa_count": 1, "state": "ready", "files": files, "bytes": total})
    return found


def make_staging(
    base: Path,
    run: str,
    *,
    pid: int = GONE,
    process: Mapping[str, object] | None = None,
    layers: int = 1,
    age: float = 0.0,
    lease: bool = True,
    uid: int | None = None,
) -> Path:
    """A staging root; ``process`` is hwctl's own part of the lease, None as kt-kernel writes it."""
    root = base / f"kt-int8-{run}.staging"
    root.mkdir(mode=0o700)
    fill(root, range(layers))
    if lease:
        document: dict[str, object] = {
            "schema_version": 1,
            "run_id": run,
            "owner_uid": os.geteuid() if uid is None else uid,
            "producer_pid": pid,
        }
        if process is not None:
            document["hwctl"] = dict(process)
        (root / LEASE).write_bytes(compact(document))
        (root / LEASE).chmod(0o600)
    set_age(root, age)
    return root


def make_ready(
    base: Path,
    run: str,
    *,
    states: Sequence[str] = ("ready",),
    process: Mapping[str, object] | None = None,
    age: float = 0.0,
) -> Path:
    """A published tree; layers that are ``consumed`` have no files left."""
    root = base / f"kt-int8-{run}"
    root.mkdir(mode=0o700)
    layers = fill(root, range(len(states)))
    for layer, state in zip(layers, states, strict=True):
        layer["state"] = state
        if state == "consumed":
            folder = root / f"_layer_{layer['index']}"
            for path in sorted(folder.rglob("*"), reverse=True):
                path.rmdir() if path.is_dir() else path.unlink()
            folder.rmdir()
    manifest: dict[str, object] = {
        "schema_version": 1,
        "state": "ready",
        "run_id": run,
        "owner_uid": os.geteuid(),
        "producer_pid": GONE,
        "created_unix_ns": time.time_ns(),
        "expert_weight_format": "int8",
        "backend": "AMXINT8",
        "threadpool_count": 1,
        "expert_num": 1,
        "hidden_size": SIZE,
        "intermediate_size": SIZE,
        "layers": layers,
        "bytes": sum(int(str(layer["bytes"])) for layer in layers),
    }
    if process is not None:
        manifest["hwctl"] = {"producer": {"pid": GONE, **process}}
    (root / MANIFEST).write_bytes(compact(manifest))
    (root / MANIFEST).chmod(0o600)
    set_age(root, age)
    return root


def give_away(root: Path, uid: int) -> None:
    """Make a tree another user's, by its documents, too."""
    for document in (root / MANIFEST, root / LEASE):
        if document.exists():
            document.write_bytes(compact(json.loads(document.read_bytes()) | {"owner_uid": uid}))
    for path in (root, *root.rglob("*")):
        os.chown(path, uid, uid)


def set_age(root: Path, seconds: float) -> None:
    """Let everything in the tree look as if nobody had written there for so long (mtime; ctime stays)."""
    if seconds:
        then = time.time_ns() - int(seconds * 1e9)
        for path in [root, *root.rglob("*")]:
            os.utime(path, ns=(then, then), follow_symlinks=False)
