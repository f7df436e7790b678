"""BSD flock with bounded waits, and locks as values that know who may let them go.

Owns taking, converting, inheriting and releasing; the waiting itself is in ``flock``. Which file stands for
what, and in which order locks are taken, is a family's business. POSIX record locks (fcntl) do not meet
flocks and are never used.
"""

from __future__ import annotations

import fcntl
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from hwctl.errors import Busy, Refused, from_os_error
from hwctl.fs.deadline import Deadline
from hwctl.fs.flock import lock, pause, try_lock
from hwctl.fs.liveness import UNSEEN
from hwctl.fs.lock_file import open_lock_file, shown_path, still_named
from hwctl.fs.lock_table import LockTable, Mode, parse_locks
from hwctl.fs.paths import DIRECTORY_FLAGS
from hwctl.fs.walk import Inode, inode_of


@dataclass(slots=True)
class Held:
    """A lock that is held through ``fd``. ``inode`` is (device, inode) of the locked file.

    The lock belongs to the open file description, which a fork shares: an unlock in a child would release
    the parent's lock. So only ``created_pid`` unlocks, everybody else just closes (LEA-01).
    """

    fd: int
    path: str
    mode: Mode
    created_pid: int
    inode: Inode

    def __post_init__(self) -> None:
        _HELD[self.fd] = self

    def release(self) -> None:
        """Let go; a second call does nothing."""
        fd, self.fd = self.fd, -1
        if fd < 0:
            return
        _HELD.pop(fd, None)
        try:
            if os.getpid() == self.created_pid:
                fcntl.flock(fd, fcntl.LOCK_UN)
        finally:
            os.close(fd)

    def convert(self, mode: Mode, deadline: Deadline) -> None:
        """Turn shared into exclusive or back, or raise Busy with the old mode still held.

        The kernel drops the old lock before it tries the new one, so after each miss the old mode is taken
        back. Should somebody else have come in between, the lock is lost: Busy says so in
        ``details["lost"]``, and what was read under it has to be looked at again.
        """
        if mode is self.mode:
            return
        last = False
        while not try_lock(self.fd, mode, self.path):
            if not try_lock(self.fd, self.mode, self.path):
                raise _busy(
                    self.fd, self.path, f"{self.path}: the lock was lost while converting it", lost=True
                )
            if last:
                raise _busy(self.fd, self.path)
            last = deadline.expired()
            pause(deadline)
        self.mode = mode

    def inheritable(self) -> None:
        """Let a program started by exec keep the lock; until then every lock closes on exec (REC-09)."""
        os.set_inheritable(self.fd, True)

    def __enter__(self) -> Held:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.release()


_HELD: dict[int, Held] = {}
"""Every lock of this process by its descriptor: what only a try would tell of it, it would tell of itself."""


def is_ours(inode: Inode) -> bool:
    """Whether this process has a file locked exclusively, so that nobody else has it locked at all."""
    return any(held.inode == inode and held.mode is Mode.EXCLUSIVE for held in list(_HELD.values()))


def acquire(
    name: str | Path,
    mode: Mode,
    deadline: Deadline,
    *,
    dir_fd: int | None = None,
    create: bool = False,
    file_mode: int = 0o600,
    enforce_mode: bool = False,
) -> Held | None:
    """Take the lock of a lock file, waiting until ``deadline``; one try is always made.

    Returns None when the file is absent and not to be created. An existing file is opened for reading only,
    so that another user's lock can be taken shared. ``enforce_mode`` sets ``file_mode`` on a file that has
    another.

    Raises Busy with the holders, Refused when the name is no regular file or the file system cannot lock
    (LEA-02), IoFailed or NoRoom when the file cannot be opened.
    """
    shown = shown_path(name, dir_fd)
    while True:
        fd = open_lock_file(name, dir_fd, shown, create=create, file_mode=file_mode)
        if fd is None:
            return None
        held = None
        try:
            if enforce_mode and stat.S_IMODE(os.fstat(fd).st_mode) != file_mode:
                os.fchmod(fd, file_mode)
            held = _wait(fd, mode, deadline, shown)
            if still_named(fd, name, dir_fd):
                return held
        except BaseException as exc:
            if held is None:
                os.close(fd)
            else:
                held.release()
            if isinstance(exc, OSError):
                raise from_os_error(exc, f"{shown}: cannot take the lock", shown) from exc
            raise
        # An ageing tool or an operator removed the file while we waited (EVI-08): a lock on a nameless
        # file excludes nobody, so begin again with what stands there now.
        held.release()


def acquire_dir(dir_fd_or_path: int | str | Path, mode: Mode, deadline: Deadline) -> Held:
    """Take the lock of a directory itself; it follows the directory through a rename.

    Given a descriptor, another one is opened for the lock, so that the caller's may be closed at will.
    """
    if isinstance(dir_fd_or_path, int):
        shown = shown_path(".", dir_fd_or_path)
        name, dir_fd = ".", dir_fd_or_path
    else:
        shown = os.fspath(dir_fd_or_path)
        name, dir_fd = shown, None
    try:
        fd = os.open(name, DIRECTORY_FLAGS, dir_fd=dir_fd)
    except OSError as exc:
        raise from_os_error(exc, f"{shown}: cannot open the directory to lock it", shown) from exc
    try:
        return _wait(fd, mode, deadline, shown)
    except OSError as exc:
        os.close(fd)
        raise from_os_error(exc, f"{shown}: cannot take the lock", shown) from exc
    except BaseException:
        os.close(fd)
        raise


def adopt(fd: int) -> Held:
    """Take over a lock that came with an inherited descriptor (``HWCTL_LEASE_FDS``).

    The kernel is asked what is locked through it. A program started by exec in the process that took the
    lock is its owner; a child of that program only borrows it, and its ``release`` unlocks nothing. Raises
    Refused when the descriptor is closed or carries no lock.
    """
    try:
        st = os.fstat(fd)
        info = Path(f"/proc/self/fdinfo/{fd}").read_bytes()
    except OSError as exc:
        raise Refused(f"inherited lease: descriptor {fd} is not open here") from exc
    granted = b"\n".join(line[len(b"lock:") :] for line in info.splitlines() if line.startswith(b"lock:"))
    entries = parse_locks(granted)
    if not entries:
        raise Refused(f"inherited lease: descriptor {fd} holds no lock")
    os.set_inheritable(fd, False)
    return Held(fd, shown_path(".", fd), entries[0].mode, entries[0].pid, inode_of(st))


def _wait(fd: int, mode: Mode, deadline: Deadline, shown: str) -> Held:
    if not lock(fd, mode, deadline, shown):
        raise _busy(fd, shown)
    return Held(fd, shown, mode, os.getpid(), inode_of(os.fstat(fd)))


def _busy(fd: int, shown: str, message: str | None = None, *, lost: bool = False) -> Busy:
    found = LockTable.read().holders(inode_of(os.fstat(fd)))
    mine = os.getpid()
    others = [holder for holder in found if holder.pid != mine] or list(found)
    who = ", ".join(holder.describe() for holder in others) or UNSEEN
    details: dict[str, object] = {"holders": [holder.as_dict() for holder in others]}
    if lost:
        details["lost"] = True
    return Busy(f"{message or f'{shown}: locked'} (held by {who})", path=shown, details=details)
