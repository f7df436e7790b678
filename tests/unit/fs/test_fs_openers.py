"""Whether anybody has a file open, asked of the kernel and tried on real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import holders
import pytest

from hwctl.fs.openers import opened
from hwctl.fs.openfiles import RecentOpenFiles
from hwctl.fs.paths import opened_dir
from hwctl.fs.walk import Inode, inode_of


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    tree = tmp_path / "tree"
    (tree / "inner").mkdir(parents=True)
    for name in ("manifest", "inner/a", "inner/b", "inner/manifest"):
        (tree / name).write_bytes(b"x" * 4096)
    (tree / "link").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(tree / "fifo")
    return tree


def ask(tree: Path, *sparing: str, most: int | None = None) -> frozenset[Inode] | None:
    with opened_dir(tree) as fd:
        return opened(fd, ".", sparing=sparing, most=most)


def inode(path: Path) -> Inode:
    return inode_of(path.stat())


def test_nobody(tree: Path) -> None:
    assert ask(tree) == frozenset()
    assert ask(tree.parent / "tree" / "inner") == frozenset()


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_WRONLY, os.O_RDWR])
def test_our_own_descriptor_counts_as_well(tree: Path, flags: int) -> None:
    fd = os.open(tree / "inner/a", flags)
    try:
        assert ask(tree) == {inode(tree / "inner/a")}
    finally:
        os.close(fd)
    assert ask(tree) == frozenset()


def test_a_mapping_counts_also_without_a_descriptor(tree: Path) -> None:
    with holders.mapped(tree / "inner/b"):
        assert ask(tree) == {inode(tree / "inner/b")}


def test_the_spared_ones_are_those_of_the_root(tree: Path) -> None:
    with (tree / "manifest").open("rb"), (tree / "inner/manifest").open("rb"):
        assert ask(tree, "manifest") == {inode(tree / "inner/manifest")}


def test_more_than_may_be_asked_about_is_not_told(tree: Path) -> None:
    assert ask(tree, most=4) == frozenset()
    assert ask(tree, most=3) is None


def test_whoever_opens_it_meanwhile_waits_and_nobody_is_ended(tree: Path) -> None:
    """The kernel tells the asker of every open that comes in between, by a signal that would end it."""
    opening = "import sys\nfor _ in range(20000): open(sys.argv[1]).close()"
    rival = subprocess.Popen([sys.executable, "-S", "-c", opening, tree / "inner/a"])
    answers = [ask(tree / "inner") for _ in range(3000)]
    while rival.poll() is None:
        answers.append(ask(tree / "inner"))
    assert rival.returncode == 0
    assert set(answers) <= {frozenset(), frozenset({inode(tree / "inner/a")})}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_users_file_is_not_told(tree: Path) -> None:
    with opened_dir(tree) as fd:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.setresuid(65534, 65534, 65534)
                code = 0 if opened(fd, ".") is None else 2
            finally:
                os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_what_is_removed_is_measured_as_of_now(tree: Path) -> None:
    """A pass over /proc is kept for a second, and does not show who came since."""
    recent = RecentOpenFiles()
    recent()
    with holders.mapped(tree / "inner/b"), opened_dir(tree.parent) as fd:
        assert not recent().holds(inode(tree / "inner/b"))
        assert recent.of(fd, "tree").holds(inode(tree / "inner/b"))
        assert not recent.of(fd, "tree").holds(inode(tree / "inner/a"))
        recent.forget()
        assert recent().holds(inode(tree / "inner/b"))
