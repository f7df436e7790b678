"""Who has a file open, mapped, or as its working directory, seen on real processes."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import private_mounts
import pytest

from hwctl.fs.liveness import proc_stat
from hwctl.fs.openfiles import OpenFiles, User, parse_maps
from hwctl.fs.walk import Inode, inode_of

MAPS = b"""00400000-00452000 r-xp 00000000 08:02 173521      /usr/bin/dbus daemon
7f0000000000-7f0000001000 rw-s 00000000 00:1b 15 /dev/shm/x (deleted)
7f0000002000-7f0000003000 rw-p 00000000 00:00 0
7ffd00000000-7ffd00001000 r-xp 00000000 00:00 0      [vdso]
"""


# Python's own mmap keeps a descriptor open; this maps and then holds nothing but the mapping.
MAPPING = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_longlong]
libc.mmap.restype = ctypes.c_void_p
fd = os.open(sys.argv[1], os.O_RDONLY)
assert libc.mmap(None, 4096, 1, 1, fd, 0) not in (None, 2**64 - 1)
os.close(fd)"""


@contextmanager
def process(code: str, *words: object, cwd: Path | None = None) -> Iterator[int]:
    child = subprocess.Popen(
        [sys.executable, "-S", "-c", code + "\nprint('x', flush=True); sys.stdin.read()", *map(str, words)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=cwd,
    )
    try:
        assert child.stdout is not None and child.stdout.readline()
        yield child.pid
    finally:
        child.communicate()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 4096)
    return path


def inode(path: Path) -> Inode:
    return inode_of(path.stat())


def users_of(inodes: Iterable[Inode]) -> tuple[User, ...]:
    return OpenFiles.read().users(set(inodes))


def ways(users: tuple[User, ...]) -> list[tuple[int, str]]:
    return [(user.pid, user.how) for user in users]


def test_maps_are_read_by_device_and_inode() -> None:
    assert parse_maps(MAPS) == {(os.makedev(8, 2), 173521), (os.makedev(0, 0x1B), 15)}


def test_nobody_uses_a_file_of_our_own(file: Path) -> None:
    with file.open("rb"):
        assert users_of([inode(file)]) == ()


def test_an_open_file_is_found_by_every_name(file: Path) -> None:
    (file.parent / "second").hardlink_to(file)
    with process("import sys; f = open(sys.argv[1], 'rb')", file.parent / "second") as pid:
        [user] = users_of([inode(file)])
        assert (user.pid, user.how, user.uid) == (pid, "open", os.geteuid())
        assert user.command.startswith("python")


def test_a_mapping_counts_after_the_descriptor_is_closed(file: Path) -> None:
    with process(MAPPING, file) as pid:
        assert ways(users_of([inode(file)])) == [(pid, "mapped")]


@pytest.mark.parametrize(("code", "how"), [("f = open(sys.argv[1], 'rb')", "open"), (MAPPING, "mapped")])
def test_threads_that_outlive_their_leader_count(file: Path, code: str, how: str) -> None:
    """The kernel shows root an empty list of descriptors for the leader, others none, and no memory."""
    ending = (
        f"{code}\nimport ctypes, sys, threading, time\n"
        "threading.Thread(target=time.sleep, args=(60,)).start()\n"
        "print('x', flush=True); ctypes.CDLL(None).pthread_exit(None)"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", "import sys\n" + ending, file],
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
    )
    try:
        assert child.stdout is not None and child.stdout.readline()
        until = time.monotonic() + 10
        while (stat := proc_stat(child.pid)) and stat.state != "Z" and time.monotonic() < until:
            time.sleep(0.01)
        assert stat is not None and stat.state == "Z"
        assert ways(users_of([inode(file)])) == [(child.pid, how)]
    finally:
        child.kill()
        child.communicate()


def test_a_mapping_of_btrfs_is_found_by_number(file: Path) -> None:
    with process(MAPPING, file) as pid:
        seen = OpenFiles.read()
    device, number = inode(file)
    elsewhere = (os.makedev(0, 4000), number)
    assert (pid, "mapped") in ways(seen.users([elsewhere]))
    assert seen.holds(elsewhere) and seen.holds((device, number))


def test_a_working_directory_holds_a_tree(tmp_path: Path) -> None:
    (tmp_path / "tree" / "inside").mkdir(parents=True)
    with process("import sys", cwd=tmp_path / "tree" / "inside") as pid:
        assert ways(users_of(map(inode, (tmp_path / "tree").rglob("*")))) == [(pid, "cwd")]
        assert users_of([inode(tmp_path)]) == ()


def test_one_pass_answers_for_many_trees(tmp_path: Path) -> None:
    paths = [tmp_path / str(number) for number in range(3)]
    for path in paths:
        path.write_bytes(b"x")
    with process("import sys; f = [open(p, 'rb') for p in sys.argv[1:3]]", *paths[:2]) as pid:
        seen = OpenFiles.read()
    assert [ways(seen.users([inode(path)])) for path in paths] == [[(pid, "open")], [(pid, "open")], []]
    assert ways(seen.users([inode(path) for path in paths])) == [(pid, "open")]
    # The process has ended since; who it was cannot be told any more.
    assert seen.users([inode(paths[0])])[0].uid is None


def test_processes_that_may_not_be_looked_into_are_named(file: Path) -> None:
    if os.geteuid() != 0:
        assert OpenFiles.read().unreadable
        return
    with process("import sys; f = open(sys.argv[1], 'rb')", file) as pid:
        os.seteuid(65534)
        try:
            seen = OpenFiles.read()
        finally:
            os.seteuid(0)
    assert pid in seen.unreadable and not seen.holds(inode(file))


# A FUSE mount nobody serves: by a server that has died, or as another user's, who lets nobody else in.
BROKEN = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
assert libc.unshare(0x20000) == 0 and libc.mount(b"none", b"/", None, 0x44000, None) == 0
server = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={server},rootmode=40000,user_id={sys.argv[1]},group_id=0"
assert libc.mount(b"test", sys.argv[2].encode(), b"fuse", 0, options.encode()) == 0
mounted = os.open(sys.argv[2], os.O_PATH)
if sys.argv[1] == "0":
    os.close(server)
try:
    os.stat(f"/proc/self/fd/{mounted}")
except OSError as exc:
    assert exc.errno == int(sys.argv[3]), exc
else:
    raise AssertionError
file = open(sys.argv[4], "rb")"""


@pytest.mark.hardware
@pytest.mark.needs_root
@pytest.mark.parametrize(("owner", "number"), [(0, errno.ENOTCONN), (65534, errno.EACCES)])
def test_a_mount_that_answers_nobody_hides_no_process(
    file: Path, tmp_path: Path, owner: int, number: int
) -> None:
    if reason := private_mounts.why_not():
        pytest.skip(reason)
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("no FUSE file system can be mounted here")
    (tmp_path / "point").mkdir()
    with process(BROKEN, owner, tmp_path / "point", number, file) as pid:
        seen = OpenFiles.read()
    assert ways(seen.users([inode(file)])) == [(pid, "open")]
    assert pid not in seen.unreadable
