"""The streaming writer: coverage, order, both digests of every byte, and what it refuses."""

from __future__ import annotations

import hashlib
import json
import os
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwctl.errors import Usage
from hwctl.fs.paths import opened_dir
from hwctl.stores.hostweights import payload_file
from hwctl.stores.hostweights.containers import header_of, is_as_written
from hwctl.stores.hostweights.coverage import Coverage
from hwctl.stores.hostweights.lanes import INLINE, SLICE
from hwctl.stores.hostweights.payload_file import PayloadFile
from hwctl.stores.hostweights.records import FileEntry, TensorEntry
from hwctl.stores.hostweights.tensors import TensorSpec, plan_payloads, torch_view
from hwctl.stores.hostweights.writer import ArtifactWriter
from hwctl.weights.safetensors_file import Header, read_header

FILE = "w.safetensors"


def spec(name: str, *shape: int, dtype: str = "torch.int8", file: str = FILE) -> TensorSpec:
    return TensorSpec(name, dtype, shape, file)


def free(_count: int) -> None:
    """There is always room."""


@contextmanager
def writing(folder: Path, *specs: TensorSpec, **options: Any) -> Iterator[ArtifactWriter]:
    with opened_dir(folder) as fd:
        writer = ArtifactWriter(fd, plan_payloads(specs), free, **options)
        try:
            writer.reserve()
            yield writer
        finally:
            writer.close()


def check(folder: Path, tensors: list[TensorEntry], files: list[FileEntry], data: dict[str, bytes]) -> None:
    """What was recorded is what lies there, and the library's reader finds it."""
    assert {entry.name: entry.sha256 for entry in tensors} == {
        name: hashlib.sha256(raw).hexdigest() for name, raw in data.items()
    }
    for file in files:
        raw = (folder / file.file_name).read_bytes()
        assert (len(raw), hashlib.sha256(raw).hexdigest()) == (file.size, file.sha256)
        assert (folder / file.file_name).stat().st_mode & 0o7777 == 0o444
        fd = os.open(folder / file.file_name, os.O_RDONLY)
        try:
            header = read_header(fd, len(raw), name=file.file_name)
            declared = {entry.storage_key: entry for entry in tensors if entry.file_name == file.file_name}
            assert is_as_written(fd, len(raw), declared)
        finally:
            os.close(fd)
        assert isinstance(header, Header)
        for entry in header.tensors:
            begin = header.data_start + entry.begin
            assert raw[begin : begin + entry.nbytes] == data[entry.name]


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("size", [1, INLINE, INLINE + 1, SLICE, 3 * SLICE + 5])
def test_whole_tensors(tmp_path: Path, ordered: bool, size: int) -> None:
    data = {"a": os.urandom(size), "b": b"", "c": os.urandom(7), "z": os.urandom(size)}
    with writing(tmp_path, *(spec(name, len(raw)) for name, raw in data.items())) as writer:
        with writer.open(FILE, ordered=ordered) as payload:
            for name in sorted(data, reverse=not ordered):
                payload.write_tensor(name, data[name])
        tensors, files = writer.finish()
    check(tmp_path, tensors, files, data)


@pytest.mark.parametrize("seed", range(8))
def test_rows_in_any_order(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    data = {name: chance.randbytes(rows * 1000) for name, rows in (("a", 1), ("b", 300), ("c", 50))}
    specs = [spec(name, len(raw) // 1000, 1000) for name, raw in data.items()]
    chunks = []
    for name, raw in data.items():
        row = 0
        while row < len(raw) // 1000:
            count = min(chance.randint(1, 120), len(raw) // 1000 - row)
            chunks.append((name, row, raw[row * 1000 : (row + count) * 1000]))
            row += count
    chance.shuffle(chunks)
    with writing(tmp_path, *specs) as writer:
        with writer.open(FILE) as payload:
            for name, row, raw in chunks:
                payload.write_rows(name, row, raw)
        tensors, files = writer.finish()
    check(tmp_path, tensors, files, data)


def test_buffers_under_way_are_hashed_in_order(tmp_path: Path) -> None:
    data = {f"t{number:02d}": os.urandom(200_000 + number) for number in range(20)}
    with writing(tmp_path, *(spec(name, len(raw)) for name, raw in data.items())) as writer:
        with writer.open(FILE, ordered=True) as payload:
            for name, raw in data.items():
                payload.put(name, 0, memoryview(raw)[:100_000])
                payload.put(name, 100_000, memoryview(raw)[100_000:])
                payload.put(name, len(raw), memoryview(b"")).wait()
        tensors, files = writer.finish()
    check(tmp_path, tensors, files, data)


def test_the_next_file_begins_before_the_last_is_done(tmp_path: Path) -> None:
    data = {f"t{number}": os.urandom(2 * SLICE) for number in range(6)}
    specs = [spec(name, 2 * SLICE, file=f"{number}.safetensors") for number, name in enumerate(data)]
    with writing(tmp_path, *specs) as writer:
        for item in specs:
            with writer.open(item.file_name, ordered=True) as payload:
                payload.put(item.name, 0, memoryview(data[item.name]))
        tensors, files = writer.finish()
    check(tmp_path, tensors, files, data)
    assert {name for name in os.listdir("/proc/self/fd") if str(tmp_path) in target(name)} == set()


def target(number: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{number}")
    except FileNotFoundError:
        return ""


def test_several_files_at_once(tmp_path: Path) -> None:
    data = {f"t{number}": os.urandom(90_000) for number in range(6)}
    specs = [spec(name, 90_000, file=f"{number % 3}.safetensors") for number, name in enumerate(data)]
    with writing(tmp_path, *specs) as writer:
        payloads = [writer.open(name) for name in writer.file_names]
        for item in reversed(specs):
            payloads[int(item.file_name[0])].write_tensor(item.name, data[item.name])
        for payload in payloads:
            payload.close()
        tensors, files = writer.finish()
    check(tmp_path, tensors, files, data)


def test_scalars_of_any_buffer_type(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    specs = (
        spec("scalar", dtype="torch.float64"),
        spec("empty", 0, 5, dtype="torch.float32"),
        spec("matrix", 2, 3, dtype="torch.float32"),
    )
    arrays = {
        "scalar": numpy.array(1.5),
        "empty": numpy.zeros((0, 5), numpy.float32),
        "matrix": numpy.arange(6, dtype=numpy.float32).reshape(2, 3),
    }
    with writing(tmp_path, *specs) as writer:
        with writer.open(FILE) as payload:
            payload.write_rows("scalar", 0, arrays["scalar"])
            payload.write_rows("empty", 0, arrays["empty"])
            payload.write_tensor("matrix", arrays["matrix"])
        tensors, files = writer.finish()
    check(tmp_path, tensors, files, {name: array.tobytes() for name, array in arrays.items()})
    strides = {entry.name: entry.stride for entry in tensors}
    assert strides == {"scalar": (), "empty": (5, 1), "matrix": (3, 1)}


def test_an_empty_tensor_need_not_be_written(tmp_path: Path) -> None:
    with writing(tmp_path, spec("a", 0), spec("b", 1)) as writer:
        with writer.open(FILE) as payload:
            payload.write_tensor("b", b"x")
        tensors, files = writer.finish()
    check(tmp_path, tensors, files, {"a": b"", "b": b"x"})


def test_4_bit_pairs_are_one_element_to_torch_and_two_in_the_container(tmp_path: Path) -> None:
    with writing(tmp_path, spec("a", 3, 2, dtype="torch.float4_e2m1fn_x2")) as writer:
        with writer.open(FILE) as payload:
            payload.write_tensor("a", b"abcdef")
        (tensor,), files = writer.finish()
    assert (tensor.shape, tensor.nbytes) == ((3, 2), 6)
    check(tmp_path, [tensor], files, {"a": b"abcdef"})
    fd = os.open(tmp_path / FILE, os.O_RDONLY)
    header = read_header(fd, os.fstat(fd).st_size, name=FILE)
    os.close(fd)
    assert isinstance(header, Header) and header.tensors[0].shape == (3, 4)
    assert torch_view(header.tensors[0]) == ("torch.float4_e2m1fn_x2", (3, 2))


def test_progress_counts_every_byte_once(tmp_path: Path) -> None:
    counts: list[int] = []
    with writing(tmp_path, spec("a", 300_000), spec("b", 9), advance=counts.append) as writer:
        with writer.open(FILE) as payload:
            payload.write_tensor("b", b"x" * 9)
            payload.write_tensor("a", b"y" * 300_000)
        writer.finish()
    assert sum(counts) == (tmp_path / FILE).stat().st_size


@pytest.mark.parametrize(
    "steps",
    [
        [("a", 0, b"x" * 5)],
        [("a", 1, b"x" * 4)],
        [("a", -1, b"x")],
        [("a", 0, b"xy"), ("a", 1, b"x")],
        [("a", 2, b"xx"), ("a", 0, b"xxx")],
        [("nope", 0, b"x")],
    ],
)
def test_writes_outside_or_twice_are_refused(tmp_path: Path, steps: list[tuple[str, int, bytes]]) -> None:
    with writing(tmp_path, spec("a", 4), spec("b", 2)) as writer:
        payload = writer.open(FILE)
        with pytest.raises(Usage):
            for name, offset, data in steps:
                payload.put(name, offset, memoryview(data)).wait()


def test_an_ordered_file_refuses_a_jump(tmp_path: Path) -> None:
    with writing(tmp_path, spec("a", 4), spec("b", 2)) as writer:
        payload = writer.open(FILE, ordered=True)
        with pytest.raises(Usage, match="comes next"):
            payload.write_tensor("b", b"xx")


def test_wrong_sizes_are_refused(tmp_path: Path) -> None:
    with writing(tmp_path, spec("a", 4, 2), spec("s", dtype="torch.float32")) as writer:
        payload = writer.open(FILE)
        for call in (
            lambda: payload.write_tensor("a", b"x" * 7),
            lambda: payload.write_rows("a", 0, b"x" * 3),
            lambda: payload.write_rows("a", 4, b"xx"),
            lambda: payload.write_rows("s", 0, b"xx"),
            lambda: payload.write_rows("s", 1, b"xxxx"),
        ):
            with pytest.raises(Usage):
                call()


def test_an_incomplete_file_cannot_be_closed_nor_the_artifact_finished(tmp_path: Path) -> None:
    with writing(tmp_path, spec("a", 4), spec("b", 1, file="x.safetensors")) as writer:
        payload = writer.open(FILE)
        payload.write_rows("a", 0, b"xx")
        with pytest.raises(Usage, match="incomplete"):
            payload.close()
        payload.write_rows("a", 2, b"xx")
        payload.close()
        payload.close()
        with pytest.raises(Usage, match="closed"):
            payload.write_tensor("a", b"xxxx")
        with pytest.raises(Usage, match=r"x\.safetensors"):
            writer.finish()
        for name in (FILE, "unknown.safetensors"):
            with pytest.raises(Usage):
                writer.open(name)


@pytest.mark.parametrize(
    "bad",
    [
        [],
        [spec("", 1)],
        [spec("__metadata__", 1)],
        [spec("a\ud800", 1)],
        [spec("a", 1), spec("a", 1, file="x.safetensors")],
        [spec("a", 1, dtype="torch.qint8")],
        [spec("a", 1, dtype="BF16")],
        [spec("a", -1)],
        [spec("a", True)],
        [spec("a", 1, file="a/b.safetensors")],
        [spec("a", 1, file="w.bin")],
        [spec("a", 1, file="manifest.json")],
        [TensorSpec("a", "torch.int8", (1,), FILE, "constant")],
        [TensorSpec("a", "torch.int8", (1,), FILE, "parameter", "")],
        [spec("a", dtype="torch.float4_e2m1fn_x2")],
    ],
)
def test_what_no_reader_would_take_back_is_not_begun(bad: list[TensorSpec]) -> None:
    with pytest.raises(Usage) as refused:
        plan_payloads(bad)
    assert (refused.value.details["stage"], refused.value.details["code"]) == (
        "production",
        "producer_failed",
    )


def test_an_error_of_a_write_reaches_the_producer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_fd: int, _data: object, _offset: int) -> int:
        raise OSError(28, os.strerror(28))

    with writing(tmp_path, spec("a", 2 * SLICE)) as writer:
        payload = writer.open(FILE)
        monkeypatch.setattr(os, "pwrite", full)
        with pytest.raises(OSError, match="No space"):
            payload.write_tensor("a", bytes(2 * SLICE))


def test_an_error_of_a_write_that_was_not_waited_for_is_told_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_fd: int, _data: object, _offset: int) -> int:
        raise OSError(5, os.strerror(5))

    with writing(tmp_path, spec("a", 2 * SLICE)) as writer:
        payload = writer.open(FILE)
        with monkeypatch.context() as patched:
            patched.setattr(os, "pwrite", broken)
            payload.put("a", 0, memoryview(bytes(2 * SLICE)))
            payload.close()
            with pytest.raises(OSError, match="Input/output"):
                writer.finish()


def test_a_write_that_the_disk_lost_is_told_by_the_first_sync_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = iter([True])

    def lost(_fd: int) -> None:
        if next(told, False):
            raise OSError(5, os.strerror(5))

    monkeypatch.setattr(payload_file, "_SYNC_EVERY", 1000)
    monkeypatch.setattr(os, "fdatasync", lost)
    with writing(tmp_path, spec("a", 5000)) as writer:
        with writer.open(FILE) as payload:
            for row in range(0, 5000, 1000):
                payload.write_rows("a", row, b"x" * 1000)
        with pytest.raises(OSError, match="Input/output"):
            writer.finish()


def test_no_thread_outlives_the_writer(tmp_path: Path) -> None:
    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt), writing(tmp_path, spec("a", 64 * SLICE)) as writer:
        payload: PayloadFile = writer.open(FILE)
        payload.put("a", 0, memoryview(bytes(64 * SLICE)))
        raise KeyboardInterrupt
    assert threading.active_count() == before


@given(st.integers(0, 40), st.lists(st.tuples(st.integers(-2, 42), st.integers(-2, 42)), max_size=12))
def test_coverage_against_a_set(size: int, ranges: list[tuple[int, int]]) -> None:
    coverage, written = Coverage(size), set[int]()
    for begin, end in ranges:
        if end < begin:
            continue
        wanted = set(range(begin, end))
        if begin < 0 or end > size or wanted & written:
            with pytest.raises(ValueError):
                coverage.add(begin, end)
        else:
            coverage.add(begin, end)
            written |= wanted
        assert coverage.complete() == (written == set(range(size)))


def test_the_expected_header_is_the_one_that_is_written() -> None:
    specs = [
        spec(name, 2, 3, dtype="torch.bfloat16") for name in ("A", "__a", "ä", "\U0001f9e9", 'q"\\', "z")
    ]
    (plan,) = plan_payloads(specs)
    entries = [
        TensorEntry(s.name, s.kind, s.role, FILE, s.name, s.shape, s.dtype, (3, 1), 12, "") for s in specs
    ]
    assert header_of(sorted(entries)) == plan.header
    assert json.loads(plan.header[8:])["__metadata__"] == {"format": "pt", "host_weight_runtime": "1"}
    assert list(json.loads(plan.header[8:]))[1] == "__a" and len(plan.header) % 8 == 0


@pytest.mark.parametrize(
    "change",
    [{"stride": (1, 3)}, {"nbytes": 11}, {"dtype": "torch.nope"}, {"shape": (2, 2)}, {"shape": (2**70, 3)}],
)
def test_an_entry_that_contradicts_itself_has_no_header(change: dict[str, Any]) -> None:
    plain = TensorEntry("a", "parameter", "weight", FILE, "a", (2, 3), "torch.bfloat16", (3, 1), 12, "")
    assert header_of([plain]) is not None
    assert header_of([plain._replace(**change)]) is None
    assert header_of([plain._replace(storage_key="__metadata__")]) is None
