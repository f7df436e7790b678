"""Who else holds a lock, where the kernel's table shows it and where it does not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from holders import locked

from hwctl.fs.deadline import Deadline
from hwctl.fs.lock_holders import held_by_other
from hwctl.fs.lock_table import UNSEEN, Mode
from hwctl.fs.locks import acquire, acquire_dir
from hwctl.fs.paths import opened_dir

CONTAINER = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
"""Its /proc/locks leaves out every holder from outside."""

NO_TABLE = ["unshare", "--mount", "sh", "-c", 'mount -t proc -o subset=pid proc /proc && exec "$@"', "sh"]
"""Its /proc has no locks at all, as gVisor's and that of a service with ProcSubset=pid."""

ASKING = """
import os, sys
from hwctl.fs.lock_holders import held_by_other
fd = os.open(sys.argv[1], os.O_RDONLY)
print(held_by_other(sys.argv[2], fd), end="")
"""

HIDING = ["unshare", "--mount", "sh", "-c", 'mount -t proc -o hidepid=noaccess proc /proc && exec "$@"', "sh"]
"""Its /proc shows that other users' processes are there, and nothing else about them (hidepid=1)."""

AS_NOBODY = """
import os, sys
from hwctl.errors import Busy
from hwctl.fs.deadline import Deadline
from hwctl.fs.liveness import Process, boot_id, judge, pid_namespace
from hwctl.fs.lock_holders import held_by_other
from hwctl.fs.lock_table import Mode
from hwctl.fs.locks import acquire, acquire_dir
from hwctl.stores.ktint8.producer import Producer, life_of
recorded = Process(int(sys.argv[2]), 1, boot_id(), pid_namespace())
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
folder = os.open(sys.argv[1], os.O_RDONLY)
print(held_by_other("a.lock", folder))
for take in (lambda: acquire("a.lock", Mode.EXCLUSIVE, Deadline.now(), dir_fd=folder),
             lambda: acquire_dir(sys.argv[1], Mode.EXCLUSIVE, Deadline.now())):
    try:
        take()
    except Busy as exc:
        print(exc.message, exc.details["holders"][0]["uid"])
print(*judge(recorded))
print(*life_of(Producer(recorded.pid, 0)))
"""

TAKING = """
import sys
from pathlib import Path
from hwctl.errors import Busy
from hwctl.fs.deadline import Deadline
from hwctl.fs.lock_table import Mode
from hwctl.fs.locks import acquire
try:
    acquire(Path(sys.argv[1]) / sys.argv[2], Mode.EXCLUSIVE, Deadline.now())
except Busy as exc:
    print(exc.message, exc.details["holders"], end="")
"""


def inside(words: list[str], code: str, *arguments: object) -> str:
    if shutil.which("unshare") is None or subprocess.run([*words, "true"], capture_output=True).returncode:
        pytest.skip("no namespace can be made here")
    done = subprocess.run(
        [*words, sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    path = tmp_path / "a.lock"
    path.touch(0o600)
    return path


def test_a_free_lock_and_one_of_our_own(lock: Path) -> None:
    assert held_by_other(lock) is None
    with acquire(lock, Mode.EXCLUSIVE, Deadline.now()):  # type: ignore[union-attr]
        assert held_by_other(lock) is None
    with opened_dir(lock.parent) as fd:
        assert held_by_other(lock.name, fd) is None
        with acquire_dir(fd, Mode.EXCLUSIVE, Deadline.now()):
            assert held_by_other(".", fd) is None


@pytest.mark.parametrize("name", ["a.lock", "."])
@pytest.mark.parametrize("mode", ["shared", "exclusive"])
def test_another_process_is_named(lock: Path, name: str, mode: str) -> None:
    with opened_dir(lock.parent) as fd, locked(lock.parent / name, mode) as pid:
        who = held_by_other(name, fd)
        assert who is not None and who.startswith(f"pid {pid} (uid {os.geteuid()}, ")


@pytest.mark.parametrize("name", ["a.lock", "."])
@pytest.mark.parametrize("place", [CONTAINER, NO_TABLE])
def test_a_writer_that_no_table_shows_is_noticed(lock: Path, name: str, place: list[str]) -> None:
    assert inside(place, ASKING, lock.parent, name) == "None"
    with locked(lock.parent / name, "exclusive"):
        assert inside(place, ASKING, lock.parent, name) == UNSEEN


@pytest.mark.parametrize("place", [CONTAINER, NO_TABLE])
def test_busy_stays_busy_where_no_holder_can_be_named(lock: Path, place: list[str]) -> None:
    with locked(lock):
        assert inside(place, TAKING, lock.parent, lock.name) == f"{lock}: locked (held by {UNSEEN}) []"


def test_a_holder_that_proc_hides_is_named_by_its_pid(shm: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    shm.chmod(0o755)
    lock = shm / "a.lock"
    lock.touch(0o644)
    with locked(shm), locked(lock) as pid, locked(shm) as other:
        lines = inside(HIDING, AS_NOBODY, shm, pid).splitlines()
    who = "pid {} (uid 0, nothing more is shown of it)"
    assert lines[0] == who.format(pid)
    assert lines[1] == f"{lock}: locked (held by {who.format(pid)}) 0"
    assert lines[2].startswith(f"{shm}: locked (held by pid ") and who.format(other) in lines[2]
    assert lines[3:] == [f"Life.UNKNOWN pid {pid} exists, but /proc hides it from this user"] * 2


def test_what_is_no_lock_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        held_by_other(tmp_path / "absent")
    (tmp_path / "folder").mkdir()
    code = """
import sys
from hwctl.errors import Refused
from hwctl.fs.lock_holders import held_by_other
try:
    held_by_other(sys.argv[1])
except Refused as exc:
    print("refused", end="")
"""
    assert inside(CONTAINER, code, tmp_path / "folder") == "refused"
