"""Whether anybody has a file open, asked of the kernel and tried on real processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import holders
import pytest

from hwctl.fs.openers import opened
from hwctl.fs.openfiles import RecentOpenFiles
from hwctl.fs.paths import opened_dir, read_document
from hwctl.fs.walk import Inode, inode_of


@pytest.fixture
def tree(shm: Path) -> Path:
    """In memory: the kernel gives no lease on overlay, where the tests' own folder may lie."""
    tree = shm / "tree"
    (tree / "inner").mkdir(parents=True)
    for name in ("manifest", "inner/a", "inner/b", "inner/manifest"):
        (tree / name).write_bytes(b"x" * 4096)
    (tree / "link").symlink_to(shm / "elsewhere")
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


ASKING = """
import os, sys
from hwctl.fs.openers import opened
path = sys.argv[1] + "/file"
open(path, "w").close()
folder = os.open(sys.argv[1], os.O_RDONLY)
print(opened(folder, "file"))
file = os.open(path, os.O_RDONLY)
print(opened(folder, "file"))
"""


def test_eagain_tells_nothing_where_a_server_may_have_said_it(tmp_path: Path) -> None:
    """NFS and SMB answer so without anybody there. hugetlbfs, no disk either, stands for them."""
    mounting = ["unshare", "--mount", "sh", "-c", 'mount -t hugetlbfs test "$0" && exec "$@"', str(tmp_path)]
    if subprocess.run([*mounting, "true"], capture_output=True).returncode:
        pytest.skip("no hugetlbfs can be mounted here")
    command = [*mounting, sys.executable, "-c", ASKING, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == ["frozenset()", "None"], done.stderr


def test_a_reader_of_ours_waits_as_well(tree: Path) -> None:
    """It opens without blocking, for which the kernel would send it away."""
    asking = """
import os, sys
from hwctl.fs.openers import opened
folder = os.open(sys.argv[1], os.O_RDONLY)
print("x", flush=True)
while True:
    opened(folder, "manifest")
"""
    asker = subprocess.Popen([sys.executable, "-c", asking, tree], stdout=subprocess.PIPE)
    try:
        assert asker.stdout is not None and asker.stdout.readline()
        for _ in range(20000):
            assert len(read_document(tree / "manifest", limit=4096).data) == 4096
    finally:
        asker.kill()
        asker.communicate()


def test_a_reader_of_ours_does_not_wait_for_ever(tree: Path) -> None:
    """Another program's lease is not given back before the kernel takes it, after 45 seconds."""
    holding = """
import fcntl, signal, sys
signal.signal(signal.SIGIO, signal.SIG_IGN)
file = open(sys.argv[1], "rb")
fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
print("x", flush=True)
sys.stdin.read()
"""
    command = [sys.executable, "-S", "-c", holding, tree / "manifest"]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None and holder.stdout.readline()
        began = time.monotonic()
        with pytest.raises(BlockingIOError):
            read_document(tree / "manifest", limit=4096)
        assert time.monotonic() - began < 10
    finally:
        holder.communicate()


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
        with (tree / "manifest").open("rb"):
            assert recent.of(fd, "tree").holds(inode(tree / "manifest"))
            assert not recent.of(fd, "tree", sparing=("manifest",)).holds(inode(tree / "manifest"))
        recent.forget()
        assert recent().holds(inode(tree / "inner/b"))
