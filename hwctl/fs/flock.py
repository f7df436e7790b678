"""One descriptor's flock: tried, or waited for in line.

Owns the waiting. Which file it is, who let go of it and what a held lock is worth is in ``locks``.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time

from hwctl.errors import Refused, from_os_error
from hwctl.fs.deadline import Deadline
from hwctl.fs.lock_table import Mode
from hwctl.fs.mounts import mount_of_fd
from hwctl.fs.walk import Inode, inode_of

# Between two tries where the kernel cannot be waited in, as for a conversion, which drops what is held.
_POLL_SECONDS = 0.05

# An ageing tool (systemd-tmpfiles) takes a lock for a moment to see whether anybody has one (EVI-08).
_SECOND_LOOK_SECONDS = 0.02

_NO_LOCKS_HERE = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)

_LINGERING: set[Inode] = set()
"""Locks for which a thread of this process is still queued although its deadline has passed: there is no
calling it back, and one for each lock is enough."""


def lock(fd: int, mode: Mode, deadline: Deadline, shown: str) -> bool:
    """Lock what is open as ``fd``, waiting until ``deadline``; False when that comes first. One try is always
    made, and a second a moment later. Raises as ``try_lock``, and OSError.
    """
    if try_lock(fd, mode, shown):
        return True
    if not deadline.expired() and inode_of(os.fstat(fd)) not in _LINGERING:
        return _queue(fd, mode, deadline)
    while True:
        last = deadline.expired()
        pause(deadline)
        if try_lock(fd, mode, shown):
            return True
        if last:
            return False


def _queue(fd: int, mode: Mode, deadline: Deadline) -> bool:
    """Wait in the kernel until the lock is ours; False when the deadline comes first. Then the caller closes
    ``fd``, and should the kernel still give out the lock, it goes with the thread's own descriptor of it.

    Who polls instead never gets a lock that two others pass back and forth: it is free for no longer than
    the next one takes to wake up. A blocking flock has no deadline of its own, hence a thread.
    """
    inode, own = inode_of(os.fstat(fd)), os.dup(fd)
    done = threading.Event()
    failed: list[OSError] = []

    def wait() -> None:
        try:
            fcntl.flock(own, mode.value)
        except OSError as exc:
            failed.append(exc)
        finally:
            os.close(own)
        done.set()
        _LINGERING.discard(inode)

    threading.Thread(target=wait, name="hwctl-flock", daemon=True).start()
    if not done.wait(deadline.remaining()):
        _LINGERING.add(inode)
    if not done.is_set():
        return False
    _LINGERING.discard(inode)  # it may have ended between the two
    if failed:
        raise failed[0]
    return True


def pause(deadline: Deadline) -> None:
    """Wait for the next try, or once ``deadline`` is over for the last one."""
    if deadline.expired():
        time.sleep(_SECOND_LOOK_SECONDS)
    else:
        deadline.pause(_POLL_SECONDS)


def try_lock(fd: int, mode: Mode, shown: str) -> bool:
    """Whether the lock was free and is held now.

    Raises Refused where the file system cannot lock (LEA-02), IoFailed for any other error.
    """
    try:
        fcntl.flock(fd, mode.value | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as exc:
        if exc.errno not in _NO_LOCKS_HERE:
            raise from_os_error(exc, f"{shown}: cannot take the lock", shown) from exc
        fs_type = mount_of_fd(fd).fs_type
        raise Refused(
            f"{shown}: the file system ({fs_type}) does not lock files ({exc.strerror})",
            path=shown,
            details={"fs_type": fs_type, "errno": errno.errorcode.get(exc.errno or 0)},
        ) from exc
    return True
