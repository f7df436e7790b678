"""How fast ``hwctl.fs.remove`` deletes a tree of many small files beside ``rm -rf``.

Usage: python tests/bench/fs_remove.py [FOLDER] [FILES]. The tree has the form of a kt-int8 store: layers with
two NUMA folders each, and only files in those.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from hwctl.fs.paths import opened_dir
from hwctl.fs.remove import remove_tree

FOLDERS = 120
ROUNDS = 3


def build(top: Path, files: int) -> None:
    for number in range(FOLDERS):
        folder = top / f"_layer_{number // 2}" / f"_numa_{number % 2}"
        folder.mkdir(parents=True)
        for file in range(files // FOLDERS):
            fd = os.open(folder / f"gate_{file}_quant.kt", os.O_WRONLY | os.O_CREAT, 0o600)
            os.write(fd, b"x" * 100)
            os.close(fd)


def by_rm(base: Path) -> None:
    subprocess.run(["rm", "-rf", str(base / "tree")], check=True)


def by_hwctl(base: Path) -> None:
    with opened_dir(base) as fd:
        remove_tree(fd, "tree")


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path("/dev/shm")
    files = int(sys.argv[2]) if len(sys.argv) > 2 else 180_000
    best = {by_rm: float("inf"), by_hwctl: float("inf")}
    for _ in range(ROUNDS):
        for case in best:
            with tempfile.TemporaryDirectory(dir=folder, prefix="hwctl-bench-") as temporary:
                build(Path(temporary) / "tree", files)
                begun = time.perf_counter()
                case(Path(temporary))
                best[case] = min(best[case], time.perf_counter() - begun)
    rm, ours = best[by_rm], best[by_hwctl]
    print(f"{files} files in {folder}: rm -rf {rm:.3f} s, remove_tree {ours:.3f} s, {ours / rm:.2f} times")


if __name__ == "__main__":
    main()
