"""How long reclaim-stale, evict and inspect take, and how that grows with the store.

    python tests/bench/bench_lifecycle.py [--folder DIR] [--only NAME …] [--counts N …] [--trees N]
                                           [--files N]

Every number is a whole process's, the best of a few; ``rm -rf`` of the same tree is what deleting can be
measured against.
The figures worth keeping: reclaiming one tree of 180,000 files takes at most twice the time of ``rm -rf``,
and planning grows in step with the entries.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "makers"))
sys.path.insert(0, str(Path(__file__).parent.parent.parent))

import make_hostweights
import make_ktint8
import make_pageweights

COUNTS = (100, 1000, 10000)
TREES = 1000
FILES = 180_000
BEST_OF = 3


def seconds(*words: str | Path) -> float:
    """How long one hwctl process took; it must end well."""
    root = Path(__file__).parent.parent.parent
    begin = time.perf_counter()
    subprocess.run(
        [sys.executable, "-P", "-m", "hwctl", *map(str, words)],
        env=os.environ | {"PYTHONPATH": str(root)},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return time.perf_counter() - begin


def best(measure: Callable[[], float]) -> float:
    return min(measure() for _ in range(BEST_OF))


def big_tree(base: Path, run: str, files: int) -> Path:
    """One staging tree of a large model: layers of 500 experts, six files each, empty but for a byte."""
    root = base / f"kt-int8-{run}.staging"
    root.mkdir(mode=0o700)
    experts = min(500, files // 6)
    for layer in range(files // (6 * experts)):
        folder = root / f"_layer_{layer}" / "_numa_0"
        folder.mkdir(parents=True)
        fd = os.open(folder, os.O_RDONLY)
        for expert in range(experts):
            for matrix in ("gate", "up", "down"):
                for kind in ("quant", "scale"):
                    name = f"INT8_{matrix}_{expert}_1Byte_{kind}_.kt"
                    file = os.open(name, os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=fd)
                    os.write(file, b"\x7f")
                    os.close(file)
        os.close(fd)
    lease = {"schema_version": 1, "run_id": run, "owner_uid": os.geteuid(), "producer_pid": make_ktint8.GONE}
    document = lease | {"hwctl": make_ktint8.dead_process()}
    (root / make_ktint8.LEASE).write_bytes(make_ktint8.compact(document))
    return root


def small_trees(base: Path, count: int) -> None:
    process = make_ktint8.dead_process()
    for number in range(count):
        make_ktint8.make_staging(base, f"small-{number:04d}", process=process)


def rm(path: Path) -> float:
    os.sync()
    begin = time.perf_counter()
    subprocess.run(["rm", "-rf", str(path)], check=True)
    return time.perf_counter() - begin


def reclaim(base: Path) -> float:
    os.sync()
    return seconds("reclaim-stale", base, "-y")


def deleting(folder: Path, fill: Callable[[Path], object]) -> tuple[float, float]:
    """Seconds of reclaim-stale and of rm -rf for the same thing, taken turn about."""
    ours, theirs = [], []
    for number in range(BEST_OF):
        for measured, how in ((ours, reclaim), (theirs, rm)):
            base = folder / f"base-{number}"
            base.mkdir()
            fill(base)
            measured.append(how(base))
            shutil.rmtree(base, ignore_errors=True)
    return min(ours), min(theirs)


def grown(make: Callable[[int], object], counts: Sequence[int]) -> Iterator[int]:
    """Grow a store step by step, yielding the count at each."""
    made = 0
    for count in counts:
        for number in range(made, count):
            make(number)
        made = count
        yield count


def bench_reclaim(folder: Path, started: float, given: argparse.Namespace) -> None:
    ours, theirs = deleting(folder, lambda base: small_trees(base, given.trees))
    print(f"reclaim-stale, {given.trees} trees of 7 files: {ours:.2f} s, rm -rf {theirs:.2f} s")
    ours, theirs = deleting(folder, lambda base: big_tree(base, "large-1", given.files))
    work = ours - started
    print(
        f"reclaim-stale, 1 tree of {given.files} files: {ours:.2f} s ({work:.2f} s without start-up), "
        f"rm -rf {theirs:.2f} s, ratio {ours / theirs:.2f}"
    )


def bench_growth(folder: Path, _started: float, given: argparse.Namespace) -> None:
    cache, store = folder / "cache", folder / "store"
    make_pageweights.make_store(cache)
    make_hostweights.make_store(store)
    makers = {
        "pages": (cache, lambda number: make_pageweights.make_artifact(cache, number)),
        "artifacts": (store, lambda number: make_hostweights.make_artifact(store, number, 16)),
    }
    print(f"at {', '.join(map(str, given.counts))} entries:")
    for what, (root, make) in makers.items():
        plans, looks = [], []
        for _count in grown(make, given.counts):
            plans.append(best(lambda root=root: seconds("evict", root, "--keep", "1", "-n", "-q")))
            looks.append(best(lambda root=root: seconds("inspect", root, "-q")))
        for verb, found in (("plan of an eviction", plans), ("inspect", looks)):
            print(f"{what}, {verb}: {', '.join(f'{passed * 1e3:.0f} ms' for passed in found)}")


BENCHES = {"reclaim": bench_reclaim, "growth": bench_growth}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="where to make the stores; default: the temporary folder")
    parser.add_argument("--only", nargs="+", choices=sorted(BENCHES), default=sorted(BENCHES))
    parser.add_argument("--counts", nargs="+", type=int, default=COUNTS, help="entries of a growing store")
    parser.add_argument("--trees", type=int, default=TREES, help="small trees to reclaim")
    parser.add_argument("--files", type=int, default=FILES, help="files of the large tree to reclaim")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="hwctl-bench-", dir=given.folder))
    try:
        started = best(lambda: seconds("evict", "--help"))
        print(f"on {make_hostweights.fs_type(folder)}, start-up alone {started:.2f} s")
        for name in given.only:
            BENCHES[name](folder, started, given)
    finally:
        subprocess.run(["chmod", "-R", "u+w", str(folder)], check=True)
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
