"""The two threads of a payload: each slice is written once, hashed twice, never closed under the other."""

from __future__ import annotations

import hashlib
import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from hwctl.fs.atomic import write_all
from hwctl.stores.hostweights.lanes import SLICE, Block, Lanes, Stopped, Ticket, Write


def writer(fd: int) -> Write:
    return lambda data, offset: write_all(fd, data, offset)


@pytest.mark.parametrize("size", [1, SLICE, 5 * SLICE + 3])
def test_whoever_comes_first_writes_and_both_hash(tmp_path: Path, size: int) -> None:
    data = os.urandom(size)
    # pwrite to a file that was opened to append appends: a slice written twice shows in the size.
    fd = os.open(tmp_path / "f", os.O_CREAT | os.O_RDWR | os.O_APPEND)
    lanes = Lanes(2)
    digests = hashlib.sha256(), hashlib.sha256()
    try:
        lanes.pair().feed(Block(memoryview(data), 0, writer(fd)), *digests).wait()
    finally:
        lanes.stop()
        os.close(fd)
    assert (tmp_path / "f").stat().st_size == size
    assert {digest.hexdigest() for digest in digests} == {hashlib.sha256(data).hexdigest()}


def test_without_digests_a_block_is_still_written(tmp_path: Path) -> None:
    data = os.urandom(3 * SLICE)
    fd = os.open(tmp_path / "f", os.O_CREAT | os.O_RDWR)
    lanes = Lanes(1)
    try:
        lanes.pair().feed(Block(memoryview(data), 10, writer(fd)), None, None).wait()
    finally:
        lanes.stop()
        os.close(fd)
    assert (tmp_path / "f").read_bytes() == bytes(10) + data


def test_a_failure_is_told_only_when_the_other_part_has_ended() -> None:
    failed, running = Future[None](), Future[None]()
    failed.set_exception(OSError("full"))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(Ticket((failed, running)).wait)
        with pytest.raises(TimeoutError):
            waiting.result(timeout=0.1)
        running.set_result(None)
        with pytest.raises(OSError, match="full"):
            waiting.result(timeout=10)


def test_stopping_ends_what_is_under_way(tmp_path: Path) -> None:
    stop = threading.Event()
    stop.set()
    fd = os.open(tmp_path / "f", os.O_CREAT | os.O_RDWR)
    try:
        with pytest.raises(Stopped):
            Block(memoryview(bytes(5)), 0, writer(fd)).go_through(None, stop)
    finally:
        os.close(fd)
    assert (tmp_path / "f").stat().st_size == 0


@pytest.mark.parametrize(("jobs", "beside"), [(1, 1), (2, 1), (3, 1), (8, 4), (500, 8)])
def test_a_file_takes_two_cores(jobs: int, beside: int) -> None:
    lanes = Lanes(jobs)
    assert lanes.beside == beside
    lanes.stop()


def test_files_at_once_have_threads_of_their_own() -> None:
    lanes = Lanes(4)
    first, second = lanes.pair(), lanes.pair()
    assert first is not second
    lanes.give_back(second)
    assert lanes.pair() is second
    lanes.stop()
