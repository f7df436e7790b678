"""Costs of kt-int8 trees that grow with their files: verify by size, open, consume, evict, and their memory.

    python tests/bench/bench_ktint8_store.py [--base DIR] [--files N …]

Each step runs in a process of its own on a synthetic tree of 60 layers with 64 x 64 matrices; the memory is
the growth of the peak over what the process had after its imports. Times are in seconds.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LAYERS = 60
SIZE = 64
QUANT = b"\x7f" * (SIZE * SIZE)
SCALE = struct.pack("<f", 1.0) * SIZE
DIGESTS = {"quant": hashlib.sha256(QUANT).hexdigest(), "scale": hashlib.sha256(SCALE).hexdigest()}
RUN = "bench-tree"
STEPS = ("verify-size", "verify-full", "open", "remove", "consume")


def make(base: Path, files: int) -> Path:
    """A ready tree of about so many files, with digests."""
    experts = max(1, round(files / LAYERS / 6))
    root = base / f"kt-int8-{RUN}"
    layers = []
    for layer in range(LAYERS):
        folder = root / f"_layer_{layer}" / "_numa_0"
        folder.mkdir(parents=True, mode=0o700)
        listed = []
        for expert in range(experts):
            for matrix in ("down", "gate", "up"):
                for kind, data in (("quant", QUANT), ("scale", SCALE)):
                    name = f"INT8_{matrix}_{expert}_{len(data)}Byte_{kind}_.kt"
                    fd = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                    os.write(fd, data)
                    os.close(fd)
                    path = f"_layer_{layer}/_numa_0/{name}"
                    listed.append({"path": path, "size_bytes": len(data), "sha256": DIGESTS[kind]})
        total = experts * 3 * (len(QUANT) + len(SCALE))
        layers.append({"index": layer, "numa_count": 1, "state": "ready", "files": listed, "bytes": total})
    for folder in (root, *root.glob("_layer_*"), *root.glob("_layer_*/_numa_0")):
        folder.chmod(0o700)
    manifest = {
        "schema_version": 1,
        "state": "ready",
        "run_id": RUN,
        "owner_uid": os.getuid(),
        "producer_pid": os.getpid(),
        "created_unix_ns": time.time_ns(),
        "expert_weight_format": "int8",
        "backend": "AMXINT8",
        "threadpool_count": 1,
        "expert_num": experts,
        "hidden_size": SIZE,
        "intermediate_size": SIZE,
        "layers": layers,
        "bytes": sum(layer["bytes"] for layer in layers),
    }
    (root / "kt-ephemeral-manifest.json").write_text(
        json.dumps(manifest, sort_keys=True, separators=(",", ":"))
    )
    return root


def step(name: str, root: Path) -> None:
    """One step, measured in this process; prints seconds and bytes of memory."""
    from hwctl.fs.deadline import Deadline
    from hwctl.fs.lock_table import Mode
    from hwctl.stores.base import Artifact, CheckOptions, Level, State
    from hwctl.stores.ktint8.locating import recognise
    from hwctl.stores.ktint8.opening import Opening, open_tree
    from hwctl.stores.ktint8.store import open_store

    if name == "verify-full":
        import torch

        torch.set_num_threads(1)
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak of the imports
    before = _peak()
    begin = time.perf_counter()
    match = recognise(root)
    assert match is not None
    store = open_store(match.root)
    if name in ("open", "consume"):
        with open_tree(root, Opening()) as tree:
            if name == "consume":
                for layer in tree.left:
                    tree.consume(layer)
                tree.finish()
    else:
        artifact = store.look(Artifact(match.family, match.root, RUN, root, State.ABSENT))
        assert artifact is not None
        if name == "remove":
            with store.lease(artifact, Mode.EXCLUSIVE, Deadline.now()):
                store.remove(artifact)
        else:
            level = Level.SIZE if name == "verify-size" else Level.FULL
            report = store.check(artifact, level, CheckOptions(jobs=2))
            assert report.valid, report.findings[:3]
    print(time.perf_counter() - begin, _peak() - before)


def _peak() -> int:
    """The peak of the resident memory since it was last forgotten, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", type=Path, default=Path("/dev/shm"))
    parser.add_argument("--files", type=int, nargs="*", default=[18_000, 60_000, 180_000])
    parser.add_argument("--step")
    parser.add_argument("--root", type=Path)
    options = parser.parse_args()
    if options.step:
        step(options.step, options.root)
        return
    for files in options.files:
        for name in STEPS:
            base = Path(tempfile.mkdtemp(prefix="hwctl-bench-", dir=options.base))
            try:
                root = make(base, files)
                words = [sys.executable, __file__, "--step", name, "--root", str(root)]
                seconds, memory = subprocess.run(
                    words, capture_output=True, text=True, check=True
                ).stdout.split()
                each = f"{float(seconds) / files * 1e6:6.1f} us, {float(memory) / files:5.0f} B a file"
                print(
                    f"{files:7d} files  {name:12s} {float(seconds):7.2f} s {int(memory) >> 20:5d} MiB  {each}"
                )
            finally:
                shutil.rmtree(base)


if __name__ == "__main__":
    main()
