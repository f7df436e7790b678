"""Opening never follows a final link, never hangs and never reads more than it was allowed to."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import pytest

from hwctl.fs import paths


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_directory_opens_by_descriptor(tmp_path: Path) -> None:
    (tmp_path / "child").mkdir()
    with paths.opened_dir(tmp_path) as top, paths.opened_dir("child", dir_fd=top) as child:
        assert os.path.samestat(os.fstat(child), (tmp_path / "child").stat())
        assert not os.get_inheritable(child)


@pytest.mark.parametrize("target", ["folder", "nowhere"])
def test_a_link_is_no_directory(tmp_path: Path, target: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(target)
    with pytest.raises(OSError) as caught:
        paths.open_dir(tmp_path / "link")
    assert caught.value.errno in (errno.ENOTDIR, errno.ELOOP)


def test_a_regular_file_opens_with_its_stat(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    with paths.opened_dir(tmp_path) as top:
        fd, st = paths.open_regular("file", dir_fd=top)
    assert (os.read(fd, 10), st.st_size) == (b"abc", 3)
    assert not os.get_inheritable(fd)
    os.close(fd)


def make(path: Path, kind: str) -> None:
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(os.fspath(path))


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_WRONLY, os.O_RDWR])
@pytest.mark.parametrize("kind", ["fifo", "directory", "socket"])
def test_other_kinds_are_named_at_once(tmp_path: Path, kind: str, flags: int) -> None:
    make(tmp_path / "thing", kind)
    before = open_descriptors()
    with pytest.raises(paths.NotRegular, match=f"is a {kind}, not a regular file") as caught:
        paths.open_regular(tmp_path / "thing", flags=flags)
    assert caught.value.kind == kind
    assert caught.value.filename == os.fspath(tmp_path / "thing")
    assert open_descriptors() == before


def test_a_device_is_not_read() -> None:
    with pytest.raises(paths.NotRegular, match="character device"):
        paths.read_document("/dev/zero", limit=10)


def test_a_final_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    (tmp_path / "link").symlink_to("file")
    with pytest.raises(OSError) as caught:
        paths.read_document(tmp_path / "link", limit=10)
    assert caught.value.errno == errno.ELOOP


@pytest.mark.parametrize("size", [0, 1, 4096, 3_000_001])
def test_a_document_is_read_whole(tmp_path: Path, size: int) -> None:
    data = os.urandom(size)
    (tmp_path / "file").write_bytes(data)
    document = paths.read_document(tmp_path / "file", limit=size)
    assert document.data == data
    assert paths.identity(document.stat) == paths.identity((tmp_path / "file").stat())


def test_a_sparse_giant_is_refused_by_its_size(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        file.truncate(1 << 40)
    before = open_descriptors()
    with pytest.raises(paths.TooLarge) as caught:
        paths.read_document(tmp_path / "file", limit=64 << 20)
    assert (caught.value.size, caught.value.limit) == (1 << 40, 64 << 20)
    assert open_descriptors() == before


def test_a_file_without_a_size_is_bounded_too() -> None:
    # Files of /proc say 0 bytes and give many, as a file does that grows while it is read.
    assert paths.read_document("/proc/self/maps", limit=1 << 20).data
    with pytest.raises(paths.TooLarge):
        paths.read_document("/proc/self/maps", limit=100)


def test_identity_tells_a_rewrite_and_a_replacement(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"one")
    first = paths.identity(path.stat())
    os.utime(path, ns=(1, 1))
    assert paths.identity(path.stat()) != first
    path.unlink()
    path.write_bytes(b"one")
    assert paths.identity(path.stat()) != first
