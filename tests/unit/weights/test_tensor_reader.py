"""Reading tensors into reused buffers, and refusing sources that do not hold still."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

import pytest

from hwctl.errors import NotFound, Refused
from hwctl.weights.checkpoint import open_checkpoint
from hwctl.weights.tensor_reader import TensorReader

TINY = Path(__file__).parents[2] / "data" / "tiny-llama"


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return Path(shutil.copytree(TINY, tmp_path / "tiny"))


def whole(path: Path) -> dict[str, bytes]:
    """Every tensor's bytes as the library gives them."""
    safetensors = pytest.importorskip("safetensors")
    return {
        name: bytes(info["data"])
        for shard in path.glob("*.safetensors")
        for name, info in safetensors.deserialize(shard.read_bytes())
    }


def read(reader: TensorReader, name: str, buffer: memoryview) -> memoryview:
    """A whole tensor."""
    return reader.read_range(name, 0, reader.entry(name).nbytes, buffer)


def test_whole_tensors_are_what_the_library_reads() -> None:
    checkpoint = open_checkpoint(TINY)
    buffer = memoryview(bytearray(1024))
    with TensorReader(checkpoint) as reader:
        assert {name: bytes(read(reader, name, buffer)) for name in checkpoint.weight_map} == whole(TINY)


def test_ranges() -> None:
    name = "model.layers.1.mlp.gate_proj.weight"
    expected = whole(TINY)[name]
    buffer = memoryview(bytearray(300))
    with TensorReader(open_checkpoint(TINY)) as reader:
        assert reader.entry(name).shape == (16, 8)
        assert bytes(reader.read_range(name, 256, 256, buffer)) == b""
        assert bytes(reader.read_range(name, 5, 9, buffer)) == expected[5:9]
        with pytest.raises(ValueError, match="leave"):
            reader.read_range(name, 0, 257, buffer)
        with pytest.raises(ValueError, match="buffer"):
            read(reader, "lm_head.weight", buffer)
        with pytest.raises(NotFound):
            reader.entry("absent")


def rewritten(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data)


def replaced(path: Path) -> None:
    shutil.copy2(path, path.with_suffix(".new"))
    path.with_suffix(".new").rename(path)


def shortened(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 300)


def removed(path: Path) -> None:
    path.unlink()


def touched_back(path: Path) -> None:
    """One byte changed and the mtime put back: only the ctime tells."""
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\xff")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("change", [rewritten, replaced, shortened, removed, touched_back])
@pytest.mark.parametrize("opened_before", [True, False])
def test_a_source_that_changed_is_refused(change: object, opened_before: bool, tiny: Path) -> None:
    checkpoint = open_checkpoint(tiny)
    buffer = memoryview(bytearray(1024))
    with TensorReader(checkpoint) as reader:
        if opened_before:
            read(reader, "lm_head.weight", buffer)
        assert callable(change)
        change(tiny / checkpoint.weight_map["lm_head.weight"])
        with pytest.raises(Refused) as caught:
            read(reader, "lm_head.weight", buffer)
    assert caught.value.details["code"] == "source-changed"


def test_one_reader_for_many_threads() -> None:
    checkpoint = open_checkpoint(TINY)
    expected = whole(TINY)
    wrong: list[str] = []

    def work(reader: TensorReader) -> None:
        buffer = memoryview(bytearray(1024))
        wrong.extend(name for name in expected if bytes(read(reader, name, buffer)) != expected[name])

    with TensorReader(checkpoint) as reader:
        threads = [threading.Thread(target=work, args=(reader,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []
