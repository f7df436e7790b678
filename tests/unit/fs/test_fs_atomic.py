"""Documents are whole or absent, publication never replaces, failures leave nothing behind."""

from __future__ import annotations

import errno
import mmap
import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hwctl.fs import atomic
from hwctl.fs.paths import opened_dir


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[int]:
    with opened_dir(tmp_path) as fd:
        yield fd


def test_write_all_goes_on_after_short_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: real(fd, data[:3], offset))
    with (tmp_path / "file").open("wb") as file:
        atomic.write_all(file.fileno(), memoryview(bytes(range(20))).cast("B"), 5)
        assert file.tell() == 0
    assert (tmp_path / "file").read_bytes() == bytes(5) + bytes(range(20))


def test_write_all_takes_any_buffer(tmp_path: Path) -> None:
    import array

    with (tmp_path / "file").open("wb") as file:
        atomic.write_all(file.fileno(), array.array("H", [1, 2, 3]), 0)
        atomic.write_all(file.fileno(), b"", 100)
    assert (tmp_path / "file").stat().st_size == 6


def test_a_write_that_takes_nothing_is_an_io_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pwrite", lambda *_args: 0)
    with (tmp_path / "file").open("wb") as file, pytest.raises(OSError) as caught:
        atomic.write_all(file.fileno(), b"abc", 0)
    assert caught.value.errno == errno.EIO


def test_a_document_gets_exactly_its_mode(tmp_path: Path, folder: int) -> None:
    previous = os.umask(0o077)
    try:
        atomic.create_document(folder, "doc", b"text", 0o444)
    finally:
        os.umask(previous)
    assert (tmp_path / "doc").read_bytes() == b"text"
    assert stat.S_IMODE((tmp_path / "doc").stat().st_mode) == 0o444


@pytest.mark.parametrize("taken", ["file", "link", "folder"])
def test_create_never_touches_what_is_there(tmp_path: Path, folder: int, taken: str) -> None:
    (tmp_path / "target").write_bytes(b"other")
    if taken == "file":
        (tmp_path / "doc").write_bytes(b"old")
    elif taken == "link":
        (tmp_path / "doc").symlink_to("target")
    else:
        (tmp_path / "doc").mkdir()
    with pytest.raises(FileExistsError):
        atomic.create_document(folder, "doc", b"new", 0o600)
    assert (tmp_path / "doc").exists()
    assert (tmp_path / "target").read_bytes() == b"other"


@pytest.mark.parametrize("call", ["pwrite", "fsync", "fchmod"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_failed_document_is_removed(
    tmp_path: Path, folder: int, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    def fail(*_args: object) -> None:
        raise OSError(code, os.strerror(code))

    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(os, call, fail)
    with pytest.raises(OSError) as caught:
        atomic.create_document(folder, "doc", b"text", 0o600)
    with pytest.raises(OSError):
        atomic.replace_document(folder, "doc", b"text")
    monkeypatch.undo()
    assert caught.value.errno == code
    assert os.listdir(tmp_path) == []
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_failed_rename_leaves_the_old_document(
    tmp_path: Path, folder: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "doc").write_bytes(b"old")

    def fail(*_args: object, **_named: object) -> None:
        raise OSError(errno.ENOSYS, "not here")

    monkeypatch.setattr(os, "rename", fail)
    with pytest.raises(OSError):
        atomic.replace_document(folder, "doc", b"new")
    assert os.listdir(tmp_path) == ["doc"]
    assert (tmp_path / "doc").read_bytes() == b"old"


def test_replacing_keeps_the_bytes_of_those_who_map_the_old_file(tmp_path: Path, folder: int) -> None:
    (tmp_path / "doc").write_bytes(b"old" * 2000)
    with (tmp_path / "doc").open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        atomic.replace_document(folder, "doc", b"new", mode=0o440)
        assert mapped[:] == b"old" * 2000
    assert (tmp_path / "doc").read_bytes() == b"new"
    assert stat.S_IMODE((tmp_path / "doc").stat().st_mode) == 0o440


def test_a_replacement_through_a_link_replaces_the_link(tmp_path: Path, folder: int) -> None:
    (tmp_path / "target").write_bytes(b"other")
    (tmp_path / "doc").symlink_to("target")
    atomic.replace_document(folder, "doc", b"new")
    assert not (tmp_path / "doc").is_symlink()
    assert (tmp_path / "target").read_bytes() == b"other"


def test_the_temporary_can_be_named(tmp_path: Path, folder: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    real = os.rename

    def rename(src: str, dst: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        seen.extend(os.listdir(tmp_path))
        real(src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    monkeypatch.setattr(os, "rename", rename)
    atomic.replace_document(folder, "doc", b"new", temporary=".mine.tmp")
    atomic.replace_document(folder, "doc", b"new")
    assert seen[0] == ".mine.tmp"
    named = next(name for name in seen if name.startswith(".doc."))
    assert named.split(".")[2] == str(os.getpid()) and len(named.split(".")[3]) == 32


def test_readers_never_see_half_a_document(tmp_path: Path, folder: int) -> None:
    contents = [bytes([number]) * 50_000 for number in range(2)]
    atomic.replace_document(folder, "doc", contents[0])
    stop, torn = threading.Event(), []

    def read() -> None:
        while not stop.is_set():
            data = (tmp_path / "doc").read_bytes()
            if data not in contents:
                torn.append(data[:10])

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for number in range(50):
            atomic.replace_document(folder, "doc", contents[number % 2])
    finally:
        stop.set()
        reader.join()
    assert torn == []


def test_publication_moves_a_folder(tmp_path: Path, folder: int) -> None:
    (tmp_path / "staging").mkdir()
    atomic.rename_noreplace(folder, "staging", folder, "ready")
    assert os.listdir(tmp_path) == ["ready"]


@pytest.mark.parametrize("taken", ["empty folder", "file", "dangling link"])
def test_publication_never_replaces(tmp_path: Path, folder: int, taken: str) -> None:
    (tmp_path / "staging").mkdir()
    if taken == "empty folder":
        (tmp_path / "ready").mkdir()
    elif taken == "file":
        (tmp_path / "ready").write_bytes(b"")
    else:
        (tmp_path / "ready").symlink_to("nowhere")
    with pytest.raises(FileExistsError) as caught:
        atomic.rename_noreplace(folder, "staging", folder, "ready")
    assert (caught.value.filename, caught.value.filename2) == ("staging", "ready")
    assert sorted(os.listdir(tmp_path)) == ["ready", "staging"]


def test_publication_names_a_missing_source(folder: int) -> None:
    with pytest.raises(FileNotFoundError):
        atomic.rename_noreplace(folder, "staging", folder, "ready")
    with pytest.raises(ValueError, match="null"):
        atomic.rename_noreplace(folder, "a\0b", folder, "ready")


def test_folders_can_be_synced(folder: int) -> None:
    atomic.sync_dir(folder)


def test_a_file_takes_its_name_when_it_is_whole(tmp_path: Path, folder: int) -> None:
    (tmp_path / "name").write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt), atomic.replacing(folder, "name") as (fd, temporary):
        atomic.write_all(fd, b"half", 0)
        assert (tmp_path / temporary).read_bytes() == b"half"
        raise KeyboardInterrupt
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"name": b"old"}
    with atomic.replacing(folder, "name") as (fd, _temporary):
        atomic.write_all(fd, b"whole", 0)
        assert (tmp_path / "name").read_bytes() == b"old"
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"name": b"whole"}
