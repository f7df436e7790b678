"""The page cache beside the protocol of its own program (``tests/interop/page_oracle.py``).

Usage: python tests/bench/bench_pageweights.py [FOLDER] [MiB per page] [pages]. FOLDER should lie in memory.
All are library calls; rounds are interleaved, since a shared machine is never the same twice, and medians
of five are compared. Ends with 1 when a floor is missed.
"""

from __future__ import annotations

import gc
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS.parent), str(TESTS / "interop"), str(TESTS / "makers")]

import make_pageweights  # noqa: E402
import torch  # noqa: E402
from page_oracle import NAMES, OracleCache  # noqa: E402

from hwctl.fs.deadline import Deadline  # noqa: E402
from hwctl.stores.base import Artifact, CheckOptions, Family, Level, State  # noqa: E402
from hwctl.stores.pageweights import roots  # noqa: E402
from hwctl.stores.pageweights.authority import Authority, read_authority  # noqa: E402
from hwctl.stores.pageweights.eviction import evict_to_budget  # noqa: E402
from hwctl.stores.pageweights.loading import load_or_build  # noqa: E402
from hwctl.stores.pageweights.store import open_store  # noqa: E402

ROUNDS = 5
NEVER_FULL = 1 << 60
MiB = 1 << 20

Weights = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Floor:
    """What is measured, how many times as fast it has to be, and the seconds of both."""

    name: str
    factor: float
    oracle: float
    hwctl: float

    @property
    def held(self) -> bool:
        return self.oracle / self.hwctl >= self.factor

    def __str__(self) -> str:
        word = "ok" if self.held else "MISSED"
        ratio = self.oracle / self.hwctl
        return (
            f"{self.name:44} oracle {self.oracle * 1e3:9.2f} ms  hwctl {self.hwctl * 1e3:9.2f} ms"
            f"  {ratio:7.2f}x (floor {self.factor:.2f}x)  {word}"
        )


def authority(number: int, dtype: str) -> dict[str, object]:
    return {**make_pageweights.authority(number), "materializedDtype": dtype}


def parsed(record: dict[str, object]) -> Authority:
    found = read_authority(record)
    assert isinstance(found, Authority)
    return found


def make_weights(number: int, dtype: str, size: int) -> Weights:
    """A page of about ``size`` bytes, three large tensors and seven small ones."""
    kind: torch.dtype = getattr(torch, dtype)
    count = size // kind.itemsize // 3
    large = {name: torch.randn(1, count // 256, 256).to(kind) for name in ("gate_t", "up_t", "down_t")}
    small = {name: torch.randn(1, 64).to(kind) for name in NAMES[1:] if name not in large}
    return {"page_ids_t": torch.tensor([number]), **large, **small}


def interleaved(cases: dict[str, Callable[[], object]], before: Callable[[], None]) -> dict[str, float]:
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(ROUNDS):
        for name, case in cases.items():
            before()
            gc.collect()
            start = time.perf_counter()
            result = case()
            seconds[name].append(time.perf_counter() - start)
            del result
    return {name: statistics.median(found) for name, found in seconds.items()}


def large_pages(folder: Path, dtype: str, size: int) -> list[Floor]:
    record = authority(0, dtype)
    ours = parsed(record)
    weights = make_weights(0, dtype, size)
    root = folder / "large"
    label = f"{size // MiB} MiB {dtype}"

    def clear() -> None:
        if root.exists():
            shutil.rmtree(root)

    def nothing() -> None:
        pass

    def by_oracle() -> Weights:
        return OracleCache(root, NEVER_FULL).load_or_build(record, lambda: weights)

    def by_hwctl() -> object:
        return load_or_build(root, ours, lambda: weights, wait=Deadline.after(60))

    def check() -> object:
        path = root / f"{ours.prefix}.locator.json"
        page = Artifact(Family.PAGEWEIGHTS, root, ours.prefix, path, State.READY)
        report = open_store(root).check(page, Level.FULL, CheckOptions(expected=ours))
        assert report.valid and report.checked_bytes >= size // 2
        return report

    publish = interleaved({"oracle": by_oracle, "hwctl": by_hwctl}, clear)
    hit = interleaved({"oracle": by_oracle, "hwctl": by_hwctl, "verify": check}, nothing)
    clear()
    return [
        Floor(f"publish, {label}", 4, publish["oracle"], publish["hwctl"]),
        Floor(f"verify, {label}", 3, hit["oracle"], hit["verify"]),
        Floor(f"full hit, {label}", 2, hit["oracle"], hit["hwctl"]),
    ]


def fill(root: Path, pages: int) -> Path:
    make_pageweights.make_store(root)
    for number in range(pages):
        make_pageweights.make_artifact(root, number)
        make_pageweights.set_last_use(root, number, 10**18 + (number * 7919 % pages) * 10**6)
    return root


def many_pages(folder: Path, pages: int) -> list[Floor]:
    root = fill(folder / "many", pages)
    record = authority(pages // 2, "float32")
    ours = parsed(record)

    def never() -> Weights:
        raise AssertionError("the page is there")

    def by_oracle() -> object:
        return OracleCache(root, NEVER_FULL).load_or_build(record, never)

    def by_hwctl() -> object:
        return load_or_build(root, ours, never, wait=Deadline.after(60))

    hit = interleaved({"oracle": by_oracle, "hwctl": by_hwctl}, lambda: None)
    shutil.rmtree(root)
    return [Floor(f"small hit among {pages} pages", 20, hit["oracle"], hit["hwctl"])]


def evicting(folder: Path, pages: int) -> list[Floor]:
    seconds: dict[str, list[float]] = {"oracle": [], "hwctl": []}
    for number in range(ROUNDS):
        for name in seconds:
            root = fill(folder / f"evict-{name}-{number}", pages)
            total = sum(path.stat().st_size for path in root.glob("*.safetensors"))
            start = time.perf_counter()
            if name == "oracle":
                OracleCache(root, total // 2).evict()
            else:
                with roots.writable(root) as opened:
                    assert evict_to_budget(opened, total // 2, Deadline.now()).reached
            seconds[name].append(time.perf_counter() - start)
            left = sum(path.name.endswith(".locator.json") for path in root.iterdir())
            assert left == pages // 2, left
            shutil.rmtree(root)
    medians = {name: statistics.median(found) for name, found in seconds.items()}
    return [Floor(f"evict half of {pages} pages", 1 / 1.2, medians["oracle"], medians["hwctl"])]


def peak(what: str, folder: Path, dtype: str, size: int) -> float:
    """Peak resident memory of one call in a process of its own, in MiB above what it had before."""
    done = subprocess.run(
        [sys.executable, __file__, "--peak", what, str(folder), dtype, str(size)],
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout)


def measure_peak(what: str, folder: Path, dtype: str, size: int) -> None:
    record = authority(0, dtype)
    ours, root = parsed(record), folder / "peak"
    weights = make_weights(0, dtype, size) if what == "publish" else {}
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    if what == "publish":
        load_or_build(root, ours, lambda: weights, wait=Deadline.after(60))
    else:
        path = root / f"{ours.prefix}.locator.json"
        page = Artifact(Family.PAGEWEIGHTS, root, ours.prefix, path, State.READY)
        assert open_store(root).check(page, Level.FULL, CheckOptions()).valid
    print((_status("VmHWM") - before) / 1024)


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1])
    raise AssertionError(field)


def main() -> int:
    if sys.argv[1:2] == ["--peak"]:
        what, folder, dtype, size = sys.argv[2:]
        measure_peak(what, Path(folder), dtype, int(size))
        return 0
    base = Path(sys.argv[1]) if len(sys.argv) > 1 else Path("/dev/shm")
    size = (int(sys.argv[2]) if len(sys.argv) > 2 else 256) * MiB
    pages = int(sys.argv[3]) if len(sys.argv) > 3 else 10_000
    folder = Path(tempfile.mkdtemp(prefix="hwctl-page-bench-", dir=base))
    held = True
    try:
        for floors in (
            large_pages(folder, "float32", size),
            large_pages(folder, "bfloat16", size),
            many_pages(folder, pages),
            evicting(folder, pages),
        ):
            for floor in floors:
                print(floor, flush=True)
                held = held and floor.held
        for what, limit in (("publish", 0.3 * size / MiB), ("verify", 64)):
            used = peak(what, folder, "float32", size)
            word = "ok" if used < limit else "MISSED"
            print(f"peak memory of {what:29} {used:9.1f} MiB (limit {limit:.1f} MiB)  {word}", flush=True)
            held = held and used < limit
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0 if held else 1


if __name__ == "__main__":
    raise SystemExit(main())
