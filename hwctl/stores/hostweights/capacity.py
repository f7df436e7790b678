"""Capacity: whether an artifact may be written, by the store's policy and by the room there is.

The store is measured once for each publication. Two builders that begin together are admitted one after
the other, each seeing what the other has reserved, so that of two where one fits exactly one succeeds.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from hwctl.errors import HwctlError, NoRoom
from hwctl.fs import space
from hwctl.fs.deadline import Deadline
from hwctl.fs.lock_table import Mode
from hwctl.fs.locks import acquire
from hwctl.fs.paths import opened_dir
from hwctl.stores.hostweights.domain import Capacity
from hwctl.stores.hostweights.layout import LOCK_MODE, LOCKS
from hwctl.stores.hostweights.store_root import StoreRoot
from hwctl.stores.hostweights.verdict import Code, Stage, coded

ADMISSION_LOCK = "hwctl-admission.lock"
"""In ``locks/``; held only while a store is measured and an artifact's size is reserved in it."""


def store_bytes(root: StoreRoot) -> int:
    """Sum of the sizes of all regular files below the root: staging, quarantine and strangers included.

    Hard links count each time and sparse files with their apparent size, as upstream counts.
    """
    return store_usage(root).bytes


def store_usage(root: StoreRoot) -> space.Usage:
    """The same, with what the disk gave for it and for the folders."""
    with opened_dir(root.path.parent) as parent:
        return space.usage(parent, root.path.name)


class Admission:
    """The capacity of one publication. Asking costs the same however many files the store holds."""

    def __init__(self, root: StoreRoot, capacity: Capacity, used_before: int) -> None:
        """``used_before`` is ``store_bytes`` without this publication; 0 where there is no limit on it."""
        self._root = root
        self._capacity = capacity
        self._used = used_before

    def whole(self, artifact_bytes: int) -> None:
        """Raise NoRoom unless an artifact of this size fits the limits; says nothing of free space."""
        limit = self._capacity.max_artifact_bytes
        if limit is not None and artifact_bytes > limit:
            raise self._refusal(Code.ARTIFACT_TOO_LARGE, "an artifact", artifact_bytes, limit)
        limit = self._capacity.max_store_bytes
        if limit is not None and self._used + artifact_bytes > limit:
            raise self._refusal(Code.STORE_LIMIT_EXCEEDED, "the store", self._used + artifact_bytes, limit)

    def room(self, artifact_bytes: int, inodes: int) -> None:
        """Raise NoRoom unless all of it can be written and min_free_bytes stay free, memory limits included.

        The message names need, available, mount and the knob that helps (PUB-03).
        """
        keep = self._capacity.min_free_bytes
        try:
            space.require(self._root.path, artifact_bytes, inodes, keep_free=keep, what="the artifact")
        except NoRoom as exc:
            raise coded(exc, Stage.CAPACITY, Code.INSUFFICIENT_CAPACITY) from exc

    def free(self, additional: int) -> None:
        """The same for the next payload, asked of the file system alone: there may be thousands."""
        facts = os.statvfs(self._root.path)
        if facts.f_blocks and facts.f_bavail * facts.f_frsize - additional < self._capacity.min_free_bytes:
            self.room(additional, 0)

    def _refusal(self, code: Code, what: str, needed: int, limit: int) -> HwctlError:
        error = NoRoom(
            f"{what} would have {needed} bytes, the store's policy allows {limit}",
            path=self._root.path,
            retryable=True,
            details={"need_bytes": needed, "limit_bytes": limit},
        )
        return coded(error, Stage.CAPACITY, code)


@contextmanager
def admission(root: StoreRoot, deadline: Deadline) -> Iterator[Admission]:
    """Measure the store and admit one publication: within the block its size has to be reserved on disk."""
    capacity = root.capacity or Capacity()
    if capacity.max_store_bytes is None:
        yield Admission(root, capacity, 0)
        return
    with root.folder(LOCKS) as locks:
        held = acquire(
            ADMISSION_LOCK, Mode.EXCLUSIVE, deadline, dir_fd=locks, create=True, file_mode=LOCK_MODE
        )
    assert held is not None
    with held:
        yield Admission(root, capacity, store_bytes(root))
