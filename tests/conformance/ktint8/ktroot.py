"""Deterministic builder of small, valid kt-int8 roots, plus helpers to damage them.

Nothing here imports kt-kernel or hwctl: the files are written from the format description alone.
Every builder takes the directory that plays the part of the shared-memory base.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import subprocess
import sys
from pathlib import Path

MANIFEST = "kt-ephemeral-manifest.json"
MANIFEST_V2 = "kt-weight-manifest.json"
LEASE = "kt-ephemeral-staging-lease.json"
LAYOUT = "kt-int8-n32-k64-vnni-v1"
RUN = "case-run-01"
GEO = {"layers": (3, 4), "numa": 2, "experts": 2, "hidden": 64, "intermediate": 128}
DEAD_PID = 2**30  # above any pid_max Linux allows (2**22)


def quant_bytes(rows: int, cols: int, seed: int) -> bytes:
    """rows*cols packed codes: no -128 anywhere, a +127 in every row (as every real store has)."""
    out = bytearray((((i * 37 + seed * 11) % 255) - 127) & 0xFF for i in range(rows * cols))
    for panel in range(0, rows * cols, 1024):
        for lane in range(16):
            out[panel + lane * 4] = 127
    return bytes(out)


def scale_bytes(rows: int, seed: int) -> bytes:
    return b"".join(struct.pack("<f", (1 + (i + seed) % 7) / 1024) for i in range(rows))


def file_plan(numa: int, experts: int, hidden: int, intermediate: int):
    """(numa index, projection, expert, kind, size) for one layer, in path order."""
    part = intermediate // numa
    for n in range(numa):
        for proj in ("down", "gate", "up"):
            rows, cols = (hidden, part) if proj == "down" else (part, hidden)
            for e in range(experts):
                yield n, proj, e, "quant", rows, cols
                yield n, proj, e, "scale", rows, cols


def kt_name(proj: str, expert, kind: str, size) -> str:
    return f"INT8_{proj}_{expert}_{size}Byte_{kind}_.kt"


def write_tree(root: Path, geo: dict) -> None:
    root.mkdir(mode=0o700)
    for layer in geo["layers"]:
        for n in range(geo["numa"]):
            (root / f"_layer_{layer}" / f"_numa_{n}").mkdir(parents=True, mode=0o700)
        for n, proj, e, kind, rows, cols in file_plan(
            geo["numa"], geo["experts"], geo["hidden"], geo["intermediate"]
        ):
            seed = layer * 100 + n * 40 + e * 7 + len(proj)
            data = quant_bytes(rows, cols, seed) if kind == "quant" else scale_bytes(rows, seed)
            p = root / f"_layer_{layer}" / f"_numa_{n}" / kt_name(proj, e, kind, len(data))
            p.write_bytes(data)
            p.chmod(0o600)


def layer_record(root: Path, layer: int, geo: dict, with_hash: bool) -> dict:
    files = []
    for p in sorted(
        (root / f"_layer_{layer}").glob("_numa_*/*.kt"), key=lambda q: q.relative_to(root).as_posix()
    ):
        item = {"path": p.relative_to(root).as_posix(), "size_bytes": p.stat().st_size}
        if with_hash:
            item["sha256"] = hashlib.sha256(p.read_bytes()).hexdigest()
        files.append(item)
    return {
        "index": layer,
        "numa_count": geo["numa"],
        "state": "ready",
        "files": files,
        "bytes": sum(f["size_bytes"] for f in files),
    }


def manifest_v1(root: Path, run: str, geo: dict) -> dict:
    layers = [layer_record(root, layer, geo, False) for layer in sorted(geo["layers"])]
    return {
        "schema_version": 1,
        "state": "ready",
        "run_id": run,
        "owner_uid": os.getuid(),
        "producer_pid": DEAD_PID,
        "created_unix_ns": 1_700_000_000_000_000_000,
        "expert_weight_format": "int8",
        "backend": "AMXINT8",
        "threadpool_count": geo["numa"],
        "expert_num": geo["experts"],
        "hidden_size": geo["hidden"],
        "intermediate_size": geo["intermediate"],
        "layers": layers,
        "bytes": sum(layer["bytes"] for layer in layers),
    }


def manifest_v2(root: Path, geo: dict) -> dict:
    layers = [layer_record(root, layer, geo, True) for layer in sorted(geo["layers"])]
    return {
        "schema_version": 2,
        "state": "ready",
        "expert_weight_format": "int8",
        "backend": "INT8",
        "layout": LAYOUT,
        "threadpool_count": geo["numa"],
        "expert_num": geo["experts"],
        "hidden_size": geo["hidden"],
        "intermediate_size": geo["intermediate"],
        "layers": layers,
        "bytes": sum(layer["bytes"] for layer in layers),
    }


def lease(run: str = RUN, pid=DEAD_PID, **extra) -> dict:
    return {"schema_version": 1, "run_id": run, "owner_uid": os.getuid(), "producer_pid": pid, **extra}


def dump(path: Path, value) -> None:
    path.write_text(
        value if isinstance(value, str) else json.dumps(value, sort_keys=True, separators=(",", ":")),
        encoding="utf-8",
    )
    path.chmod(0o600)


def staging(base: Path, run: str = RUN, geo: dict | None = None, lease_doc="default") -> Path:
    geo = {**GEO, **(geo or {})}
    root = base / f"kt-int8-{run}.staging"
    write_tree(root, geo)
    if lease_doc == "default":
        lease_doc = lease(run)
    if lease_doc is not None:
        dump(root / LEASE, lease_doc)
    return root


def ready(base: Path, run: str = RUN, geo: dict | None = None, edit=None) -> Path:
    geo = {**GEO, **(geo or {})}
    root = base / f"kt-int8-{run}"
    write_tree(root, geo)
    doc = manifest_v1(root, run, geo)
    if edit:
        edit(doc)
    dump(root / MANIFEST, doc)
    return root


def persistent(base: Path, geo: dict | None = None, edit=None, schema: int = 2, name: str = "store") -> Path:
    geo = {**GEO, **(geo or {})}
    root = base / name
    write_tree(root, geo)
    doc = manifest_v2(root, geo) if schema == 2 else manifest_v1(root, RUN, geo)
    if edit:
        edit(doc)
    dump(root / (MANIFEST_V2 if schema == 2 else MANIFEST), doc)
    return root


def kt_files(root: Path, layer: int = 3, numa: int = 0) -> list[Path]:
    return sorted((root / f"_layer_{layer}" / f"_numa_{numa}").glob("*.kt"))


def one(root: Path, proj="gate", expert=0, kind="quant", layer=3, numa=0) -> Path:
    return next((root / f"_layer_{layer}" / f"_numa_{numa}").glob(f"INT8_{proj}_{expert}_*Byte_{kind}_.kt"))


def remake(root: Path, geo: dict | None = None) -> dict:
    """Manifest (schema 1) rebuilt from what is on disk now, consistent with it."""
    return manifest_v1(
        root, root.name.removeprefix("kt-int8-").removesuffix(".staging"), {**GEO, **(geo or {})}
    )


def snapshot(base: Path) -> dict:
    """What lies under base: {relative path: [type, mode, uid, size, digest or link target]}."""
    seen = {}
    for cur, dirs, files in os.walk(base, followlinks=False):
        for name in dirs + files:
            p = Path(cur) / name
            st = p.lstat()
            rel = p.relative_to(base).as_posix()
            if p.is_symlink():
                seen[rel] = ["link", 0, st.st_uid, 0, os.readlink(p).replace(str(base), "{base}")]
            elif p.is_dir():
                seen[rel] = ["dir", st.st_mode & 0o7777, st.st_uid, 0, ""]
            elif p.is_file():
                seen[rel] = [
                    "file",
                    st.st_mode & 0o7777,
                    st.st_uid,
                    st.st_size,
                    hashlib.sha256(p.read_bytes()).hexdigest()[:12],
                ]
            else:
                seen[rel] = ["other", st.st_mode & 0o7777, st.st_uid, 0, ""]
    return seen


HOLDERS: list[subprocess.Popen] = []
"""Processes that hold a lock for a case; whoever runs cases ends them with ``release_locks``."""

_HOLD = """
import fcntl, os, sys, time
fd = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECTORY)
fcntl.flock(fd, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(60)
"""


def hold_lock(root: Path) -> None:
    """Another process takes an exclusive flock on the root, as a live hwctl producer or consumer does."""
    holder = subprocess.Popen([sys.executable, "-c", _HOLD, str(root)], stdout=subprocess.PIPE)
    HOLDERS.append(holder)
    assert holder.stdout is not None
    holder.stdout.readline()


def release_locks() -> None:
    while HOLDERS:
        holder = HOLDERS.pop()
        holder.kill()
        holder.communicate()


class Case(dict):
    """id, op, what, hwctl (the verdict wanted), build(base) -> root, optional after_open(base, root)"""


def registry():
    cases: dict[str, Case] = {}

    def case(
        cid: str,
        op: str,
        what: str,
        hwctl: str,
        needs_root: bool = False,
        after_open=None,
        note: str = "",
        **call,
    ):
        def deco(fn):
            assert cid not in cases, cid
            cases[cid] = Case(
                id=cid,
                op=op,
                what=what,
                hwctl=hwctl,
                needs_root=needs_root,
                note=note,
                build=fn,
                after_open=after_open,
                call=call,
            )
            return fn

        return deco

    return cases, case
