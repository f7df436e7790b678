"""Root as another user, in a child: what it may see, what it leaves behind, how its end is told."""

from __future__ import annotations

import fcntl
import os
import signal
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from run_hwctl import open_to_all

from hwctl.core.other_users import as_owner, command_as, eyes_of_root, refusal
from hwctl.errors import IoFailed, Status

NOBODY = 65534

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@needs_root
def test_files_belong_to_the_owner_and_never_to_root(tmp_path: Path) -> None:
    os.chown(tmp_path, NOBODY, NOBODY)
    os.chmod(tmp_path, 0o700)
    open_to_all(tmp_path.parent)

    def work() -> dict[str, object]:
        (tmp_path / "made").write_text("x")
        return {"euid": os.geteuid(), "groups": os.getgroups()}

    assert list(as_owner(NOBODY, NOBODY, lambda: [work()])) == [{"euid": NOBODY, "groups": []}]
    made = (tmp_path / "made").stat()
    assert (made.st_uid, made.st_gid) == (NOBODY, NOBODY)


@needs_root
def test_the_child_acts_without_roots_rights_but_judges_with_them(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("x")
    secret.chmod(0o600)

    def work() -> dict[str, object]:
        def readable() -> bool:
            try:
                return bool(os.listdir(f"/proc/{os.getppid()}/fd"))
            except PermissionError:
                return False

        acting = readable()
        with eyes_of_root():
            judging = (os.geteuid(), secret.read_text(), readable())
        return {"acting": acting, "judging": judging, "after": os.geteuid()}

    (found,) = as_owner(NOBODY, NOBODY, lambda: [work()])
    assert found == {"acting": False, "judging": [0, "x", True], "after": NOBODY}


@needs_root
@pytest.mark.parametrize("code", [0, 1])
def test_a_report_that_was_cut_off_is_told_as_could_not_find_out(code: int) -> None:
    """A child that is killed leaves what it had written of a line."""
    before = pipes()

    def work() -> Iterator[dict[str, object]]:
        yield {"step": 1}
        (writer,) = pipes() - before
        os.write(writer, b'{"step": 2, "res')
        os._exit(code)

    reports = as_owner(NOBODY, NOBODY, work)
    assert next(reports) == {"step": 1}
    with pytest.raises(IoFailed, match=f"ended with {code} before its work was done"):
        next(reports)


def pipes() -> set[int]:
    """The descriptors of this process that are ends of pipes, and may be written to."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            writes = fcntl.fcntl(int(name), fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY
            if writes and stat.S_ISFIFO(os.fstat(int(name)).st_mode):
                found.add(int(name))
        except OSError:
            continue
    return found


@needs_root
def test_a_child_that_dies_is_told_as_could_not_find_out() -> None:
    with pytest.raises(IoFailed, match="ended with -9"):
        list(as_owner(NOBODY, NOBODY, lambda: [{"never": os.kill(os.getpid(), signal.SIGKILL)}]))


@needs_root
def test_an_interrupted_parent_takes_its_child_along() -> None:
    class Stop(BaseException):
        pass

    def stop(*_: object) -> None:
        raise Stop

    def work() -> dict[str, object]:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        # A signal that comes just before a read begins is seen only when that read ends, and this child
        # never ends by itself: the parent has to be waiting already.
        time.sleep(0.5)
        os.kill(os.getppid(), signal.SIGUSR1)
        signal.pause()
        return {}

    children, before = children_of(os.getpid()), signal.signal(signal.SIGUSR1, stop)
    try:
        with pytest.raises(Stop):
            list(as_owner(0, 0, lambda: [work()]))
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert children_of(os.getpid()) == children


def children_of(parent: int) -> set[int]:
    found = set()
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        with suppress(FileNotFoundError, ProcessLookupError):
            fields = Path("/proc", pid, "stat").read_bytes().rpartition(b")")[2].split()
            if int(fields[1]) == parent:
                found.add(int(pid))
    return found


def test_eyes_of_root_change_nothing_outside_such_a_child() -> None:
    before = os.getresuid()
    with eyes_of_root():
        assert os.getresuid() == before


def test_the_refusal_names_owner_caller_and_command() -> None:
    error = refusal(1234, "/s/x y", ["evict", "/s/x y", "-y"])
    assert error.status is Status.REFUSED
    assert "sudo -u '#1234' hwctl evict '/s/x y' -y" in error.message
    assert error.details["owner_uid"] == 1234
    assert command_as(0, ["evict"]) == "sudo -u root hwctl evict"
