"""Several removals of one tree at once: all succeed, and what was freed is counted once (REC-09)."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from hwctl.fs.paths import opened_dir
from hwctl.fs.remove import remove_tree
from hwctl.fs.space import usage

ROUNDS = int(os.environ.get("HWCTL_RIVAL_ROUNDS", "5"))
RIVALS = 6


def build(tree: Path) -> None:
    for layer in range(6):
        place = tree / f"_layer_{layer}" / "_numa_0"
        place.mkdir(parents=True)
        for file in range(15):
            (place / f"{file}.kt").write_bytes(b"x" * 5000)


def start(parent: Path, gate: int) -> tuple[int, int]:
    """A child that waits for the gate, removes the tree and reports "files bytes"."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, reading
    try:
        os.read(gate, 1)
        with opened_dir(parent) as fd:
            deleted = remove_tree(fd, "tree")
        os.write(writing, f"{deleted.files} {deleted.bytes_freed}".encode())
        os._exit(0)
    finally:
        os._exit(99)


def test_rivals_share_the_work(tmp_path: Path) -> None:
    for number in range(ROUNDS):
        parent = tmp_path / str(number)
        build(parent / "tree")
        with opened_dir(parent) as fd:
            used = usage(fd, "tree")
        gate, opener = os.pipe()
        children = [start(parent, gate) for _ in range(RIVALS)]
        os.write(opener, b"x" * RIVALS)
        files = freed = 0
        for pid, reading in children:
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
            one_files, one_freed = os.read(reading, 100).split()
            files, freed = files + int(one_files), freed + int(one_freed)
            os.close(reading)
        os.close(gate)
        os.close(opener)
        assert (files, freed) == (used.files, used.allocated)
        assert os.listdir(parent) == []


def test_beside_another_program(tmp_path: Path) -> None:
    for number in range(ROUNDS):
        parent = tmp_path / str(number)
        build(parent / "tree")
        other = subprocess.Popen(["rm", "-rf", parent / "tree"], stderr=subprocess.DEVNULL)
        with opened_dir(parent) as fd:
            remove_tree(fd, "tree")
        other.wait()
        assert os.listdir(parent) == []
