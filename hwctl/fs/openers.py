"""Whether anybody has a file open or mapped, asked of the kernel, which sees every process of the machine.

A write lease, fcntl's F_SETLEASE, is granted only on a file that no other descriptor and no mapping is on, in
whatever pid namespace. It is given back at once. Owns the question alone: who it is, ``openfiles`` shows as
far as /proc does.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import stat
from collections.abc import Collection

from hwctl.fs.mounts import mount_of_fd, plain_devices, storage_class
from hwctl.fs.walk import Inode, inode_of, walk_entries

_F_SETSIG = 10
"""Linux's number; Python has no name for it before 3.13."""

_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


def opened(
    dir_fd: int, name: str, *, sparing: Collection[str] = (), most: int | None = None
) -> frozenset[Inode] | None:
    """The regular files of a tree that somebody has open or mapped, but for those in its root that are named
    in ``sparing``.

    None where the kernel does not tell: the files are another user's, the file system knows no such leases
    or has them from a server, or a mapping lies on another file than the one that was opened, as on overlay.
    None, too, for more than ``most`` files, since each is opened for it. Raises OSError for a tree
    that cannot be walked.
    """
    found: set[Inode] = set()
    plain, asked = plain_devices(), 0
    spared = frozenset(sparing)
    for folder, file, st in walk_entries(dir_fd, name):
        if not stat.S_ISREG(st.st_mode) or (file in spared and _is_root(folder, dir_fd, name)):
            continue
        asked += 1
        if st.st_dev not in plain or (most is not None and asked > most):
            return None
        answer = _is_open(folder, file)
        if answer is None:
            return None
        if answer:
            found.add(inode_of(st))
    return frozenset(found)


def _is_root(folder: int, dir_fd: int, name: str) -> bool:
    return os.path.samestat(os.fstat(folder), os.stat(name, dir_fd=dir_fd, follow_symlinks=False))


def _is_open(dir_fd: int, name: str) -> bool | None:
    """Whether anybody but this call has the file open; None where that is not told."""
    try:
        fd = os.open(name, _FLAGS, dir_fd=dir_fd)
    except FileNotFoundError:
        return False
    except OSError as exc:
        # Somebody else's lease on it is broken by an open, and is kept by somebody who has it open.
        return _in_use(dir_fd, exc)
    try:
        # Whoever opens it in this moment waits for us, and we are told by a signal that nobody minds; the
        # one that the kernel sends otherwise would end this process.
        fcntl.fcntl(fd, _F_SETSIG, signal.SIGURG)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError as exc:
        return _in_use(dir_fd, exc)
    finally:
        os.close(fd)
    return False


def _in_use(dir_fd: int, exc: OSError) -> bool | None:
    """What a refusal says. From NFS and SMB, EAGAIN is only that the server has not handed the file over."""
    if exc.errno != errno.EAGAIN:
        return None
    return True if storage_class(mount_of_fd(dir_fd).fs_type) in ("disk", "tmpfs") else None
