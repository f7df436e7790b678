"""Pages per NUMA node (PER-03): one node needs no asking, several are counted without reading a byte."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterator

import pytest

from hwctl.fs import numa
from hwctl.fs.mounts import mount_of_fd

PAGE = mmap.PAGESIZE


@pytest.fixture
def in_memory() -> Iterator[int]:
    """A file on tmpfs with five pages of data and a hole of a gibibyte."""
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("there is no /dev/shm to write to")
    with tempfile.TemporaryFile(dir="/dev/shm") as file:
        if mount_of_fd(file.fileno()).fs_type != "tmpfs":
            pytest.skip("/dev/shm is no tmpfs here")
        os.pwrite(file.fileno(), b"x" * (2 * PAGE + 1), 0)
        os.pwrite(file.fileno(), b"y" * (2 * PAGE), 1 << 30)
        yield file.fileno()


@pytest.mark.parametrize(
    ("text", "nodes"), [("0\n", (0,)), ("0-1\n", (0, 1)), ("0,2-3\n", (0, 2, 3)), ("", (0,)), ("x-y", (0,))]
)
def test_the_nodes_of_a_machine(text: str, nodes: tuple[int, ...]) -> None:
    assert numa.parse_nodes(text) == nodes


def test_one_node_has_them_all(in_memory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numa, "nodes", lambda: (0,))
    assert numa.pages_per_node(in_memory, os.fstat(in_memory)) == {0: 5}


def test_several_nodes_are_counted_and_holes_stay_holes(
    in_memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one node in the machine the kernel's own count must come to the same."""
    monkeypatch.setattr(numa, "nodes", lambda: (0, 1))
    before = os.fstat(in_memory).st_blocks
    assert sum(numa.pages_per_node(in_memory, os.fstat(in_memory)).values()) == 5
    assert os.fstat(in_memory).st_blocks == before


def test_the_kernels_table() -> None:
    raw = b"7f00 default file=/dev/shm/a mapped=7 N0=4 N1=3 kernelpagesize_kB=4\n8000 default anon=1 N0=1\n"
    assert numa.parse_numa_maps(raw, 0x7F00) == {0: 4, 1: 3}
    assert numa.parse_numa_maps(raw, 0x9000) == {}
