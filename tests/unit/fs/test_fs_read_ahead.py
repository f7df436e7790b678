"""Reading ahead: every byte in order, errors in their place, and no thread left."""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path

import pytest

from hwctl.fs import digest
from hwctl.fs.deadline import Deadline
from hwctl.fs.digest import ShortRead, sha256_files
from hwctl.fs.pace import TimedOut
from hwctl.fs.read_ahead import pieces_ahead


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 100])
def test_every_byte_in_order(size: int) -> None:
    data = os.urandom(size)

    def read_into(buffer: memoryview, offset: int) -> int:
        part = data[offset : offset + min(len(buffer), 5)]
        buffer[: len(part)] = part
        return len(part)

    before = threading.active_count()
    with pieces_ahead(read_into, size, 8) as pieces:
        assert b"".join(bytes(piece) for piece in pieces) == data
    assert threading.active_count() == before


@pytest.mark.parametrize("error", [OSError(5, "broken"), MemoryError("broken")])
def test_an_error_comes_where_its_piece_would_have(error: Exception) -> None:
    def read_into(buffer: memoryview, offset: int) -> int:
        if offset >= 16:
            raise error
        return len(buffer)

    got = 0
    with pytest.raises(type(error), match="broken"), pieces_ahead(read_into, 100, 8) as pieces:
        for piece in pieces:
            got += len(piece)
    assert got == 16


def test_the_end_of_the_file_is_an_empty_piece() -> None:
    with pieces_ahead(lambda buffer, offset: 8 if offset < 16 else 0, 100, 8) as pieces:
        assert [len(piece) for piece in pieces] == [8, 8, 0]


def test_leaving_early_ends_the_thread() -> None:
    before = threading.active_count()
    with pieces_ahead(lambda buffer, _offset: len(buffer), 10**12, 1 << 16) as pieces:
        next(pieces)
    assert threading.active_count() == before


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(digest, "_LARGE", 1000)
    path = tmp_path / "large"
    path.write_bytes(os.urandom((5 << 20) + 3))
    return path


def opened(path: Path) -> tuple[int, int]:
    return os.open(path, os.O_RDONLY), (5 << 20) + 3


def test_one_file_and_a_core_to_spare(large: Path) -> None:
    counts: list[int] = []
    ((_, found),) = sha256_files([large], opened, workers=2, advance=counts.append)
    assert found == hashlib.sha256(large.read_bytes()).hexdigest() and sum(counts) == (5 << 20) + 3


def test_a_file_that_shrank_and_a_deadline(large: Path) -> None:
    os.truncate(large, 3 << 20)
    ((_, found),) = sha256_files([large], opened, workers=2)
    assert isinstance(found, ShortRead) and found.got == 3 << 20
    with pytest.raises(TimedOut):
        list(sha256_files([large], opened, workers=2, deadline=Deadline.now()))
