"""How fast ``hwctl.fs.digest`` is beside hashing the same bytes in memory.

Usage: python tests/bench/fs_digest.py [FOLDER] [MiB per file]. Rounds are interleaved and the best of each is
compared, since a shared machine is never the same twice; where others work too, processor time tells more
than the clock. The page cache is warm, so that the disk plays no part.
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


def compare(cases: dict[str, Callable[[], object]], total: int) -> dict[str, tuple[float, float]]:
    """MB per second of wall time and of processor time, the best of all rounds."""
    best = dict.fromkeys(cases, (float("inf"), float("inf")))
    for _ in range(ROUNDS):
        for name, case in cases.items():
            begun, worked = time.perf_counter(), time.process_time()
            case()
            wall, cpu = time.perf_counter() - begun, time.process_time() - worked
            best[name] = (min(best[name][0], wall), min(best[name][1], cpu))
    return {name: (total / wall / 1e6, total / cpu / 1e6) for name, (wall, cpu) in best.items()}


def told(title: str, rates: dict[str, tuple[float, float]], ours: str, other: str) -> None:
    for name, (wall, cpu) in rates.items():
        print(f"{title}: {name:13} {wall:6.0f} MB/s, {cpu:6.0f} MB per second of processor time")
    wall, cpu = (rates[ours][number] / rates[other][number] for number in range(2))
    print(f"{title}: {ours} is {wall:.3f} times {other} by the clock, {cpu:.3f} by processor time")


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
            told(f"{FILES} files, {threads} threads", rates, "sha256_files", "in memory")
        rates = compare(
            {"8 MiB preads": lambda: by_large_preads(paths[0]), "sha256_fd": lambda: one_file(paths[0])}, size
        )
        told("one file", rates, "sha256_fd", "8 MiB preads")


if __name__ == "__main__":
    main()
