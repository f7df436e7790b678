"""Whether nobody can be at work on files when no lock tells: the file of their lock is gone.

Whoever locked it before it was removed still holds a lock, which nobody can see (EVI-08). Owns the facts that
prove disuse without it. What follows for an entry is for the stores to say.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from hwctl.fs.liveness import Life, in_initial_pid_namespace, uid_of
from hwctl.fs.openfiles import OpenFiles
from hwctl.fs.walk import Inode

_NS = 1_000_000_000
GRACE_NS = 3600 * _NS
"""How long nothing may have changed."""


def disuse(
    inodes: Collection[Inode],
    newest_ns: int,
    owner_uid: int,
    grace_ns: int,
    open_files: Callable[[], OpenFiles],
) -> tuple[Life, str]:
    """Whether whoever made these files is gone, with the evidence as a clause; the first doubt decides.

    Only processes of ``owner_uid`` count among those that cannot be looked into.
    """
    if not in_initial_pid_namespace():
        return Life.UNKNOWN, "only the initial pid namespace shows every process that may use it"
    age_ns = time.time_ns() - newest_ns
    if age_ns < grace_ns:
        return Life.UNKNOWN, f"it changed {age_ns // _NS} s ago, less than {grace_ns / _NS:g} s"
    seen = open_files()
    users = seen.users(inodes)
    if users:
        return Life.ALIVE, users[0].describe()
    # Pid 1 is the machine's init here, and may keep even root from looking.
    hidden = [pid for pid in seen.unreadable if pid != 1 and uid_of(pid) == owner_uid]
    if hidden:
        return Life.UNKNOWN, f"pid {hidden[0]} of its owner cannot be looked into"
    return Life.DEAD, f"no process of its owner uses it, and nothing changed for {age_ns // _NS} s"
