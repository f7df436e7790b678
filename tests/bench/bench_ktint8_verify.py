"""Verify in full, content rules included, against two threads of SHA-256 over the same files.

    python tests/bench/bench_ktint8_verify.py [--base DIR] [--rounds N]

The tree has the size of real layers (32 experts, 2048, 768) and is read from memory. Rounds are interleaved;
the medians and their ratio are printed, which is to be at least 0.75.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import torch

from hwctl.fs.digest import sha256_files
from hwctl.fs.paths import open_dir
from hwctl.stores.ktint8 import content, layout
from hwctl.weights.amx import Geometry, Kind

GEOMETRY = Geometry(hidden=2048, intermediate=768, experts=32, parts=1)
LAYERS = (0, 1, 2, 3)
WORKERS = 2


def make(root: Path) -> list[Path]:
    """Random codes with a full one in every row, and sound scales."""
    files = []
    generator = torch.Generator().manual_seed(1)
    for layer in LAYERS:
        folder = root / layout.layer_dir(layer) / layout.part_dir(0)
        folder.mkdir(parents=True)
        for file in layout.part_files(GEOMETRY).values():
            if file.kind is Kind.QUANT:
                codes = torch.randint(-127, 128, (file.size // 1024, 16, 16, 4), generator=generator)
                codes[:, 0, :, 0] = 127
                data = _bytes(codes.to(torch.int8))
            else:
                data = _bytes(torch.rand(file.size // 4, generator=generator) + 0.5)
            (folder / file.name).write_bytes(data)
            files.append(folder / file.name)
    return files


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def verify(root: Path) -> float:
    fd = open_dir(root)
    try:
        begin = time.perf_counter()
        for read in content.read_tree(fd, GEOMETRY, LAYERS, workers=WORKERS, rules=True):
            assert not read.findings, read.findings
        return time.perf_counter() - begin
    finally:
        os.close(fd)


def hashes(files: list[Path]) -> float:
    begin = time.perf_counter()
    for _path, digest in sha256_files(files, _open, workers=WORKERS):
        assert isinstance(digest, str)
    return time.perf_counter() - begin


def _open(path: Path) -> tuple[int, int]:
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC), path.stat().st_size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", type=Path, default=Path("/dev/shm"))
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="hwctl-bench-", dir=options.base))
    try:
        files = make(root)
        total = GEOMETRY.layer_bytes * len(LAYERS)
        verified, hashed = [], []
        for _ in range(options.rounds):
            verified.append(total / verify(root) / 1e9)
            hashed.append(total / hashes(files) / 1e9)
        print("verify GB/s", *(f"{speed:.2f}" for speed in verified))
        print("sha256 GB/s", *(f"{speed:.2f}" for speed in hashed))
        ratios = [one / other for one, other in zip(verified, hashed, strict=True)]
        print(f"ratio of medians {statistics.median(verified) / statistics.median(hashed):.3f}", end=", ")
        print(f"median of ratios {statistics.median(ratios):.3f}")
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
