"""Whether nobody can be at work on files that no lock speaks for.

Such are the trees whose readers take none, and whatever lies behind a lock file that is gone: whoever locked
it before still holds a lock that nobody can see (EVI-08). Owns the facts that prove disuse without a lock.
What follows for an entry is for the stores to say.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable

from hwctl.fs.liveness import Life, in_initial_pid_namespace, uid_of
from hwctl.fs.openfiles import OpenFiles
from hwctl.fs.walk import inode_of

_NS = 1_000_000_000
GRACE_NS = 3600 * _NS
"""How long nothing may have changed."""


def disuse(
    stats: Iterable[os.stat_result],
    owner_uid: int | None,
    grace_ns: int,
    open_files: Callable[[], OpenFiles],
    *,
    recent: Life = Life.UNKNOWN,
) -> tuple[Life, str]:
    """Whether whoever was at work on these files is gone, with the evidence as a clause.

    The first doubt decides. Only processes of ``owner_uid`` count among those that cannot be looked into.
    ``recent`` is what a change within the grace time says.
    """
    if not in_initial_pid_namespace():
        return Life.UNKNOWN, "only the initial pid namespace shows every process that may use it"
    found = list(stats)
    age_ns = _unchanged_ns(found, grace_ns)
    if age_ns < grace_ns:
        return recent, f"something in it changed {age_ns // _NS} s ago, less than {grace_ns / _NS:g} s"
    seen = open_files()
    users = seen.users({inode_of(st) for st in found})
    if users:
        return Life.ALIVE, users[0].describe()
    pid = hidden(seen, owner_uid)
    if pid is not None:
        return Life.UNKNOWN, f"pid {pid} of its owner cannot be looked into"
    return Life.DEAD, f"no process of its owner uses it, and nothing changed for {age_ns / _NS:.1f} s"


def hidden(seen: OpenFiles, owner_uid: int | None) -> int | None:
    """A process of this user that may have anything open, since it could not be looked into.

    Not pid 1: in the initial namespace that is the machine's init, which may keep even root from looking.
    """
    return next((pid for pid in seen.unreadable if pid != 1 and uid_of(pid) == owner_uid), None)


def _unchanged_ns(stats: Iterable[os.stat_result], grace_ns: int) -> int:
    """How long no file has changed, in bytes or in its inode.

    A stamp from further ahead than the grace time cannot be true and says nothing; a clock that was set back
    a little makes a change look as if it were yet to come, and that counts as now.
    """
    newest, latest = 0, time.time_ns() + grace_ns
    for st in stats:
        for stamp in (st.st_mtime_ns, st.st_ctime_ns):
            if newest < stamp <= latest:
                newest = stamp
    return max(0, time.time_ns() - newest)
