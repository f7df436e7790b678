"""Deleting by descriptor: nothing outside is touched, what was freed is measured."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from hwctl.errors import Refused
from hwctl.fs.openfiles import OpenFiles
from hwctl.fs.paths import opened_dir
from hwctl.fs.remove import Removed, remove_file, remove_tree
from hwctl.fs.space import usage
from hwctl.fs.walk import inode_of


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[int]:
    with opened_dir(tmp_path) as fd:
        yield fd


def kt_tree(top: Path, layers: int = 3, files: int = 4) -> Path:
    for layer in range(layers):
        for numa in range(2):
            place = top / f"_layer_{layer}" / f"_numa_{numa}"
            place.mkdir(parents=True)
            for file in range(files):
                (place / f"gate_{file}.kt").write_bytes(b"x" * 5000)
    return top


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_what_is_freed_is_what_was_used(tmp_path: Path, folder: int) -> None:
    tree = kt_tree(tmp_path / "tree")
    (tree / "second").hardlink_to(tree / "_layer_0" / "_numa_0" / "gate_0.kt")
    with (tree / "sparse").open("wb") as file:
        file.truncate(1 << 30)
    os.mkfifo(tree / "fifo")
    used, before = usage(folder, "tree"), descriptors()
    deleted = remove_tree(folder, "tree")
    assert deleted == Removed(files=used.files, bytes_freed=used.allocated, size=used.bytes)
    assert os.listdir(tmp_path) == [] and descriptors() == before


def test_a_link_kept_outside_frees_nothing(tmp_path: Path, folder: int) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "file").write_bytes(b"x" * 100_000)
    (tmp_path / "kept").hardlink_to(tmp_path / "tree" / "file")
    folder_blocks = (tmp_path / "tree").stat().st_blocks * 512
    assert remove_tree(folder, "tree") == Removed(files=1, bytes_freed=folder_blocks, size=100_000)
    assert remove_file(folder, "kept").bytes_freed >= 100_000


def test_links_go_and_their_targets_stay(tmp_path: Path, folder: int) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_bytes(b"x")
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "to_file").symlink_to(outside / "precious")
    (tmp_path / "tree" / "to_folder").symlink_to(outside, target_is_directory=True)
    (tmp_path / "top").symlink_to(outside, target_is_directory=True)
    assert remove_tree(folder, "tree").files == 2
    assert remove_tree(folder, "top").files == 1
    assert os.listdir(tmp_path) == ["outside"] and os.listdir(outside) == ["precious"]


def test_what_is_gone_is_success(folder: int) -> None:
    assert remove_tree(folder, "missing") == remove_file(folder, "missing") == Removed()


def test_published_modes_are_no_obstacle(tmp_path: Path, folder: int) -> None:
    tree = kt_tree(tmp_path / "tree")
    paths = [tree, *tree.rglob("*")]
    for path in reversed(paths):
        path.chmod(0o555 if path.is_dir() else 0o444)
    (tree / "_layer_1").chmod(0o000)
    caller = os.geteuid()
    if caller == 0:
        for path in [tmp_path, *paths]:
            os.chown(path, 65534, 65534)
        os.seteuid(65534)
    try:
        assert remove_tree(folder, "tree").files == 24
    finally:
        os.seteuid(caller)
    assert os.listdir(tmp_path) == []


def test_an_unreadable_top_is_opened_all_the_same(tmp_path: Path, folder: int) -> None:
    (tmp_path / "tree").mkdir()
    caller = os.geteuid()
    if caller == 0:
        os.chown(tmp_path, 65534, 65534)
        os.chown(tmp_path / "tree", 65534, 65534)
        os.seteuid(65534)
    try:
        (tmp_path / "tree").chmod(0) if caller else os.chmod("tree", 0, dir_fd=folder)
        remove_tree(folder, "tree")
    finally:
        os.seteuid(caller)
    assert os.listdir(tmp_path) == []


def test_a_successor_of_the_same_name_is_left_alone(tmp_path: Path, folder: int) -> None:
    # EVI-05: chosen, replaced, deleted.
    (tmp_path / "tree").mkdir()
    chosen = inode_of((tmp_path / "tree").stat())
    (tmp_path / "tree").rename(tmp_path / "gone")
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "fresh").touch()
    with pytest.raises(Refused, match="something else stands there"):
        remove_tree(folder, "tree", inode=chosen)
    assert (tmp_path / "tree" / "fresh").exists()
    remove_tree(folder, "gone", inode=chosen)
    assert os.listdir(tmp_path) == ["tree"]


def test_what_others_hold_is_not_counted_as_free(tmp_path: Path, folder: int) -> None:
    # EVI-03: the name goes, the memory stays until they let go.
    (tmp_path / "tree").mkdir()
    for name in ("held", "free"):
        (tmp_path / "tree" / name).write_bytes(b"x" * 100_000)
    st = (tmp_path / "tree" / "held").stat()
    used = usage(folder, "tree").allocated
    seen = OpenFiles({inode_of(st): ((1, "open"),)}, plain=frozenset({st.st_dev}))
    deleted = remove_tree(folder, "tree", open_files=seen)
    assert deleted == Removed(2, used - st.st_blocks * 512, st.st_blocks * 512, 200_000)


def test_a_file_where_a_tree_was_expected(tmp_path: Path, folder: int) -> None:
    (tmp_path / "file").write_bytes(b"x")
    assert remove_tree(folder, "file").files == 1
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        remove_file(folder, "folder")


def test_a_late_writer_is_an_error_not_a_loop(
    tmp_path: Path, folder: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tree" / "sub").mkdir(parents=True)
    real = os.rmdir

    def rmdir(name: str, *, dir_fd: int) -> None:
        if name == "sub":
            os.close(os.open("sub/late", os.O_CREAT | os.O_WRONLY, dir_fd=dir_fd))
        real(name, dir_fd=dir_fd)

    before = descriptors()
    with monkeypatch.context() as patched, pytest.raises(OSError):
        patched.setattr(os, "rmdir", rmdir)
        remove_tree(folder, "tree")
    assert (tmp_path / "tree" / "sub" / "late").exists() and descriptors() == before
    # A later call goes on where this one stopped.
    assert remove_tree(folder, "tree").files == 1


def test_a_wide_folder(tmp_path: Path, folder: int) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "0.kt").touch()
    for number in range(1, 5000):
        (tree / f"{number}.kt").hardlink_to(tree / "0.kt")
    assert remove_tree(folder, "tree").files == 5000
    assert not tree.exists()


def test_modes_of_files_are_never_touched(tmp_path: Path, folder: int) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "file").touch(0o400)
    (tmp_path / "kept").hardlink_to(tmp_path / "tree" / "file")
    remove_tree(folder, "tree")
    assert stat.S_IMODE((tmp_path / "kept").stat().st_mode) == 0o400


def test_what_says_what_a_tree_is_outlives_the_rest(
    tmp_path: Path, folder: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    kt_tree(tmp_path / "tree")
    (tmp_path / "tree" / "lease").write_text("who made it")
    order: list[str] = []
    unlink = os.unlink

    def recorded(name: str, *, dir_fd: int | None = None) -> None:
        order.append(name)
        unlink(name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", recorded)
    remove_tree(folder, "tree", last=("lease", "missing"))
    assert order[-1] == "lease" and len(order) == 25
    assert os.listdir(tmp_path) == []
