"""Files written beside each other: the same bytes and digests, and one failure ends them all."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hwctl.core.tensor_stream import Stream
from hwctl.errors import Refused
from hwctl.fs.paths import opened_dir
from hwctl.stores.base import Advance
from hwctl.stores.hostweights.tensors import TensorSpec, plan_payloads
from hwctl.stores.hostweights.writer import ArtifactWriter
from hwctl.weights.checkpoint import open_checkpoint
from hwctl.weights.safetensors_file import build_header
from hwctl.weights.tensor_reader import TensorReader

COUNT = 7
SIZE = 5 << 20


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A checkpoint of seven tensors, each of them larger than two blocks."""
    header, _ = build_header([(f"t{number}", "U8", (SIZE,)) for number in range(COUNT)], None)
    path = tmp_path / "source" / "model.safetensors"
    path.parent.mkdir()
    path.write_bytes(header + os.urandom(COUNT * SIZE))
    return path


@contextmanager
def writing(folder: Path, advance: Advance, jobs: int) -> Iterator[ArtifactWriter]:
    folder.mkdir()
    specs = [TensorSpec(f"t{n}", "torch.uint8", (SIZE,), f"{n}.safetensors") for n in range(COUNT)]
    with opened_dir(folder) as fd:
        writer = ArtifactWriter(fd, plan_payloads(specs), lambda _size: None, jobs=jobs, advance=advance)
        try:
            writer.reserve()
            yield writer
        finally:
            writer.close()


@pytest.mark.parametrize(("jobs", "least_threads"), [(1, 1), (8, 2)])
def test_every_file_is_whole(source: Path, tmp_path: Path, jobs: int, least_threads: int) -> None:
    threads: set[int] = set()

    def advance(_count: int) -> None:
        threads.add(threading.get_ident())

    data = memoryview(source.read_bytes())[-COUNT * SIZE :]
    with (
        TensorReader(open_checkpoint(source)) as reader,
        writing(tmp_path / "to", advance, jobs) as writer,
    ):
        Stream(reader, ordered=True)(writer)
        tensors, files = writer.finish()
    assert len(threads) >= least_threads
    assert {entry.name: entry.sha256 for entry in tensors} == {
        f"t{n}": hashlib.sha256(data[n * SIZE : (n + 1) * SIZE]).hexdigest() for n in range(COUNT)
    }
    assert {entry.file_name: entry.sha256 for entry in files} == {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (tmp_path / "to").iterdir()
    }


def test_a_source_that_changes_ends_all_files(source: Path, tmp_path: Path) -> None:
    written = 0

    def advance(count: int) -> None:
        nonlocal written
        written += count
        if written > SIZE:
            os.utime(source, (1, 1))

    with (
        TensorReader(open_checkpoint(source)) as reader,
        writing(tmp_path / "to", advance, 8) as writer,
        pytest.raises(Refused, match="changed while it was read"),
    ):
        Stream(reader)(writer)
    assert written < COUNT * SIZE
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("hwctl-")] == []
