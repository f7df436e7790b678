"""Who is alive, and how we know: the facts that may prove a producer dead.

Owns reading /proc about single processes and judging a recorded one. It decides nothing about artifacts:
a store combines these facts with its own rules. Who has files open is in ``openfiles``.
"""

from __future__ import annotations

import enum
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

# include/linux/proc_ns.h: the inode number of the namespace the kernel starts with never changes.
_INITIAL_PID_NAMESPACE = 0xEFFFFFFC

_NS_PER_S = 1_000_000_000


UNSEEN = "a process that is not visible here"


class Life(enum.Enum):
    ALIVE = "alive"
    DEAD = "dead"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ProcStat:
    """What /proc/PID/stat says: state letter, start in clock ticks since boot, number of threads."""

    state: str
    start_ticks: int
    threads: int = 1

    @property
    def ended(self) -> bool:
        """A zombie or worse. A leader that ended before its threads looks like one, but works on."""
        return self.state in "ZXx" and self.threads <= 1


@dataclass(frozen=True, slots=True)
class Process:
    """One process, told apart from every later one of the same pid."""

    pid: int
    start_ticks: int
    boot_id: str
    pid_ns: int

    @classmethod
    def current(cls) -> Process:
        """The calling process. Raises OSError where /proc is not mounted."""
        pid = os.getpid()
        stat = proc_stat(pid)
        namespace = pid_namespace()
        if stat is None or namespace is None:
            raise FileNotFoundError(2, "/proc does not show the calling process", f"/proc/{pid}/stat")
        return cls(pid, stat.start_ticks, boot_id(), namespace)


@dataclass(frozen=True, slots=True)
class Sighting:
    """What /proc tells about a process now, for people.

    ``age_seconds`` is how long it has been running; ``pid_ns`` the inode of its pid namespace where that
    differs from the caller's.
    """

    pid: int
    uid: int | None
    command: str | None
    age_seconds: float | None
    pid_ns: int | None

    def describe(self) -> str:
        """The process as a clause of a sentence."""
        told = [] if self.uid is None else [f"uid {self.uid}"]
        told.append(self.command or "nothing more is shown of it")
        if self.age_seconds is not None:
            told.append(f"running for {self.age_seconds:.0f} s")
        if self.pid_ns is not None:
            told.append(f"pid namespace {self.pid_ns}")
        return f"pid {self.pid} ({', '.join(told)})"


def sighting(pid: int) -> Sighting | None:
    """None for a process that has ended. Of one that /proc hides all but the uid is None."""
    try:
        stat = proc_stat(pid)
    except OSError:
        return Sighting(pid, uid_of(pid), None, None, None)
    if stat is None:
        return None
    age = max(0.0, (time.time_ns() - started_ns(stat)) / _NS_PER_S)
    namespace = pid_namespace(pid)
    elsewhere = None if namespace == pid_namespace() else namespace
    return Sighting(pid, uid_of(pid), command_of(pid), age, elsewhere)


@cache
def boot_id() -> str:
    """The kernel's id of this boot; the same in every container of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()


def pid_namespace(pid: int | None = None) -> int | None:
    """Inode number of a process's pid namespace, of the caller's by default; None if it cannot be seen."""
    try:
        return os.stat(f"/proc/{'self' if pid is None else pid}/ns/pid").st_ino
    except OSError:
        return None


def in_initial_pid_namespace() -> bool:
    """Whether every process of the machine has a pid here."""
    return pid_namespace() == _INITIAL_PID_NAMESPACE


def parse_stat(raw: bytes) -> ProcStat:
    """Read the bytes of /proc/PID/stat. ValueError if they are none.

    The command in parentheses may itself hold spaces and parentheses, hence the last ``)``.
    """
    fields = raw[raw.rindex(b")") + 1 :].split()
    if len(fields) < 20:
        raise ValueError("/proc/PID/stat has too few fields")
    # proc(5) counts from 1 and pid and command are gone: field N stands at N - 3.
    return ProcStat(fields[0].decode("ascii"), start_ticks=int(fields[19]), threads=int(fields[17]))


def proc_stat(pid: int) -> ProcStat | None:
    """State and start of a process, None when it is gone (or hidden from the caller).

    Raises PermissionError under ``hidepid=1``, where others' processes have a folder that may not be entered.
    """
    try:
        raw = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return parse_stat(raw)


def started_ns(stat: ProcStat) -> int:
    """When a process started, in ns since the epoch, to compare with a file's mtime.

    Taken from the wall clock as it is set now: if that was stepped since, the answer moves with it. The
    precision is one clock tick, 10 ms, rounded down.
    """
    booted = time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    return booted + stat.start_ticks * _NS_PER_S // os.sysconf("SC_CLK_TCK")


def uid_of(pid: int) -> int | None:
    """The effective uid of a process, None when it is gone."""
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None


def command_of(pid: int) -> str | None:
    """The short name of a process as the kernel keeps it (15 bytes), None when it is gone."""
    try:
        return os.fsdecode(Path(f"/proc/{pid}/comm").read_bytes().rstrip(b"\n"))
    except OSError:
        return None


def judge(process: Process) -> tuple[Life, str]:
    """Whether a recorded process lives, with the evidence as a clause fit for an operator (REC-01)."""
    pid = process.pid
    if process.boot_id != boot_id():
        return Life.DEAD, f"pid {pid} ran before this machine was booted (boot id differs)"
    here = pid_namespace()
    if here is None or process.pid_ns != here:
        return Life.UNKNOWN, f"pid {pid} belongs to another pid namespace, where it cannot be looked up"
    try:
        stat = proc_stat(pid)
    except PermissionError:
        return Life.UNKNOWN, unshown(pid)
    if stat is None:
        if _hidden(pid):
            return Life.UNKNOWN, unshown(pid)
        return Life.DEAD, f"pid {pid} is gone"
    if stat.start_ticks != process.start_ticks:
        if not _same_time_namespace(pid):
            return Life.UNKNOWN, f"pid {pid} lives in another time namespace, its start cannot be compared"
        return Life.DEAD, (
            f"pid {pid} was reused (start ticks {stat.start_ticks}, recorded {process.start_ticks})"
        )
    if stat.ended:
        return Life.DEAD, f"pid {pid} has ended and is only waited for (state {stat.state})"
    return Life.ALIVE, f"pid {pid} is running (start ticks {stat.start_ticks})"


def unshown(pid: int) -> str:
    """Why nothing can be said about a process that is there, as a clause."""
    return f"pid {pid} exists, but /proc hides it from this user"


def in_use(pid: int) -> bool:
    """Whether some process has this pid now, as far as /proc shows it."""
    try:
        return proc_stat(pid) is not None
    except PermissionError:
        return True


def _hidden(pid: int) -> bool:
    """Whether a pid without a /proc entry is in use after all, as under ``hidepid=2``."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    # It answers now and may have come to life since: ask /proc once more.
    return proc_stat(pid) is None and _answers(pid)


def _answers(pid: int) -> bool:
    with suppress(OSError):
        os.kill(pid, 0)
        return True
    return False


def _same_time_namespace(pid: int) -> bool:
    """Start ticks are shifted by a time namespace's boot offset; only within one do they compare."""
    try:
        return os.stat(f"/proc/{pid}/ns/time").st_ino == os.stat("/proc/self/ns/time").st_ino
    except FileNotFoundError:
        return True  # a kernel without time namespaces, or the process has just ended
    except OSError:
        return _no_boot_offset()


def _no_boot_offset() -> bool:
    """Without the right to look at the other's namespace: at least the caller's own is not shifted."""
    try:
        lines = Path("/proc/self/timens_offsets").read_text("ascii").splitlines()
    except OSError:
        return True
    return all(line.split()[1:] == ["0", "0"] for line in lines)
