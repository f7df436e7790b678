"""Who holds which flock, read from /proc/locks without taking any.

Owns parsing the kernel's table and describing a holder. Nothing is ever decided by a holder's pid: the lock
itself is the evidence, the pid is for people.
"""

from __future__ import annotations

import enum
import fcntl
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from hwctl.fs.liveness import UNSEEN, Sighting, in_initial_pid_namespace, sighting
from hwctl.fs.mounts import plain_devices
from hwctl.fs.walk import Inode

_READINGS = 8
"""How often the kernel's table is read before what changes all the time is taken as it is."""


class Mode(enum.Enum):
    """How a lock is held; the value is what flock(2) wants."""

    SHARED = fcntl.LOCK_SH
    EXCLUSIVE = fcntl.LOCK_EX


@dataclass(frozen=True, slots=True)
class Holder:
    """One holder of a lock, as far as it can be seen from here.

    ``pid`` is the process that took the lock; when it has ended, a child that inherited the descriptor keeps
    the lock, and uid, command and age are None; of one that /proc hides the uid is known. ``age_seconds`` is
    how long the process has been running, which bounds how long it has held the lock; the kernel keeps no
    more. ``pid_ns`` is the inode of its pid namespace where that differs from the caller's.
    """

    pid: int | None
    mode: Mode
    uid: int | None
    command: str | None
    age_seconds: float | None
    pid_ns: int | None

    def describe(self) -> str:
        """The holder as a clause of a sentence."""
        if self.pid is None:
            return UNSEEN
        if self.command is None and self.uid is None:
            return f"a child of pid {self.pid}, which has ended"
        return Sighting(self.pid, self.uid, self.command, self.age_seconds, self.pid_ns).describe()

    def as_dict(self) -> dict[str, object]:
        """JSON-ready, for the details of an error."""
        return {
            "pid": self.pid,
            "mode": self.mode.name.lower(),
            "uid": self.uid,
            "command": self.command,
            "age_seconds": None if self.age_seconds is None else round(self.age_seconds, 1),
            "pid_ns": self.pid_ns,
        }


@dataclass(frozen=True, slots=True)
class Entry:
    """One granted flock of /proc/locks."""

    inode: Inode
    mode: Mode
    pid: int


def parse_locks(raw: bytes) -> tuple[Entry, ...]:
    """The granted flocks in the bytes of /proc/locks.

    POSIX record locks and leases do not meet flocks, and a line with ``->`` is somebody who waits.
    """
    found: list[Entry] = []
    for line in raw.splitlines():
        # 2: FLOCK  ADVISORY  WRITE 8712 fe:00:15089666 0 EOF
        fields = line.split()
        if len(fields) < 6 or fields[1] != b"FLOCK":
            continue
        major, minor, number = fields[5].split(b":")
        inode = (os.makedev(int(major, 16), int(minor, 16)), int(number))
        mode = Mode.EXCLUSIVE if fields[3] == b"WRITE" else Mode.SHARED
        found.append(Entry(inode, mode, int(fields[4])))
    return tuple(found)


class LockTable:
    """One reading of /proc/locks that answers for any number of files.

    Only a ``complete`` one shows every holder: it was read where every process has a pid.
    """

    def __init__(self, entries: Iterable[Entry], plain: frozenset[int], *, complete: bool = True) -> None:
        self.complete = complete
        self._entries: dict[Inode, list[Entry]] = {}
        self._elsewhere: dict[int, list[Entry]] = {}
        self._plain = plain
        for entry in entries:
            self._entries.setdefault(entry.inode, []).append(entry)
            if entry.inode[0] not in plain:
                self._elsewhere.setdefault(entry.inode[1], []).append(entry)

    @classmethod
    def read(cls) -> LockTable:
        """Nobody is seen where the kernel has no table to show: in gVisor, or in a /proc of pids alone."""
        try:
            raw = _steady()
        except OSError:
            return cls((), frozenset(), complete=False)
        return cls(parse_locks(raw), plain_devices(), complete=in_initial_pid_namespace())

    def entries(self, inode: Inode) -> tuple[Entry, ...]:
        """The granted locks of a file by its stat's (device, inode), without looking at the holders.

        On btrfs and overlay the kernel lists a lock under another device than the file's stat has: there
        the inode number alone has to do, which may name a holder too many but never misses one.
        """
        if inode[0] in self._plain:
            return tuple(self._entries.get(inode, ()))
        return tuple(self._elsewhere.get(inode[1], ()))

    def holders(self, inode: Inode) -> tuple[Holder, ...]:
        """The holders of a file's locks, each with what /proc tells about it now."""
        return tuple(holder(entry.pid, entry.mode) for entry in self.entries(inode))


def _steady() -> bytes:
    """What /proc/locks says twice running, or at last.

    The kernel hands the list out in pieces and goes on by position: a lock that is taken or dropped between
    two pieces makes it repeat an entry or leave one out.
    """
    locks = Path("/proc/locks")
    last = locks.read_bytes()
    for _ in range(_READINGS):
        now = locks.read_bytes()
        if now == last:
            break
        last = now
    return last


def holder(pid: int, mode: Mode) -> Holder:
    """What /proc tells now about the process that took a lock; ``pid`` is 0 for one that is not visible."""
    if pid <= 0:
        return Holder(None, mode, None, None, None, None)
    seen = sighting(pid)
    if seen is None:
        return Holder(pid, mode, None, None, None, None)
    return Holder(pid, mode, seen.uid, seen.command, seen.age_seconds, seen.pid_ns)
