"""One pass over an artifact: what it finds, what it keeps, and what it does with odd files."""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import make_pageweights
import pytest

from hwctl.fs.pagecache import Ways
from hwctl.stores.base import Content
from hwctl.stores.pageweights import content, reading
from hwctl.stores.pageweights.memory import BLOCK
from hwctl.stores.pageweights.reading import Pace, ReadEnd, read_structure, read_whole
from hwctl.weights.safetensors_file import Header

pytest.importorskip("torch")
FLOATS = 3 * BLOCK // 40 + 11  # ten weights of three blocks and a bit in all


@contextmanager
def opened(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY)
    try:
        yield fd
    finally:
        os.close(fd)


def artifact(path: Path, floats: int = FLOATS) -> Path:
    path.write_bytes(make_pageweights.artifact_bytes(7, floats))
    return path


def put(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at, os.SEEK_SET if at >= 0 else os.SEEK_END)
        file.write(data)


@pytest.mark.parametrize("floats", [0, 1, 8, BLOCK // 4, BLOCK // 4 + 1, FLOATS])
@pytest.mark.parametrize("keep", [False, True])
def test_digest_and_data_are_those_of_the_file(floats: int, keep: bool, tmp_path: Path) -> None:
    path = artifact(tmp_path / "artifact", floats)
    raw, blocks = path.read_bytes(), []
    with opened(path) as fd:
        found = read_whole(fd, len(raw), Pace(blocks.append, ways=None if keep else Ways()), keep=keep)
    assert isinstance(found.header, Header)
    assert found.sha256 == hashlib.sha256(raw).hexdigest()
    assert (found.page_id, found.nonfinite, found.content) == (7, (), Content.CHECKED)
    assert sum(blocks) == found.bytes_read == len(raw) and max(blocks) <= BLOCK
    assert (found.data is not None) is keep
    if found.data is not None:
        assert bytes(found.data) == raw[found.header.data_start :]


@pytest.mark.parametrize("name", ["down_t", "gate_t", "up_t"])
def test_a_nan_is_named_by_its_tensor(name: str, tmp_path: Path) -> None:
    path = artifact(tmp_path / "artifact")
    with opened(path) as fd:
        header = read_structure(fd, path.stat().st_size).header
    assert isinstance(header, Header)
    for at in (header.by_name[name].begin, header.by_name[name].end - 4):
        put(path, header.data_start + at, struct.pack("<f", float("nan")))
    with opened(path) as fd:
        found = read_whole(fd, path.stat().st_size, Pace())
    assert found.nonfinite == (name,)


def test_without_torch_the_rest_is_read_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = artifact(tmp_path / "artifact")
    monkeypatch.setattr(content, "torch_loads", lambda: False)
    with opened(path) as fd:
        found = read_whole(fd, path.stat().st_size, Pace())
    assert found.content is Content.NOT_CHECKED and found.page_id == 7
    assert found.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_what_is_no_container_is_hashed_too(tmp_path: Path) -> None:
    path = tmp_path / "artifact"
    path.write_bytes(bytes(range(256)) * (BLOCK // 100))
    with opened(path) as fd:
        found = read_whole(fd, path.stat().st_size, Pace(), keep=True)
    assert isinstance(found.header, tuple) and found.header and found.data is None
    assert found.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("raw", [b"", b"1234567", bytes(8), b"\xff" * 8, b"\xff" * 4096])
def test_tiny_and_hostile_files_give_findings(raw: bytes, tmp_path: Path) -> None:
    path = tmp_path / "artifact"
    path.write_bytes(raw)
    with opened(path) as fd:
        whole, structure = read_whole(fd, len(raw), Pace()), read_structure(fd, len(raw))
    assert isinstance(whole.header, tuple) and whole.header == structure.header
    assert whole.sha256 == hashlib.sha256(raw).hexdigest()


def test_a_header_over_the_limit_of_a_page_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "artifact"
    length = reading.HEADER_BYTES + 8
    path.write_bytes(struct.pack("<Q", length))
    os.truncate(path, length + 100)
    with opened(path) as fd:
        found = read_structure(fd, length + 100)
    assert isinstance(found.header, tuple) and found.header[0].code == "header-too-large"
    assert found.bytes_read == 8


def test_padding_up_to_the_limit_is_read(tmp_path: Path) -> None:
    path = tmp_path / "artifact"
    raw = make_pageweights.artifact_bytes(7, 8)
    length = struct.unpack_from("<Q", raw)[0]
    text = raw[8 : 8 + length] + b" " * (reading.HEADER_BYTES - length)
    path.write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + length :])
    with opened(path) as fd:
        found = read_whole(fd, path.stat().st_size, Pace())
    assert isinstance(found.header, Header) and found.page_id == 7


def test_a_file_that_has_become_shorter_ends_the_pass(tmp_path: Path) -> None:
    path = artifact(tmp_path / "artifact")
    size = path.stat().st_size
    os.truncate(path, size - 1)
    with opened(path) as fd, pytest.raises(ReadEnd):
        read_whole(fd, size, Pace())


def test_tensors_in_any_order_and_alignment(tmp_path: Path) -> None:
    raw = make_pageweights.artifact_bytes(7, 3)
    length = struct.unpack_from("<Q", raw)[0]
    header, data = json.loads(raw[8 : 8 + length]), raw[8 + length :]
    at, body, bent = 0, b"", {}
    for name in reversed(header):
        begin, end = header[name]["data_offsets"]
        bent[name] = {**header[name], "data_offsets": [at, at + end - begin]}
        body += data[begin:end]
        at += end - begin
    text = json.dumps(bent).encode()  # no padding: every tensor lies off its natural boundary
    text += b" " * (len(text) % 2 == 0)
    path = tmp_path / "artifact"
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)
    with opened(path) as fd:
        found = read_whole(fd, path.stat().st_size, Pace(), keep=True)
    assert isinstance(found.header, Header) and (found.page_id, found.nonfinite) == (7, ())
    assert found.data is not None and bytes(found.data) == body


def test_whoever_watches_can_end_the_pass(tmp_path: Path) -> None:
    class Enough(BaseException):
        pass

    def on_block(_count: int) -> None:
        raise Enough

    path = artifact(tmp_path / "artifact")
    with opened(path) as fd, pytest.raises(Enough):
        read_whole(fd, path.stat().st_size, Pace(on_block))
