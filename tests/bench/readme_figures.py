"""Runs every benchmark of the README anew, and holds its ratios and its times of the lifecycle against it.

    python tests/bench/readme_figures.py [SCRIPT …]

Runs the commands that stand there, on a machine that should be idle, and prints for each of these what the
README says and what came out. Ends with 1 when one is off by more than a third, or stands in one place only:
then either the code or the README has to change. What a figure is called in each of the two is all that is
owned here.
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOLERANCE = 4 / 3
_NUMBER = r"([\d.,]+)"


@dataclass(frozen=True, slots=True)
class Figure:
    """Regular expressions with one group, the number: where the README has it, and where the script."""

    readme: str
    output: str


def _hostweights(row: str, line: str) -> Figure:
    return Figure(rf"\| {row} \|.*\| {_NUMBER} \|", rf"{line}.* {_NUMBER}x \(floor")


def _ktint8(shape: str) -> list[Figure]:
    row, found = rf"\| {shape.replace(',', ', ')} \|", rf"{shape}: [\s\S]*?"
    return [
        Figure(rf"{row} [^|]+\| {_NUMBER} times", rf"{found}write is {_NUMBER} times"),
        Figure(rf"{row} [^|]+\| [^|]+\| {_NUMBER} times", rf"{found}publish is {_NUMBER} times"),
    ]


def _pages(row: str, line: str) -> list[Figure]:
    columns = {"float32": rf"\| {row} \| {_NUMBER}", "bfloat16": rf"\| {row} \| [^|]+\| {_NUMBER}"}
    return [Figure(text, rf"{line}.*{dtype}.* {_NUMBER}x \(floor") for dtype, text in columns.items()]


def _growth(row: str) -> list[Figure]:
    """A row's times at three sizes of a store."""
    skipped = [(r"[^|]+\| " * column, r"\S+ ms, " * column) for column in range(3)]
    return [
        Figure(rf"\| {row} \| {cell}{_NUMBER} ms", rf"{row}: {word}{_NUMBER} ms") for cell, word in skipped
    ]


FIGURES: dict[str, list[Figure]] = {
    "bench_hostweights.py /dev/shm": [
        _hostweights("publish, 1 file", r"publish \d+ MiB, 64 tensors, 1 "),
        _hostweights("publish, 8 files", r"publish \d+ MiB, 64 tensors, 8 "),
        *(
            _hostweights(rf"verify in full, {files}, {row}", rf"in full \d+ MiB, {files[0]} \S+ {place}")
            for row, place in (("ext4 with a warm cache", "(?!tmpfs)"), ("tmpfs", "tmpfs"))
            for files in ("8 files", "1 file")
        ),
    ],
    "bench_ktint8.py": _ktint8("32,2048,768") + _ktint8("3,7168,2048"),
    "bench_ktint8_verify.py": [Figure(rf"reaches {_NUMBER} of two", rf"median of ratios {_NUMBER}")],
    "bench_ktint8_store.py": [
        Figure(rf"by size in {_NUMBER} s", rf"verify-size\s+{_NUMBER} s"),
        Figure(rf"consumed in {_NUMBER} s", rf"consume\s+{_NUMBER} s"),
    ],
    "bench_pageweights.py /dev/shm": [
        *_pages("publish 256 MiB", "publish"),
        *_pages("verify", "verify"),
        *_pages("full hit into private memory", "hit"),
        Figure(rf"half of 10,000 pages is {_NUMBER} times", rf"evict half.* {_NUMBER}x \(floor"),
    ],
    "bench_lifecycle.py --folder /dev/shm": [
        Figure(rf"180,000 files takes {_NUMBER} times", rf"1 tree of \d+ files: .* ratio {_NUMBER}"),
        *(
            figure
            for what in ("pages", "artifacts")
            for verb in ("plan of an eviction", "inspect")
            for figure in _growth(f"{what}, {verb}")
        ),
    ],
    "bench_startup.py": [
        Figure(rf"`--version` {_NUMBER} ms", rf"{_NUMBER} ms wall.* \d+  --version"),
        Figure(rf"`--help` {_NUMBER} ms", rf"{_NUMBER} ms wall.* \d+  --help"),
    ],
}


def number(pattern: str, text: str) -> float | None:
    """The last one: a script that grows a store ends with the figure."""
    found = re.findall(pattern, text)
    return float(found[-1].rstrip(".,")) if found else None


def readme() -> str:
    return (ROOT / "README.md").read_text().partition("\n## Benchmarks\n")[2]


def compare(command: str, output: str) -> bool:
    """Print every figure of one command; whether all of them hold."""
    held = True
    for figure in FIGURES[command]:
        said, came = number(figure.readme, readme()), number(figure.output, output)
        near = said is not None and came is not None and 1 / TOLERANCE <= came / said <= TOLERANCE
        held &= near
        print(f"{'ok' if near else 'OFF':4}{said!s:>9}{came!s:>9}  {figure.readme}", flush=True)
    return held


def main() -> None:
    held = True
    for command in FIGURES:
        script, *words = command.split()
        if script in (sys.argv[1:] or script):
            print(f"python tests/bench/{command}", flush=True)
            run = [sys.executable, str(ROOT / "tests" / "bench" / script), *words]
            held &= compare(command, subprocess.run(run, stdout=subprocess.PIPE, text=True).stdout)
    sys.exit(0 if held else 1)


if __name__ == "__main__":
    main()
