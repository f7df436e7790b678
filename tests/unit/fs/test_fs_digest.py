"""Digests in parallel: right, in order, bounded, and ended in time."""

from __future__ import annotations

import errno
import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from hwctl.errors import Refused
from hwctl.fs import digest
from hwctl.fs.deadline import Deadline
from hwctl.fs.digest import ShortRead, sha256_fd, sha256_files
from hwctl.fs.pace import Pacer, Stopped, TimedOut

EMPTY = hashlib.sha256().hexdigest()


def opened(path: Path) -> tuple[int, int]:
    fd = os.open(path, os.O_RDONLY)
    return fd, os.fstat(fd).st_size


def size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def expected(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    sizes = [0, 1, 4095, 4096, 4097, (2 << 20) - 1, 2 << 20, (2 << 20) + 1, 5_000_001, 17]
    paths = [tmp_path / f"{number}.bin" for number in range(len(sizes))]
    for path, size in zip(paths, sizes, strict=True):
        path.write_bytes(os.urandom(size))
    return paths


@pytest.fixture
def large(tmp_path: Path) -> Path:
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(1 << 30)
    return path


@pytest.mark.parametrize("workers", [1, 2, 3, 64])
@pytest.mark.parametrize("sizes_known", [True, False])
def test_results_are_right_and_in_input_order(files: list[Path], workers: int, sizes_known: bool) -> None:
    told: list[int] = []
    before = descriptors()
    results = list(
        sha256_files(
            files,
            opened,
            workers=workers,
            size_of=size_of if sizes_known else None,
            advance=told.append,
        )
    )
    assert results == [(path, expected(path)) for path in files]
    assert sum(told) == sum(size_of(path) for path in files)
    assert descriptors() == before


def test_one_descriptor(files: list[Path]) -> None:
    for path in files:
        fd, size = opened(path)
        assert sha256_fd(fd, size) == expected(path)
        if size:
            assert sha256_fd(fd, size - 1) == hashlib.sha256(path.read_bytes()[:-1]).hexdigest()
            assert os.lseek(fd, 0, os.SEEK_CUR) == 0
        os.close(fd)


def test_nothing_to_do() -> None:
    assert list(sha256_files([], opened, workers=4)) == []


@pytest.mark.parametrize("workers", [1, 3])
def test_a_file_that_cannot_be_read_does_not_stop_the_others(files: list[Path], workers: int) -> None:
    jobs = [files[0], Path("/nowhere/at/all"), files[5], files[0].parent]
    results = list(sha256_files(jobs, opened, workers=workers))
    assert [path for path, _ in results] == jobs
    assert (results[0][1], results[2][1]) == (EMPTY, expected(files[5]))
    assert isinstance(results[1][1], FileNotFoundError) and isinstance(results[3][1], IsADirectoryError)


@pytest.mark.parametrize("workers", [1, 3])
def test_a_file_that_shrank_is_said_so(files: list[Path], workers: int) -> None:
    def taller(path: Path) -> tuple[int, int]:
        fd, size = opened(path)
        return fd, size + 10

    for path, outcome in sha256_files(files, taller, workers=workers):
        assert isinstance(outcome, ShortRead)
        assert (outcome.got, outcome.size) == (size_of(path), size_of(path) + 10)


@pytest.mark.parametrize("workers", [1, 3])
def test_a_bad_disk_is_a_result(files: list[Path], workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # VER-10: an I/O fault is handed on as what it is and closes its descriptor.
    real = os.preadv

    def preadv(fd: int, buffers: list[memoryview], offset: int, flags: int = 0) -> int:
        if os.fstat(fd).st_size == 17:
            raise OSError(errno.EIO, "bad sector")
        return real(fd, buffers, offset, flags)

    monkeypatch.setattr(os, "preadv", preadv)
    before = descriptors()
    results = dict(sha256_files(files, opened, workers=workers))
    bad = results.pop(files[-1])
    assert isinstance(bad, OSError) and bad.errno == errno.EIO
    assert results == {path: expected(path) for path in files[:-1]} and descriptors() == before


@pytest.mark.parametrize("workers", [1, 3])
def test_other_exceptions_are_raised_in_their_turn(files: list[Path], workers: int) -> None:
    def choosy(path: Path) -> tuple[int, int]:
        if path == files[3]:
            raise Refused("not this one")
        return opened(path)

    seen = []
    with pytest.raises(Refused, match="not this one"):
        for path, _outcome in sha256_files(files, choosy, workers=workers):
            seen.append(path)
    assert seen == files[:3]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("sha256-")]


@pytest.mark.parametrize("workers", [1, 2])
def test_the_deadline_is_kept(large: Path, workers: int) -> None:
    begun = time.monotonic()
    with pytest.raises(TimedOut):
        list(sha256_files([large] * 4, opened, workers=workers, deadline=Deadline.after(0.1)))
    assert time.monotonic() - begun < 1.0


def test_the_deadline_is_kept_while_pacing(files: list[Path]) -> None:
    fd, size = opened(files[8])
    begun = time.monotonic()
    with pytest.raises(TimedOut):
        sha256_fd(fd, size, pacer=Pacer(1000), deadline=Deadline.after(0.2))
    assert 0.2 <= time.monotonic() - begun < 1.0
    os.close(fd)


def test_an_expired_deadline_reads_nothing(files: list[Path]) -> None:
    opens: list[Path] = []

    def noted(path: Path) -> tuple[int, int]:
        opens.append(path)
        return opened(path)

    with pytest.raises(TimedOut):
        list(sha256_files(files, noted, workers=1, deadline=Deadline.now()))
    assert opens == []


@pytest.mark.parametrize("workers", [1, 2])
def test_a_stop_from_another_thread(large: Path, workers: int) -> None:
    stop = threading.Event()
    timer = threading.Timer(0.1, stop.set)
    timer.start()
    begun = time.monotonic()
    with pytest.raises(Stopped):
        list(sha256_files([large] * 4, opened, workers=workers, stop=stop))
    assert time.monotonic() - begun < 1.0


def test_leaving_early_ends_the_workers(large: Path, files: list[Path]) -> None:
    before = descriptors()
    begun = time.monotonic()
    iterator = sha256_files([files[0], *[large] * 4], opened, workers=2)
    assert next(iterator) == (files[0], EMPTY)
    iterator.close()
    assert time.monotonic() - begun < 1.0
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("sha256-")]
    assert descriptors() == before


class Interrupted(BaseException):
    """What a signal handler raises in the main thread."""


def test_a_signal_ends_the_wait_and_the_workers(large: Path) -> None:
    def handler(_number: int, _frame: object) -> None:
        raise Interrupted

    previous = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        begun = time.monotonic()
        with pytest.raises(Interrupted):
            list(sha256_files([large] * 4, opened, workers=2))
        assert time.monotonic() - begun < 1.0
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("sha256-")]


@pytest.mark.parametrize("workers", [1, 4])
def test_the_rate_is_shared_by_all_workers(tmp_path: Path, workers: int) -> None:
    paths = [tmp_path / str(number) for number in range(8)]
    for path in paths:
        path.write_bytes(bytes(250_000))
    begun = time.monotonic()
    list(sha256_files(paths, opened, workers=workers, pacer=Pacer(4_000_000)))
    # 2 MB at 4 MB/s, of which a tenth of a second may come in a burst.
    assert 0.35 <= time.monotonic() - begun < 2.0


def test_memory_is_bounded_whatever_the_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    real = digest._hash

    def noted(fd: int, size: int, buffer: memoryview, *rest: object) -> str:
        sizes.append(len(buffer))
        return real(fd, size, buffer, *rest)  # type: ignore[arg-type]

    paths = [tmp_path / str(number) for number in range(200)]
    for path in paths:
        path.write_bytes(b"x")
    monkeypatch.setattr(digest, "_hash", noted)
    assert len(list(sha256_files(paths, opened, workers=100))) == 200
    assert max(sizes) * 100 < 32 << 20


def test_workers_without_memory_for_their_buffers_end_the_call(tmp_path: Path) -> None:
    """And do not leave it waiting for them."""
    code = """
import os, resource, sys, threading
from hwctl.fs.digest import sha256_files
threading.stack_size(256 << 10)
paths = sys.argv[1:]
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 20), resource.RLIM_INFINITY))
try:
    list(sha256_files(paths, lambda path: (os.open(path, os.O_RDONLY), 4), workers=2))
except (MemoryError, RuntimeError) as exc:
    print(type(exc).__name__)
"""
    paths = [tmp_path / str(number) for number in range(4)]
    for path in paths:
        path.write_bytes(b"data")
    words = [sys.executable, "-c", code, *map(str, paths)]
    told = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert told.stdout in ("MemoryError\n", "RuntimeError\n"), told.stderr
