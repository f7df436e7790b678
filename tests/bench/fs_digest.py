"""How fast ``hwctl.fs.digest`` is beside hashing the same bytes in memory.

Usage: python tests/bench/fs_digest.py [FOLDER] [MiB per file]. Rounds are interleaved, since a shared machine
is never the same twice; the best of each is compared. Page cache warm, so that the disk plays no part.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from hwctl.fs.digest import sha256_fd, sha256_files

FILES = 8
ROUNDS = 5


def opened(path: Path) -> tuple[int, int]:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    return fd, os.fstat(fd).st_size


def in_memory(blocks: list[bytes], threads: int) -> None:
    def work(mine: list[bytes]) -> None:
        for block in mine:
            hashlib.sha256(block).hexdigest()

    workers = [threading.Thread(target=work, args=(blocks[number::threads],)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def by_large_preads(path: Path) -> None:
    fd, size = opened(path)
    digest, offset = hashlib.sha256(), 0
    while offset < size:
        data = os.pread(fd, 8 << 20, offset)
        digest.update(data)
        offset += len(data)
    os.close(fd)


def one_file(path: Path) -> None:
    fd, size = opened(path)
    sha256_fd(fd, size)
    os.close(fd)


def compare(cases: dict[str, Callable[[], object]], total: int) -> dict[str, float]:
    best = dict.fromkeys(cases, float("inf"))
    for _ in range(ROUNDS):
        for name, case in cases.items():
            begun = time.perf_counter()
            case()
            best[name] = min(best[name], time.perf_counter() - begun)
    return {name: total / seconds / 1e6 for name, seconds in best.items()}


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path("/dev/shm")
    size = int(sys.argv[2] if len(sys.argv) > 2 else 64) << 20
    with tempfile.TemporaryDirectory(dir=folder, prefix="hwctl-bench-") as temporary:
        paths = [Path(temporary) / f"{number}.bin" for number in range(FILES)]
        blocks = [os.urandom(size) for _ in paths]
        for path, block in zip(paths, blocks, strict=True):
            path.write_bytes(block)
        os.sync()
        for path in paths:
            path.read_bytes()
        for threads in (1, 2):
            rates = compare(
                {
                    "in memory": lambda n=threads: in_memory(blocks, n),
                    "sha256_files": lambda n=threads: list(sha256_files(paths, opened, workers=n)),
                },
                size * FILES,
            )
            ratio = rates["sha256_files"] / rates["in memory"]
            print(f"{FILES} files, {threads} threads: {rates} MB/s, ratio {ratio:.3f}")
        single = compare(
            {
                "in memory": lambda: in_memory(blocks[:1], 1),
                "8 MiB preads": lambda: by_large_preads(paths[0]),
                "sha256_fd": lambda: one_file(paths[0]),
            },
            size,
        )
        print(f"one file: {single} MB/s, against preads {single['sha256_fd'] / single['8 MiB preads']:.3f}")


if __name__ == "__main__":
    main()
