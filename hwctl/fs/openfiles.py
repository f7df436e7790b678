"""Which processes have which files open, mapped, or as their working directory.

One pass over /proc answers for any number of trees. It looks only: nothing is opened, no lock is taken. What
a use means for an artifact is for the stores to say.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Collection, Generator, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from hwctl.fs.liveness import UNSEEN, Sighting, in_initial_pid_namespace, parse_stat, sighting
from hwctl.fs.mounts import plain_devices
from hwctl.fs.openers import opened
from hwctl.fs.walk import Inode

_Use = tuple[int, str]
"""(pid, how)."""

_MAPPED = "mapped"
_CWD = "cwd"

_UNSEEN = 0
"""The pid of a process that is not visible here, as the kernel's tables write it."""

FEW = 32
"""So many files are asked for one by one in less time than a pass over a busy machine's /proc takes."""

_RECENT_SECONDS = 1.0

# A FUSE server that has died, and what is gone from a server of files.
_BROKEN_MOUNT = (errno.ENOTCONN, errno.ESTALE)


@dataclass(frozen=True, slots=True)
class User:
    """One process that uses one of the files asked for; ``how`` is "open", "mapped" or "cwd".

    ``pid`` is None for one that is not visible here; one that has ended since has no uid and no command.
    """

    pid: int | None
    uid: int | None
    command: str
    how: str
    age_seconds: float | None = None
    pid_ns: int | None = None

    def describe(self) -> str:
        """The user and the use as a clause."""
        who = UNSEEN
        if self.pid is not None:
            who = Sighting(self.pid, self.uid, self.command, self.age_seconds, self.pid_ns).describe()
        return f"{who} works in it" if self.how == _CWD else f"{who} has a file of it {self.how}"

    def as_dict(self) -> dict[str, object]:
        """JSON-ready, for the details of an error."""
        return {
            "pid": self.pid,
            "mode": self.how,
            "uid": self.uid,
            "command": self.command or None,
            "age_seconds": None if self.age_seconds is None else round(self.age_seconds, 1),
            "pid_ns": self.pid_ns,
        }


@dataclass(frozen=True, slots=True)
class OpenFiles:
    """What one pass over /proc saw.

    ``unreadable`` are the pids that could not be looked into, or not into all they have open: with any of
    them, "nobody uses it" is not proven. Files held only by the kernel (a loop device, a descriptor in flight
    on a socket) are not seen.
    ``numbers`` are the mapped inode numbers alone and ``plain`` the devices where they are not needed: a
    file of btrfs or overlay is mapped under another device number than its stat has, and there a user too
    many may be named, but none is missed.
    """

    uses: Mapping[Inode, tuple[_Use, ...]]
    unreadable: tuple[int, ...] = ()
    numbers: Mapping[int, tuple[_Use, ...]] = field(default_factory=dict)
    plain: frozenset[int] = frozenset()

    @classmethod
    def read(cls, proc: Path = Path("/proc")) -> OpenFiles:
        """Look at every process but the caller."""
        uses: dict[Inode, dict[_Use, None]] = {}
        numbers: dict[int, dict[_Use, None]] = {}
        unreadable: set[int] = set()
        for pid in sorted(int(name) for name in os.listdir(proc) if name.isdecimal()):
            if pid == os.getpid():
                continue
            try:
                for use in _uses_of(proc / str(pid)):
                    if use is None:
                        unreadable.add(pid)
                        continue
                    inode, how = use
                    uses.setdefault(inode, {})[pid, how] = None
                    if how == _MAPPED:
                        numbers.setdefault(inode[1], {})[pid, how] = None
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended meanwhile
            except OSError:
                unreadable.add(pid)
        return cls(
            {inode: tuple(found) for inode, found in uses.items()},
            tuple(sorted(unreadable)),
            {number: tuple(found) for number, found in numbers.items()},
            plain_devices(),
        )

    def users(self, inodes: Collection[Inode]) -> tuple[User, ...]:
        """The processes that use any of these (device, inode) pairs, one entry per process and way."""
        seen = {use for inode in inodes for use in self._of(inode)}
        return tuple(_user(pid, how) for pid, how in sorted(seen))

    def holds(self, inode: Inode) -> bool:
        """Whether anybody uses this file, so that unlinking it gives nothing back yet (EVI-03)."""
        return bool(self._of(inode))

    def _of(self, inode: Inode) -> tuple[_Use, ...]:
        found = self.uses.get(inode, ())
        if inode[0] not in self.plain:
            found += self.numbers.get(inode[1], ())
        return found


class RecentOpenFiles:
    """One pass over /proc for many entries, made again when it is older than a second: a run over thousands
    of entries cannot afford one for each. What is deleted is looked at anew, by ``forget`` and ``of``."""

    def __init__(self) -> None:
        self._seen: OpenFiles | None = None
        self._at = 0.0

    def __call__(self) -> OpenFiles:
        if self._seen is None or time.monotonic() - self._at > _RECENT_SECONDS:
            # As of its beginning: what a process opens behind it, it does not see.
            self._at = time.monotonic()
            self._seen = OpenFiles.read()
        return self._seen

    def forget(self) -> None:
        """A lock was taken: nothing that was seen before it says who came in between."""
        self._seen = None

    def of(self, dir_fd: int, *names: str, sparing: Collection[str] = ()) -> OpenFiles:
        """What to measure the removal of these files and trees by, as of now.

        A small one is asked for file by file, which takes no pass over /proc, as is every one where /proc
        does not show all. ``sparing`` names files in the root of a tree that others read without a lock:
        they would have to wait for the answer.
        """
        most = FEW if in_initial_pid_namespace() else None
        found: set[Inode] = set()
        for name in names:
            try:
                answer = opened(dir_fd, name, sparing=sparing, most=most)
            except OSError:  # a folder that its owner may not read, or another run is at work
                answer = None
            if answer is None:
                return self()
            found |= answer
        return OpenFiles(dict.fromkeys(found, ((_UNSEEN, "open"),)))


def _user(pid: int, how: str) -> User:
    seen = sighting(pid)
    if seen is None:
        return User(pid or None, None, "", how)
    return User(pid, seen.uid, seen.command or "", how, seen.age_seconds, seen.pid_ns)


def _uses_of(process: Path) -> Iterator[tuple[Inode, str] | None]:
    """What a process uses, and None for each thing of which that cannot be told."""
    if (yield from _held_unless_ended(process)):
        return
    # A leader that has ended shows nothing any more; the threads that outlive it have all it had.
    found = parse_stat((process / "stat").read_bytes())
    if found.state != "Z" or found.ended:
        return
    for thread in os.listdir(process / "task"):
        with suppress(FileNotFoundError, ProcessLookupError):
            yield from _held_unless_ended(process / "task" / thread)


def _held_unless_ended(process: Path) -> Generator[tuple[Inode, str] | None, None, bool]:
    """``_held_through``, and nothing for a zombie: the kernel lets only root see that it holds nothing."""
    try:
        return (yield from _held_through(process))
    except PermissionError:
        if parse_stat((process / "stat").read_bytes()).state not in "ZXx":
            raise
        return False


def _held_through(process: Path) -> Generator[tuple[Inode, str] | None, None, bool]:
    """What one folder of /proc shows, and whether there was any memory in it, which is looked at last."""
    fds = process / "fd"
    with os.scandir(fds) as entries:
        numbers = [entry.name for entry in entries]
    for number in numbers:
        yield from _target(fds / number, "open")
    yield from _target(process / "cwd", _CWD)
    yield from _target(process / "root", _CWD)
    maps = (process / "maps").read_bytes()
    for inode in parse_maps(maps):
        yield inode, _MAPPED
    return bool(maps)


def _target(link: Path, how: str) -> Iterator[tuple[Inode, str] | None]:
    try:
        st = os.stat(link)
    except (FileNotFoundError, ProcessLookupError):
        return  # closed meanwhile, or a kernel thread's missing root
    except OSError as exc:
        if not _lies_elsewhere(link, exc):
            yield None
        return
    if stat.S_ISREG(st.st_mode) or stat.S_ISDIR(st.st_mode):
        yield (st.st_dev, st.st_ino), how


def _lies_elsewhere(link: Path, exc: OSError) -> bool:
    """Whether an error is the file system's own for good, and not /proc's: a broken mount, or one that is
    closed to the caller. It would answer by any name as it does by this one, so nothing on it can be among
    the files that the caller has looked at."""
    if exc.errno in _BROKEN_MOUNT:
        return True
    if not isinstance(exc, PermissionError):
        return False
    try:
        os.readlink(link)
    except OSError:
        return False
    return True


def parse_maps(raw: bytes) -> set[Inode]:
    """The (device, inode) pairs in the bytes of /proc/PID/maps; anonymous memory has none."""
    found: set[Inode] = set()
    for line in raw.splitlines():
        fields = line.split(None, 5)
        if len(fields) < 5 or fields[4] == b"0":
            continue
        major, _, minor = fields[3].partition(b":")
        found.add((os.makedev(int(major, 16), int(minor, 16)), int(fields[4])))
    return found
