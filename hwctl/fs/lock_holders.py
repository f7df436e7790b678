"""Who else holds a lock, asked without waiting for it and without keeping it.

Owns the question alone. What a holder means for an artifact is for the stores to say, and the proof that
counts is a lock that is taken and kept.
"""

from __future__ import annotations

import os
from pathlib import Path

from hwctl.errors import Busy, Refused
from hwctl.fs.deadline import Deadline
from hwctl.fs.liveness import UNSEEN
from hwctl.fs.lock_table import LockTable, Mode
from hwctl.fs.locks import acquire, acquire_dir, is_ours
from hwctl.fs.walk import inode_of


def held_by_other(name: str | Path, dir_fd: int | None = None, *, trying: bool = True) -> str | None:
    """Who but this process holds the lock of a file, or of the folder ``dir_fd`` itself for ``"."``, as a
    clause; None when it is free.

    The kernel's table shows what is held from this pid namespace or one below it. Where that is not all, the
    lock is tried for a moment, as a reader does: so a writer outside is noticed, and nobody shut out for
    longer. Without ``trying`` that is Refused. Raises OSError when there is no such file, HwctlError when it
    cannot be locked.
    """
    inode = inode_of(os.stat(name, dir_fd=dir_fd, follow_symlinks=False))
    table = LockTable.read()
    holders = table.holders(inode)
    others = [holder for holder in holders if holder.pid != os.getpid()]
    if others:
        return ", ".join(holder.describe() for holder in others)
    if holders or table.complete or is_ours(inode):
        return None
    if not trying:
        raise Refused("whether a process outside this pid namespace holds its lock is only told by trying it")
    try:
        if name == "." and dir_fd is not None:
            acquire_dir(dir_fd, Mode.SHARED, Deadline.now()).release()
        elif (held := acquire(name, Mode.SHARED, Deadline.now(), dir_fd=dir_fd)) is not None:
            held.release()
    except Busy:
        return UNSEEN
    return None
