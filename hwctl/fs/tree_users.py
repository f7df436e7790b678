"""Who uses the files of a tree without a lock that would tell of it.

Owns putting together what /proc shows and what the kernel answers, and saying where neither can tell. What a
use means for an entry is for the stores to say.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

from hwctl.errors import Refused
from hwctl.fs.liveness import in_initial_pid_namespace
from hwctl.fs.openers import opened
from hwctl.fs.openfiles import FEW, OpenFiles, User
from hwctl.fs.paths import opened_dir
from hwctl.fs.unused import hidden
from hwctl.fs.walk import inode_of, walk_stats


def users_of_tree(
    path: Path,
    owner_uid: int | None,
    open_files: Callable[[], OpenFiles],
    *,
    sparing: Collection[str] = (),
    certain: bool = False,
) -> tuple[User, ...]:
    """Who has files of the folder ``path`` open or mapped, as far as /proc shows it. Raises OSError.

    Folders do not count, nor what is named in ``sparing`` and lies directly in it: whoever only looks has
    them open. ``certain`` asks the kernel as well, file by file, and raises Refused where neither can tell;
    of processes that cannot be looked into, those of ``owner_uid`` count.
    """
    try:
        with opened_dir(path) as root_fd:
            told = opened(root_fd, ".", sparing=sparing, most=FEW) if certain else None
            if told is not None and not told:
                return ()
            inodes = {inode_of(st) for st in walk_stats(root_fd, ".") if stat.S_ISREG(st.st_mode)}
            for name in sparing:
                with suppress(FileNotFoundError):
                    inodes.discard(inode_of(os.stat(name, dir_fd=root_fd, follow_symlinks=False)))
            seen = open_files()
            found = seen.users(inodes)
            if found or not certain:
                return found
            # Also where /proc shows every process: a loop device, io_uring or a socket holds files as well.
            told = opened(root_fd, ".", sparing=sparing)
    except FileNotFoundError:
        return ()
    blind = _blind(seen, owner_uid) if told is None else None
    if blind is not None:
        raise Refused(f"cannot be seen whether {blind}; nothing was changed", path=path)
    return (User(None, None, "", "open"),) if told else ()


def _blind(seen: OpenFiles, owner_uid: int | None) -> str | None:
    """What use of a tree a pass over /proc does not show, and who would see it; None when it shows all."""
    if not in_initial_pid_namespace():
        where = "run hwctl on the host, or in a pod with hostPID: true"
        return f"a process outside this pid namespace uses it ({where})"
    pid = hidden(seen, owner_uid)
    return None if pid is None else f"pid {pid} of its owner uses it (run hwctl as root)"
