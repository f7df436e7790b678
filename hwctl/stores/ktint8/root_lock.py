"""A root and the lock on it: judged by name, opened by descriptor, locked, and then looked at again.

Owns this order for everybody who works in a root. The lock comes before anything in the root is read, and
since the root may go while one waits for it, a lock counts only if the name still stands for what it locks.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from hwctl.errors import Finding, NotFound, Refused, from_os_error
from hwctl.fs import locks
from hwctl.fs.deadline import Deadline
from hwctl.fs.lock_table import Mode
from hwctl.fs.locks import Held
from hwctl.fs.paths import open_dir
from hwctl.fs.walk import Inode, inode_of

GONE = "was published, consumed, moved or removed meanwhile"

JudgeRoot = Callable[[os.stat_result], Sequence[Finding]]
"""The rules for the root itself, asked before it is opened; a finding is a refusal."""


@dataclass(frozen=True, slots=True)
class LockedRoot:
    """An open root with its lock. ``base_fd`` is the folder it lies in, in which it can be renamed or
    removed only if the lock is exclusive. Use as a context manager, or ``close``."""

    path: Path
    base_fd: int
    fd: int
    lock: Held

    def close(self) -> None:
        """Let the root go. In a forked child this closes and unlocks nothing of its parent's."""
        self.lock.release()
        os.close(self.fd)
        os.close(self.base_fd)

    def __enter__(self) -> LockedRoot:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


def open_root(
    path: Path,
    mode: Mode,
    wait: Deadline,
    *,
    base_fd: int | None = None,
    judge: JudgeRoot | None = None,
    lease_fds: Sequence[int] = (),
) -> LockedRoot:
    """Open and lock the root at ``path``. ``base_fd`` is its folder, where the caller has it open already.

    ``lease_fds`` are descriptors with a lock that came from ``hwctl exec``; the root's own is converted.
    Raises NotFound when it is absent or goes meanwhile, Refused by ``judge``, Busy, IoFailed.
    """
    with ExitStack() as undo:
        try:
            base_fd = _open_base(path.parent, mode) if base_fd is None else os.dup(base_fd)
            undo.callback(os.close, base_fd)
            faults = judge(os.stat(path.name, dir_fd=base_fd, follow_symlinks=False)) if judge else ()
            if faults:
                raise Refused(faults[0].message, path=path)
            fd = open_dir(path.name, dir_fd=base_fd)
            undo.callback(os.close, fd)
            lock = _lock(fd, mode, wait, lease_fds)
            undo.callback(lock.release)
            if inode_named(base_fd, path.name) != lock.inode:
                raise NotFound(GONE, path=path)
        except FileNotFoundError as exc:
            raise NotFound("is absent", path=path) from exc
        except OSError as exc:
            raise from_os_error(exc, "cannot open it", path) from exc
        undo.pop_all()
    return LockedRoot(path, base_fd, fd, lock)


def _open_base(base: Path, mode: Mode) -> int:
    if mode is Mode.EXCLUSIVE:
        return open_dir(base)
    # Who only looks at a root needs no right to list the folder it lies in, and may come by a link to that.
    return os.open(base, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def _lock(fd: int, mode: Mode, wait: Deadline, lease_fds: Sequence[int]) -> Held:
    """The lock on the root, converted from an inherited lease where there is one."""
    inode = inode_of(os.fstat(fd))
    for lease_fd in lease_fds:
        try:
            st = os.fstat(lease_fd)
        except OSError:
            continue
        if inode_of(st) == inode:
            held = locks.adopt(lease_fd)
            if mode is Mode.EXCLUSIVE:
                held.convert(mode, wait)
            return held
    return locks.acquire_dir(fd, mode, wait)


def inode_named(base_fd: int, name: str) -> Inode | None:
    """What stands under a name in a folder now, None for nothing."""
    try:
        return inode_of(os.stat(name, dir_fd=base_fd, follow_symlinks=False))
    except FileNotFoundError:
        return None
