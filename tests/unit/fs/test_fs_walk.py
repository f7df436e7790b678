"""Walking stays inside the tree, needs one descriptor, and survives what vanishes."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from hwctl.fs.paths import opened_dir
from hwctl.fs.walk import Descent, inode_of, walk_stats


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[int]:
    with opened_dir(tmp_path) as fd:
        yield fd


def test_everything_is_seen_once_and_links_are_not_followed(tmp_path: Path, folder: int) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").touch()
    tree = tmp_path / "tree"
    (tree / "a" / "b").mkdir(parents=True)
    (tree / "a" / "file").touch()
    (tree / "link").symlink_to(outside)
    os.mkfifo(tree / "a" / "b" / "fifo")
    seen = [inode_of(st) for st in walk_stats(folder, "tree")]
    expected = {inode_of(tree.lstat()), *(inode_of(path.lstat()) for path in tree.rglob("*"))}
    assert len(seen) == len(expected) == 6 and set(seen) == expected
    assert seen[0] == inode_of(tree.lstat())


def test_a_single_file_and_nothing_at_all(tmp_path: Path, folder: int) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("file")
    assert len(list(walk_stats(folder, "file"))) == 1
    [link] = walk_stats(folder, "link")
    assert stat.S_ISLNK(link.st_mode)
    assert list(walk_stats(folder, "missing")) == []


def make_deep(folder: int, levels: int) -> None:
    """A chain of folders deeper than any path can be long."""
    os.mkdir("tree", dir_fd=folder)
    fd = os.open("tree", os.O_RDONLY | os.O_DIRECTORY, dir_fd=folder)
    for _ in range(levels):
        os.mkdir("d" * 20, dir_fd=fd)
        child = os.open("d" * 20, os.O_RDONLY | os.O_DIRECTORY, dir_fd=fd)
        os.close(fd)
        fd = child
    os.close(fd)


def test_depth_needs_neither_descriptors_nor_stack(tmp_path: Path, folder: int) -> None:
    from hwctl.fs.remove import remove_tree

    make_deep(folder, 1200)
    before = len(os.listdir("/proc/self/fd"))
    seen = most = 0
    for _st in walk_stats(folder, "tree"):
        seen += 1
        if seen % 200 == 0:
            most = max(most, len(os.listdir("/proc/self/fd")))
    assert seen == 1201 and most <= before + 2
    remove_tree(folder, "tree")
    assert os.listdir(tmp_path) == []


def test_what_vanishes_is_passed_over(tmp_path: Path, folder: int) -> None:
    tree = tmp_path / "tree"
    for name in ("a", "b", "c"):
        (tree / name).mkdir(parents=True)
    walk = walk_stats(folder, "tree")
    next(walk)
    next(walk)  # the listing of the top is taken
    for name in ("a", "b", "c"):
        (tree / name).rmdir()
    assert len(list(walk)) == 2


def test_a_folder_that_is_removed_under_the_walk_ends_it_quietly(tmp_path: Path, folder: int) -> None:
    (tmp_path / "tree" / "a").mkdir(parents=True)
    with Descent(folder, "tree") as descent:
        descent.down("a")
        (tmp_path / "tree" / "a").rmdir()
        descent.up()


def test_a_folder_that_was_moved_away_is_not_climbed_out_of(tmp_path: Path, folder: int) -> None:
    (tmp_path / "tree" / "a" / "b").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    with Descent(folder, "tree") as descent:
        descent.down("a")
        descent.down("b")
        (tmp_path / "tree" / "a" / "b").rename(tmp_path / "other" / "b")
        with pytest.raises(OSError) as caught:
            descent.up()
        assert caught.value.errno == errno.ESTALE
        # The place stays the same, nothing leaks.
        assert os.path.samestat(os.fstat(descent.fd), (tmp_path / "other" / "b").stat())


def test_a_link_is_not_entered(tmp_path: Path, folder: int) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "link").symlink_to("/")
    with Descent(folder, "tree") as descent, pytest.raises(NotADirectoryError):
        descent.down("link")
