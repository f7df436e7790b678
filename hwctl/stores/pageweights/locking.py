"""The cache's two kinds of lock, and the one order in which they may be held together.

A page's lock is waited for by itself. Whoever holds the eviction lock only *tries* page locks, and nobody
waits for the eviction lock with a page's lock in hand: so no two processes ever wait for each other.
"""

from __future__ import annotations

import os
from contextlib import suppress

from hwctl.errors import Busy
from hwctl.fs.deadline import Deadline
from hwctl.fs.lock_table import Mode
from hwctl.fs.locks import Held, acquire
from hwctl.stores.base import Lease
from hwctl.stores.pageweights import layout
from hwctl.stores.pageweights.place import Place

# The eviction lock is held for moments, by every access of the cache's own program; to call that busy at
# once would make every other clean-up fail beside a program at work.
_EVICTION_GRACE_SECONDS = 2.0
_POLL_SECONDS = 0.05


def try_page(place: Place, prefix: str) -> Held:
    """A page's lock, exclusively and at once; Busy when anybody holds it."""
    return lock_page(place, prefix, Deadline.now())


def lock_page(place: Place, prefix: str, deadline: Deadline) -> Held:
    """A page's lock, exclusively; its file is made where it is absent, and never removed."""
    return _made(place, layout.lock_name(prefix), deadline)


def share_page(place: Place, prefix: str, deadline: Deadline) -> Held | None:
    """A page's lock, shared, on an existing file only; None where there is none."""
    return acquire(layout.lock_name(prefix), Mode.SHARED, deadline, dir_fd=place.dir_fd)


def lock_eviction(place: Place, deadline: Deadline) -> Held:
    """The eviction lock; Busy while another process evicts. Waited for a little even past ``deadline``."""
    return _made(place, layout.EVICTION_LOCK, deadline.at_least(_EVICTION_GRACE_SECONDS))


def make_eviction_lock(place: Place) -> None:
    """Make the eviction lock's file where there is none, as every access of the cache's own program does.

    Once a file system's inodes are used up it cannot be made any more, and nothing could be evicted. What
    else bears its name is left for those who need the lock. Raises OSError as met.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with suppress(FileExistsError):
        fd = os.open(layout.EVICTION_LOCK, flags, layout.DOCUMENT_MODE, dir_fd=place.dir_fd)
        try:
            os.fchmod(fd, layout.DOCUMENT_MODE)
        finally:
            os.close(fd)


def lock_to_unlist(place: Place, prefix: str, deadline: Deadline) -> Lease:
    """A page's lock for taking its files out of the root, with the eviction lock around it.

    The cache's own program dies when a file vanishes between its listing and its look at the size, both
    done under the eviction lock.
    """
    while True:
        eviction = lock_eviction(place, deadline)
        try:
            return Lease((eviction, try_page(place, prefix)))
        except Busy:
            eviction.release()
            if deadline.expired():
                raise
        except BaseException:
            eviction.release()
            raise
        deadline.pause(_POLL_SECONDS)


def _made(place: Place, name: str, deadline: Deadline) -> Held:
    held = acquire(name, Mode.EXCLUSIVE, deadline, dir_fd=place.dir_fd, create=True, enforce_mode=True)
    assert held is not None  # made where it was absent
    return held
