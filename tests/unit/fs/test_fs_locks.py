"""Locks: bounded waits, holders by name, and only the creator unlocks."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import nth_call
import pytest
from holders import passed_around

from hwctl.errors import Busy, HwctlError, IoFailed, Refused
from hwctl.fs.deadline import Deadline
from hwctl.fs.lock_table import LockTable, Mode
from hwctl.fs.locks import acquire, acquire_dir, adopt, is_ours
from hwctl.fs.walk import inode_of

NOW = Deadline.now()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def taken(path: Path, *, exclusive: bool = True) -> bool:
    """Whether another open file description is kept from locking this file."""
    fd = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(fd, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


@contextmanager
def flocked(path: Path, how: int) -> Iterator[None]:
    fd = os.open(path, os.O_RDONLY)
    fcntl.flock(fd, how)
    try:
        yield
    finally:
        os.close(fd)


@contextmanager
def rival(path: Path, how: str = "LOCK_EX") -> Iterator[subprocess.Popen[str]]:
    code = (
        f"import fcntl, os, sys; fd = os.open(sys.argv[1], os.O_RDONLY); fcntl.flock(fd, fcntl.{how}); "
        "print('held', flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", code, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    path = tmp_path / "a.lock"
    path.touch(0o600)
    return path


def test_deadlines() -> None:
    assert Deadline.never().remaining() is None and not Deadline.never().expired()
    assert Deadline.now().expired() and Deadline.now().remaining() == 0
    later = Deadline.after(100)
    assert not later.expired() and 99 < (later.remaining() or 0) <= 100
    assert later.at_least(5) is later and Deadline.never().at_least(5).remaining() is None
    assert 4 < (Deadline.now().at_least(5).remaining() or 0) <= 5


def test_an_absent_lock_file_is_only_made_on_request(tmp_path: Path) -> None:
    assert acquire(tmp_path / "a.lock", Mode.SHARED, NOW) is None
    assert os.listdir(tmp_path) == []
    held = acquire(tmp_path / "a.lock", Mode.SHARED, NOW, create=True, file_mode=0o640, enforce_mode=True)
    assert held is not None
    assert (tmp_path / "a.lock").stat().st_mode & 0o777 == 0o640
    held.release()


def test_an_existing_lock_is_opened_for_reading(lock: Path) -> None:
    lock.chmod(0o444)
    with flocked(lock, fcntl.LOCK_SH):
        held = acquire(lock, Mode.SHARED, NOW)
    assert held is not None
    assert fcntl.fcntl(held.fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
    assert held.inode == (lock.stat().st_dev, lock.stat().st_ino)
    assert held.created_pid == os.getpid() and held.path == os.fspath(lock)
    held.release()
    held.release()
    assert not taken(lock)


def test_modes_exclude_as_they_should(lock: Path) -> None:
    with acquire(lock, Mode.SHARED, NOW) as held:  # type: ignore[union-attr]
        assert held.mode is Mode.SHARED
        assert taken(lock) and not taken(lock, exclusive=False)
    with acquire(lock, Mode.EXCLUSIVE, NOW):  # type: ignore[union-attr]
        assert taken(lock, exclusive=False)
    assert not taken(lock)


def test_busy_names_the_holder(lock: Path) -> None:
    before = descriptors()
    with rival(lock) as holder:
        begun = time.monotonic()
        with pytest.raises(Busy) as caught:
            acquire(lock, Mode.SHARED, Deadline.after(0.2))
        assert 0.2 <= time.monotonic() - begun < 2
        [told] = caught.value.details["holders"]  # type: ignore[misc, attr-defined]
        assert told["pid"] == holder.pid and told["mode"] == "exclusive" and told["uid"] == os.geteuid()
        assert told["pid_ns"] is None and 0 <= told["age_seconds"] < 60
        assert f"pid {holder.pid} (uid {os.geteuid()}, " in caught.value.message
        assert caught.value.retryable
        # The rival's two pipes, and the wait that is still queued: there is no calling it back.
        assert descriptors() == before + 3


def test_a_wait_ends_when_the_holder_lets_go(lock: Path) -> None:
    fd = os.open(lock, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    timer = threading.Timer(0.15, os.close, (fd,))
    timer.start()
    held = acquire(lock, Mode.EXCLUSIVE, Deadline.never())
    assert held is not None
    held.release()
    timer.join()


def test_a_lock_that_others_pass_among_them_is_got_in_turn(lock: Path) -> None:
    """It is never free for longer than the next of them takes to wake up: who polls gets it never."""
    with passed_around(lock):
        for _ in range(5):
            held = acquire(lock, Mode.EXCLUSIVE, Deadline.after(20))
            assert held is not None and taken(lock, exclusive=False)
            held.release()


def test_a_wait_that_was_given_up_takes_the_lock_from_nobody(lock: Path) -> None:
    before, threads = descriptors(), threading.active_count()
    with flocked(lock, fcntl.LOCK_EX):
        for _ in range(3):
            with pytest.raises(Busy):
                acquire(lock, Mode.EXCLUSIVE, Deadline.after(0.1))
        assert threading.active_count() <= threads + 1  # there is no calling back the first
        assert descriptors() == before + 2
    deadline = Deadline.after(10)
    while threading.active_count() > threads and not deadline.expired():
        time.sleep(0.01)
    assert threading.active_count() == threads and descriptors() == before and not taken(lock)
    held = acquire(lock, Mode.EXCLUSIVE, NOW)
    assert held is not None
    held.release()


def test_an_ageing_tools_short_lock_is_not_busy(lock: Path) -> None:
    # EVI-08: systemd-tmpfiles locks for a moment; an expired deadline still looks twice.
    fd = os.open(lock, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    timer = threading.Timer(0.005, os.close, (fd,))
    timer.start()
    held = acquire(lock, Mode.EXCLUSIVE, NOW)
    timer.join()
    assert held is not None
    held.release()


def test_a_removed_lock_file_is_not_taken_for_a_lock(lock: Path) -> None:
    # EVI-08: removed and made anew while we wait; the lock must be on what stands there now.
    fd = os.open(lock, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)

    def replace() -> None:
        lock.unlink()
        lock.touch()
        os.close(fd)

    timer = threading.Timer(0.1, replace)
    timer.start()
    held = acquire(lock, Mode.EXCLUSIVE, Deadline.after(10))
    timer.join()
    assert held is not None and held.inode[1] == lock.stat().st_ino
    held.release()


def test_a_lock_file_that_is_gone_after_the_wait_is_absent(lock: Path) -> None:
    fd = os.open(lock, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    timer = threading.Timer(0.1, lambda: (lock.unlink(), os.close(fd)))
    timer.start()
    before = descriptors()
    assert acquire(lock, Mode.EXCLUSIVE, Deadline.after(10)) is None
    timer.join()
    assert descriptors() == before - 1


@pytest.mark.parametrize("kind", ["fifo", "directory", "symbolic link"])
def test_a_lock_must_be_a_regular_file(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a.lock"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        (tmp_path / "target").touch()
        path.symlink_to("target")
    before = descriptors()
    for create in (False, True):
        with pytest.raises(Refused, match=f"the lock file is a {kind}"):
            acquire(path, Mode.SHARED, NOW, create=create)
    assert descriptors() == before


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_refused(
    lock: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    # LEA-02: never a fall back to lock files by existence.
    def flock(_fd: int, _how: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", flock)
    before = descriptors()
    with pytest.raises(Refused, match="does not lock files") as caught:
        acquire(lock, Mode.SHARED, Deadline.after(30))
    assert caught.value.details["fs_type"]
    assert descriptors() == before and os.listdir(lock.parent) == ["a.lock"]


def test_a_failed_stat_leaks_no_descriptor(lock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fstat(_fd: int) -> os.stat_result:
        raise OSError(errno.EIO, "bad disk")

    before = descriptors()
    with monkeypatch.context() as patched, pytest.raises((OSError, IoFailed)):
        patched.setattr(os, "fstat", fstat)
        acquire(lock, Mode.SHARED, NOW)
    assert descriptors() == before and not taken(lock)


def test_another_users_lock_says_whose_it_is(lock: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs uid 0 to become another user")
    lock.parent.chmod(0o755)
    folder = os.open(lock.parent, os.O_RDONLY | os.O_DIRECTORY)
    os.seteuid(65534)
    try:
        with pytest.raises(IoFailed, match="belongs to uid 0 and uid 65534 may not open it"):
            acquire(lock.name, Mode.SHARED, NOW, dir_fd=folder)
    finally:
        os.seteuid(0)
        os.close(folder)


def test_a_forked_child_does_not_drop_the_parents_lock(lock: Path) -> None:
    # LEA-01: the open file description is shared, an unlock in the child would be the parent's.
    held = acquire(lock, Mode.SHARED, NOW)
    assert held is not None
    pid = os.fork()
    if pid == 0:
        held.release()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert taken(lock)
    held.release()
    assert not taken(lock)


def test_locks_close_on_exec_unless_told_otherwise(lock: Path) -> None:
    held = acquire(lock, Mode.EXCLUSIVE, NOW)
    assert held is not None and not os.get_inheritable(held.fd)
    held.inheritable()
    code = (
        "import sys; from hwctl.fs.locks import adopt; held = adopt(int(sys.argv[1])); "
        "print(held.mode.name, held.created_pid, held.path); held.release()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(held.fd)],
        close_fds=False,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.stdout.split() == ["EXCLUSIVE", str(os.getpid()), os.fspath(lock)]
    assert taken(lock), "a borrower's release must not unlock"
    held.release()
    assert not taken(lock)


def test_adopting_in_the_same_process_owns_the_lock(lock: Path) -> None:
    held = acquire(lock, Mode.SHARED, NOW)
    assert held is not None
    held.inheritable()
    adopted = adopt(held.fd)
    assert (adopted.mode, adopted.inode, adopted.created_pid) == (Mode.SHARED, held.inode, os.getpid())
    assert not os.get_inheritable(held.fd)
    adopted.release()
    assert not taken(lock)


def test_a_descriptor_without_a_lock_is_not_adopted(lock: Path) -> None:
    fd = os.open(lock, os.O_RDONLY)
    with flocked(lock, fcntl.LOCK_SH), pytest.raises(Refused, match="holds no lock"):
        adopt(fd)
    os.close(fd)
    with pytest.raises(Refused, match="not open"):
        adopt(fd)


def test_conversion_up_and_down(lock: Path) -> None:
    held = acquire(lock, Mode.SHARED, NOW)
    assert held is not None
    held.convert(Mode.EXCLUSIVE, NOW)
    assert held.mode is Mode.EXCLUSIVE and taken(lock, exclusive=False)
    held.convert(Mode.SHARED, NOW)
    assert held.mode is Mode.SHARED and not taken(lock, exclusive=False) and taken(lock)
    held.release()


def test_a_failed_conversion_keeps_the_old_lock(lock: Path) -> None:
    held = acquire(lock, Mode.SHARED, NOW)
    assert held is not None
    with flocked(lock, fcntl.LOCK_SH), pytest.raises(Busy) as caught:
        held.convert(Mode.EXCLUSIVE, Deadline.after(0.1))
    assert "lost" not in caught.value.details
    assert held.mode is Mode.SHARED and taken(lock)
    held.release()


def test_a_lock_lost_while_converting_is_said_so(lock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The kernel drops the old lock first; here another process takes the file at that very moment.
    held = acquire(lock, Mode.SHARED, NOW)
    assert held is not None
    real, rivals = fcntl.flock, [os.open(lock, os.O_RDONLY)]
    real(rivals[0], fcntl.LOCK_SH)

    def flock(fd: int, how: int) -> None:
        try:
            real(fd, how)
        except BlockingIOError:
            real(rivals[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
            raise

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(Busy, match="lost") as caught:
        held.convert(Mode.EXCLUSIVE, Deadline.after(5))
    assert caught.value.details["lost"] is True
    held.release()
    os.close(rivals[0])


def test_a_directory_lock_follows_the_rename(tmp_path: Path) -> None:
    (tmp_path / "staging").mkdir()
    fd = os.open(tmp_path / "staging", os.O_RDONLY | os.O_DIRECTORY)
    held = acquire_dir(fd, Mode.EXCLUSIVE, NOW)
    os.close(fd)
    assert held.path == os.fspath(tmp_path / "staging")
    (tmp_path / "staging").rename(tmp_path / "ready")
    assert taken(tmp_path / "ready")
    with pytest.raises(Busy):
        acquire_dir(tmp_path / "ready", Mode.SHARED, NOW)
    held.release()
    acquire_dir(tmp_path / "ready", Mode.SHARED, NOW).release()


def test_a_directory_lock_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    with pytest.raises(IoFailed):
        acquire_dir(tmp_path / "link", Mode.SHARED, NOW)


def test_holders_are_read_without_taking_a_lock(lock: Path) -> None:
    st = lock.stat()
    assert LockTable.read().holders((st.st_dev, st.st_ino)) == ()
    with rival(lock, "LOCK_SH") as one, rival(lock, "LOCK_SH") as two:
        found = LockTable.read().holders((st.st_dev, st.st_ino))
        assert {holder.pid for holder in found} == {one.pid, two.pid}
        assert {holder.mode for holder in found} == {Mode.SHARED}
    assert LockTable.read().holders((st.st_dev, st.st_ino)) == ()


def test_a_folder_whose_holders_cannot_be_looked_up_is_no_bare_error(tmp_path: Path) -> None:
    calls, before = 0, descriptors()

    def take() -> None:
        with pytest.raises(HwctlError):
            acquire_dir(tmp_path, Mode.EXCLUSIVE, NOW)

    with rival(tmp_path):
        while nth_call.failing_at(calls + 1, errno.EACCES, take) is not None:
            calls += 1
    assert calls > 1 and descriptors() <= before


def test_a_lock_that_could_not_be_taken_is_nobodys(lock: Path) -> None:
    """``is_ours`` answers for the kernel's table outside of the initial pid namespace."""
    inode, n, met = inode_of(lock.stat()), 0, ""

    def take() -> None:
        with suppress(HwctlError):
            held = acquire(lock, Mode.EXCLUSIVE, NOW)
            assert held is not None
            held.release()

    while met is not None:
        n += 1
        met = nth_call.failing_at(n, errno.EIO, take)
        assert not is_ours(inode) and not taken(lock)
    assert n > 4
