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
