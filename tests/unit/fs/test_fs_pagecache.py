"""Reading leaves the page cache as it was: warm stays warm, cold stays cold (PER-02)."""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from hwctl.fs import pagecache
from hwctl.fs.digest import sha256_fd
from hwctl.fs.mounts import mount_of
from hwctl.fs.pagecache import QuietFile, Way, Ways, cold_runs, resident

SIZE = 24 << 20
PAGE = mmap.PAGESIZE


class Chosen(Ways):
    """The way a test wants, whatever the file system offers."""

    def __init__(self, way: Way) -> None:
        super().__init__()
        self._way = way

    def of(self, fd: int) -> Way:
        return self._way


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    if mount_of(tmp_path).fs_type in ("tmpfs", "ramfs"):
        pytest.skip("the tests' folder is in memory: there is no page cache to keep")
    path = tmp_path / "file"
    path.write_bytes(os.urandom(1 << 20) * (SIZE >> 20))
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    forget(fd)
    if warm(fd):
        os.close(fd)
        pytest.skip("the file system of the tests does not let pages go")
    yield fd
    os.close(fd)


def forget(fd: int) -> None:
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def warm(fd: int) -> int:
    """Resident pages."""
    return sum(resident(fd, 0, SIZE))


def read_through(fd: int, way: Way) -> str:
    digest, buffer, offset = hashlib.sha256(), memoryview(bytearray(2 << 20)), 0
    with QuietFile(fd, SIZE, Chosen(way)) as quiet:
        while count := quiet.read_into(buffer, offset):
            digest.update(buffer[:count])
            offset += count
    return digest.hexdigest()


def test_residency_is_seen(file: int) -> None:
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)  # no reading ahead
    os.pread(file, PAGE, 5 * PAGE)
    pages = resident(file, 0, SIZE)
    assert len(pages) == SIZE // PAGE and pages[5] == 1 and pages[500] == 0
    assert resident(file, 5 * PAGE, 1) == b"\1"
    with pytest.raises(OSError):
        resident(file, 0, 0)


@pytest.mark.parametrize("way", [Way.UNCACHED, Way.DROP])
def test_cold_stays_cold(file: int, way: Way) -> None:
    digest = read_through(file, way)
    assert warm(file) == 0
    assert digest == hashlib.sha256(os.pread(file, SIZE, 0)).hexdigest()


@pytest.mark.parametrize("way", [Way.UNCACHED, Way.DROP, Way.PLAIN])
def test_warm_stays_warm(file: int, way: Way) -> None:
    os.pread(file, SIZE, 0)
    assert warm(file) == SIZE // PAGE
    read_through(file, way)
    assert warm(file) == SIZE // PAGE


@pytest.mark.parametrize("way", [Way.UNCACHED, Way.DROP])
def test_half_warm_stays_half_warm(file: int, way: Way) -> None:
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
    for offset in range(0, SIZE, 8 << 20):
        os.pread(file, 4 << 20, offset)
    before = resident(file, 0, SIZE)
    assert 0 < sum(before) < SIZE // PAGE
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_NORMAL)
    read_through(file, way)
    after = resident(file, 0, SIZE)
    assert all(now for now, then in zip(after, before, strict=True) if then), "a warm page was lost"
    assert sum(after) - sum(before) <= SIZE // PAGE // 50


def test_the_digest_leaves_the_cache_alone(file: int) -> None:
    sha256_fd(file, SIZE)
    assert warm(file) == 0
    os.pread(file, SIZE, 0)
    sha256_fd(file, SIZE)
    assert warm(file) == SIZE // PAGE


def test_a_kernel_without_the_flag_is_found_out_once(file: int, monkeypatch: pytest.MonkeyPatch) -> None:
    real, flags_seen = os.preadv, []

    def preadv(fd: int, buffers: list[memoryview], offset: int, flags: int = 0) -> int:
        flags_seen.append(flags)
        if flags:
            raise OSError(95, "Operation not supported")
        return real(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", preadv)
    ways, buffer = Ways(), memoryview(bytearray(2 << 20))
    for _ in range(2):
        with QuietFile(file, SIZE, ways) as quiet:
            offset = 0
            while count := quiet.read_into(buffer, offset):
                offset += count
    assert flags_seen.count(pagecache.RWF_DONTCACHE) == 1
    assert ways.of(file) is Way.DROP and warm(file) == 0


def test_a_tmpfs_is_read_plainly() -> None:
    path = Path("/dev/shm") / f"hwctl-test-{os.getpid()}"
    if not path.parent.is_dir() or mount_of(path).fs_type != "tmpfs":
        pytest.skip("there is no tmpfs at /dev/shm")
    path.write_bytes(bytes(1 << 20))
    fd = os.open(path, os.O_RDONLY)
    try:
        assert Ways().of(fd) is Way.PLAIN
        assert sha256_fd(fd, 1 << 20) == hashlib.sha256(bytes(1 << 20)).hexdigest()
    finally:
        os.close(fd)
        path.unlink()


@pytest.mark.parametrize(
    ("residency", "runs"),
    [
        (b"", []),
        (b"\1\1", []),
        (b"\0\0", [(0, 2)]),
        (b"\1\0\1\0\0\1", [(1, 2), (3, 5)]),
        (b"\0\1\0", [(0, 1), (2, 3)]),
    ],
)
def test_cold_runs(residency: bytes, runs: list[tuple[int, int]]) -> None:
    base = 64 << 20
    assert cold_runs(residency, base) == [(base + begin * PAGE, base + end * PAGE) for begin, end in runs]
