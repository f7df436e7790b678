"""Start-up and overhead: best of five, as the contract states them. Run it on an idle machine.

    python tests/bench/bench_startup.py [--rounds N]

Exits 1 when a floor is missed. The CPU time beside the wall time tells a slow program from a busy machine.
Modules are compiled once, as an installation has them, whatever the environment says of bytecode.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "makers"))

import make_hostweights
import make_ktint8
import make_pageweights


def measured(words: list[str], bytecode: Path) -> tuple[float, float]:
    """(wall seconds, CPU seconds) of one run, compiled modules kept in ``bytecode``."""
    env = os.environ | {"PYTHONPYCACHEPREFIX": str(bytecode), "PYTHONDONTWRITEBYTECODE": ""}
    quiet = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.monotonic()
    subprocess.run([sys.executable, "-m", "hwctl", *words], check=True, env=env, **quiet)
    wall = time.monotonic() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    missed = False
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        weights, pages = make_hostweights.make_store(folder / "w"), make_pageweights.make_store(folder / "p")
        make_hostweights.make_artifact(weights, 0)
        make_pageweights.make_artifact(pages, 0)
        base, bytecode = folder / "b", folder / "bytecode"
        base.mkdir()
        make_ktint8.make_ready(base, "job-4711")
        for limit, words in (
            (0.150, ["--version"]),
            (0.250, ["--help"]),
            (0.250, ["verify", "--help"]),
            (0.400, ["inspect", str(weights), str(pages), str(base)]),
            (0.400, ["verify", str(weights)]),
            (0.400, ["verify", "--level", "size", str(pages)]),
            (0.400, ["verify", "--level", "size", str(base)]),
            (0.400, ["quarantine", str(base / "kt-int8-job-4711"), "--reason", "bench", "-n"]),
            (0.400, ["reclaim-stale", str(base), "-n"]),
            (0.400, ["evict", str(pages), "--keep", "1", "-n"]),
            (0.400, ["exec", "--level", "size", str(base / "kt-int8-job-4711"), "--", "true"]),
        ):
            measured(words, bytecode)
            runs = [measured(words, bytecode) for _ in range(options.rounds)]
            wall, cpu = min(run[0] for run in runs), min(run[1] for run in runs)
            missed |= wall > limit
            verdict = "ok" if wall <= limit else "MISSED"
            times = f"{wall * 1e3:6.0f} ms wall {cpu * 1e3:6.0f} ms cpu"
            shown = " ".join(word if "/" not in word else Path(word).name for word in words)
            print(f"{verdict:6} {times}  limit {limit * 1e3:.0f}  {shown}")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
