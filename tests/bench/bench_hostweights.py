"""Host weight stores beside vLLM-Omni's own library: publish, verify, many tensors, a store with a limit.

    python tests/bench/bench_hostweights.py [FOLDER] [PART …] [--mib N] [--rounds N]

FOLDER should lie in memory; parts are publish, verify, tensors, limit and memory, by default all. Both are
called as libraries on the same tensors, the identity given. Rounds are interleaved, since a shared machine is
never the same twice, and medians are compared. Ends with 1 when a floor is missed.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS.parent), str(TESTS / "makers"), str(Path(__file__).parent)]

import hostweights_peer as peer  # noqa: E402
import torch  # noqa: E402

from hwctl.fs.deadline import Deadline  # noqa: E402
from hwctl.fs.mounts import MEMORY  # noqa: E402
from hwctl.stores.base import CheckOptions, Level  # noqa: E402
from hwctl.stores.hostweights.build import get_or_build  # noqa: E402
from hwctl.stores.hostweights.domain import Capacity  # noqa: E402
from hwctl.stores.hostweights.identity import Identity  # noqa: E402
from hwctl.stores.hostweights.identity_document import read_identity  # noqa: E402
from hwctl.stores.hostweights.lookup import lookup  # noqa: E402
from hwctl.stores.hostweights.opening import Wanted, open_root  # noqa: E402
from hwctl.stores.hostweights.publication import Publication  # noqa: E402
from hwctl.stores.hostweights.tensors import TensorSpec  # noqa: E402
from hwctl.stores.hostweights.verdict import Outcome  # noqa: E402
from hwctl.stores.hostweights.writer import ArtifactWriter  # noqa: E402

GiB = 1 << 30
MiB = 1 << 20
WORKERS = 2

Files = dict[str, dict[str, torch.Tensor]]


@dataclass
class Extent:
    """How much is done: ``size`` bytes of weights, so many small ``tensors``, ``shards``, and how often."""

    size: int = GiB
    tensors: int = 20_000
    shards: int = 256
    rounds: int = 5


EXTENT = Extent()


@dataclass(frozen=True)
class Floor:
    """What is measured, how many times as fast as the other it has to be, and the seconds of both."""

    name: str
    factor: float
    other: float
    hwctl: float
    size: int = 0
    whose: str = "peer"

    @property
    def held(self) -> bool:
        return self.other / self.hwctl >= self.factor

    def __str__(self) -> str:
        rate = f"  {self.size / self.hwctl / 1e9:5.2f} GB/s" if self.size else ""
        return (
            f"{self.name:46} {self.whose} {self.other * 1e3:9.1f} ms  hwctl {self.hwctl * 1e3:9.1f} ms"
            f"{rate}  {self.other / self.hwctl:6.2f}x (floor {self.factor:.2f}x)"
            f"  {'ok' if self.held else 'MISSED'}"
        )


@dataclass(frozen=True)
class Limit:
    """Memory that was needed at the peak beyond what was needed before, and the most it may be, in MiB."""

    name: str
    most: float
    found: float

    @property
    def held(self) -> bool:
        return self.found <= self.most

    def __str__(self) -> str:
        verdict = "ok" if self.held else "MISSED"
        return f"{self.name}: {self.found:.0f} MiB more than before (limit {self.most:.0f})  {verdict}"


def timed(call: Callable[[], object]) -> float:
    gc.collect()
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def medians(**calls: Callable[[], float]) -> dict[str, float]:
    """Each call once a round, in turn; the median of what they return."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(EXTENT.rounds):
        for name, call in calls.items():
            times[name].append(call())
    return {name: statistics.median(found) for name, found in times.items()}


@contextmanager
def fresh(folder: Path) -> Iterator[Path]:
    """An empty folder that is gone afterwards, read-only artifacts and all."""
    path = Path(tempfile.mkdtemp(prefix="hwctl-bench-", dir=folder))
    try:
        yield path
    finally:
        for directory, _, _ in os.walk(path):
            os.chmod(directory, 0o700)
        shutil.rmtree(path)


def make_files(count: int, tensors: int = 64, size: int = 0) -> Files:
    """bf16 tensors of ``size`` bytes in all, spread evenly over ``count`` files in name order."""
    rows = (size or EXTENT.size) // tensors // 2 // 1024
    files: Files = {}
    for number in range(tensors):
        name = f"model-{number * count // tensors + 1:05d}-of-{count:05d}.safetensors"
        data = torch.randint(0, 1 << 15, (rows, 1024), dtype=torch.int16).view(torch.bfloat16)
        files.setdefault(name, {})[f"blocks.{number:05d}.weight"] = data
    return files


def publication(files: Files, tag: str) -> Publication:
    identity = read_identity(peer.identity_bytes(tag))
    assert isinstance(identity, Identity)
    specs = [
        TensorSpec(name, "torch.bfloat16", tuple(tensor.shape), file)
        for file, tensors in files.items()
        for name, tensor in tensors.items()
    ]
    return Publication(identity, tuple(specs))


def publish(root: Path, files: Files, tag: str, capacity: Capacity | None = None) -> None:
    def produce(writer: ArtifactWriter) -> None:
        for file, tensors in files.items():
            with writer.open(file, ordered=True) as payload:
                for name in payload.plan.extents:
                    # The tensors stay as they are, so nothing has to be waited for but the end.
                    payload.put(name, 0, memoryview(tensors[name].view(torch.uint8).numpy()).cast("B"))

    store = open_root(root, Wanted(capacity=capacity))
    found = get_or_build(
        store, publication(files, tag), produce, level=Level.SIZE, deadline=Deadline.after(600)
    )
    assert found.outcome is Outcome.BUILT and found.lease is not None
    found.lease.release()


def look_up(root: Path, tag: str, level: Level) -> None:
    identity = read_identity(peer.identity_bytes(tag))
    assert isinstance(identity, Identity)
    found = lookup(
        open_root(root, Wanted()), identity, level, Deadline.never(), options=CheckOptions(jobs=WORKERS)
    )
    assert found.outcome is Outcome.HIT and found.lease is not None, found
    found.lease.release()


def in_memory(files: Files) -> None:
    """SHA-256 of the same bytes in memory, in two threads."""
    blocks = [
        memoryview(tensor.view(torch.uint8).numpy()).cast("B")
        for tensors in files.values()
        for tensor in tensors.values()
    ]

    def work(mine: list[memoryview]) -> None:
        for block in mine:
            hashlib.sha256(block)

    threads = [threading.Thread(target=work, args=(blocks[number::WORKERS],)) for number in range(WORKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def bench_publish(folder: Path) -> Iterator[Floor]:
    yield _publishing(folder, 1, 1.5)
    yield _publishing(folder, 8, 1.35)


def _publishing(folder: Path, count: int, factor: float) -> Floor:
    files = make_files(count)

    def once(call: Callable[[Path], object]) -> float:
        with fresh(folder) as path:
            return timed(lambda: call(path / "store"))

    found = medians(
        ordered=lambda: once(lambda root: peer.publish(root, files, "p", ordered=True)),
        unordered=lambda: once(lambda root: peer.publish(root, files, "p", ordered=False)),
        hwctl=lambda: once(lambda root: publish(root, files, "p")),
    )
    best = min(found["ordered"], found["unordered"])
    size = EXTENT.size
    name = f"publish {size // MiB} MiB, 64 tensors, {count} file(s)"
    return Floor(name, factor, best, found["hwctl"], size)


def bench_verify(folder: Path) -> Iterator[object]:
    """On a disk, with the page cache warm, and in memory."""
    for place in {Path(tempfile.gettempdir()): None, folder: None}:
        kind = peer.fs_type(place)
        yield from _verifying(place, kind, 8, 1.6)
        yield from _verifying(place, kind, 1, 1.0)


def _verifying(folder: Path, kind: str, count: int, factor: float) -> Iterator[object]:
    files = make_files(count)
    with fresh(folder) as path:
        root = path / "store"
        publish(root, files, "v")
        found = medians(
            peer=lambda: timed(lambda: peer.look_up(root, "v", "full_checksum")),
            memory=lambda: timed(lambda: in_memory(files)),
            hwctl=lambda: timed(lambda: look_up(root, "v", Level.FULL)),
        )
    size = EXTENT.size
    name = f"verify in full {size // MiB} MiB, {count} file(s), {kind}"
    yield Floor(name, factor, found["peer"], found["hwctl"], size)
    if count == 1:
        return
    if kind in MEMORY:
        # A tmpfs keeps a file in scattered pages of 4 KiB. Reaching those bounds even a hash over a map of
        # them, so there is no floor here, only the number.
        yield f"  beside two threads over memory: {found['memory'] / found['hwctl']:.2f}x"
    else:
        yield Floor("  beside two threads over memory", 0.85, found["memory"], found["hwctl"], size, "them")


def bench_tensors(folder: Path) -> Iterator[Floor]:
    count = EXTENT.tensors
    files = make_files(4, tensors=count, size=count * 64 * 1024)
    with fresh(folder) as path:
        root = path / "store"
        publish(root, files, "t")
        del files
        found = medians(
            peer=lambda: timed(lambda: peer.look_up(root, "t", "manifest_and_metadata")),
            hwctl=lambda: timed(lambda: look_up(root, "t", Level.SIZE)),
        )
    yield Floor(f"verify sizes of {count:,} tensors", 10.0, found["peer"], found["hwctl"])


def bench_limit(folder: Path) -> Iterator[Floor]:
    """Many shards into a store of 3,000 files with max_store_bytes set."""
    count = EXTENT.shards
    files = make_files(count, tensors=count, size=count * 4096)
    limit = 1 << 40
    with fresh(folder) as path:
        root = path / "store"
        open_root(root, Wanted(capacity=Capacity(max_store_bytes=limit)))
        for number in range(3000):
            (root / "quarantine" / f"{number}").write_bytes(b"x")
        rounds = iter(range(2 * EXTENT.rounds))
        found = medians(
            peer=lambda: timed(
                lambda: peer.publish(root, files, f"l{next(rounds)}", ordered=True, limit=limit)
            ),
            hwctl=lambda: timed(
                lambda: publish(root, files, f"l{next(rounds)}", Capacity(max_store_bytes=limit))
            ),
        )
    yield Floor(f"{count} shards into a limited store of 3,000 files", 20.0, found["peer"], found["hwctl"])


def bench_memory(folder: Path) -> Iterator[Limit]:
    """Peak memory above that of the interpreter with everything loaded, in a process of its own each: of few
    tensors of many bytes, and of many small ones."""
    for work in ("publish", "verify"):
        for tensors in (64, 5 * EXTENT.tensors):
            words = [sys.executable, __file__, "--mib", str(EXTENT.size // MiB), str(folder)]
            run = subprocess.run(
                [*words, f"peak-{work}-{tensors}"], capture_output=True, text=True, check=True
            )
            most = 250 + tensors / 1024
            yield Limit(f"peak memory of {work}, {tensors:,} tensors", most, float(run.stdout))


def status(field: str) -> int:
    """A field of /proc/self/status in KiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1])
    raise LookupError(field)


def reset_peak() -> int:
    """Begin to measure the peak anew; resident memory now, in KiB."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    return status("VmRSS")


def peak(folder: Path, work: str, tensors: int) -> float:
    """MiB at the peak of ``work`` on tensors that are made one at a time, as a producer streams them."""
    block = memoryview(bytearray(os.urandom(EXTENT.size // tensors // 2 * 2)))

    def produce(writer: ArtifactWriter) -> None:
        for file in writer.file_names:
            with writer.open(file) as payload:
                for name in payload.plan.extents:
                    payload.write_tensor(name, block)

    identity = read_identity(peer.identity_bytes("m"))
    assert isinstance(identity, Identity)
    with fresh(folder) as path:
        root = open_root(path / "store", Wanted())
        before = reset_peak()
        specs = tuple(
            TensorSpec(f"t{n:06d}", "torch.bfloat16", (len(block) // 2,), f"m{n * 8 // tensors}.safetensors")
            for n in range(tensors)
        )
        found = get_or_build(root, Publication(identity, specs), produce, deadline=Deadline.after(600))
        assert found.lease is not None
        found.lease.release()
        if work == "verify":
            del specs
            before = reset_peak()
            look_up(root.path, "m", Level.FULL)
        return (status("VmHWM") - before) / 1024


PARTS: dict[str, Callable[[Path], Iterator[object]]] = {
    "publish": bench_publish,
    "verify": bench_verify,
    "tensors": bench_tensors,
    "limit": bench_limit,
    "memory": bench_memory,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=Path("/dev/shm"))
    parser.add_argument("parts", nargs="*", default=list(PARTS), metavar="PART")
    parser.add_argument("--mib", type=int, default=1024, help="weights to publish and verify")
    parser.add_argument("--tensors", type=int, default=20_000, help="whose sizes to verify")
    parser.add_argument("--shards", type=int, default=256, help="to publish into a store with a limit")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    folder, parts = options.folder, options.parts
    EXTENT.size, EXTENT.rounds = options.mib * MiB, options.rounds
    EXTENT.tensors, EXTENT.shards = options.tensors, options.shards
    if parts[0].startswith("peak-"):
        _, work, tensors = parts[0].split("-")
        print(peak(folder, work, int(tensors)))
        return 0
    torch.set_num_threads(1)
    missed = 0
    for part in parts:
        for line in PARTS[part](folder):
            print(line, flush=True)
            missed += isinstance(line, Floor | Limit) and not line.held
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
