"""Locks of a key, in the order of the format: the build lock, then the artifact lock.

Owns taking them and the clock of last use. A lock file is never removed: nobody looks again whether the
file it locked still has its name.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from hwctl.errors import Busy, HwctlError, IoFailed, Refused, from_os_error
from hwctl.fs.deadline import Deadline
from hwctl.fs.lock_table import Mode
from hwctl.fs.locks import Held, acquire, acquire_dir
from hwctl.fs.paths import identity
from hwctl.stores.base import Lease
from hwctl.stores.hostweights.layout import ARTIFACTS, LOCK_MODE, LOCKS, artifact_lock, build_lock
from hwctl.stores.hostweights.store_root import StoreRoot
from hwctl.stores.hostweights.verdict import Code, Stage, coded

_NO_FOLDER = frozenset({"ENOENT", "ENOTDIR", "ELOOP", "EACCES"})
"""There is no artifact, what bears its key is none, or it is damaged and closed, so that nobody reads it."""


def shared(root: StoreRoot, key: str, deadline: Deadline, *, create: bool) -> Held | None:
    """The shared artifact lock, None when its file is absent and not to be made.

    With ``create`` a file is made for an artifact that exists only: names that are merely asked for would
    otherwise fill the folder for ever. Nobody but the owner makes one, root neither: the owner's own
    programs could not open it. Raises Refused then.
    """
    held = _take(root, artifact_lock(key), Mode.SHARED, deadline, create=False)
    if held is None and create and os.path.lexists(root.path / ARTIFACTS / key):
        if os.geteuid() != root.owner_uid:
            raise Refused(
                f"has no lock file yet, and only uid {root.owner_uid} makes one in its store",
                path=root.path / ARTIFACTS / key,
                details={"owner_uid": root.owner_uid, "caller_uid": os.geteuid()},
            )
        held = _take(root, artifact_lock(key), Mode.SHARED, deadline, create=True)
    return held


def on_folder(root: StoreRoot, key: str) -> Held | None:
    """A shared lock on the artifact's own folder, for those who age files and pass over what is locked
    (EVI-08), and for hwctl itself, should they have removed the lock file. Without it all is well, too."""
    try:
        return acquire_dir(root.path / ARTIFACTS / key, Mode.SHARED, Deadline.now())
    except (HwctlError, OSError):
        return None


def exclusive(root: StoreRoot, key: str, deadline: Deadline) -> Lease:
    """Build lock and artifact lock, both exclusive: what removing and setting aside need. Where the file of
    the artifact lock tells nothing, the artifact's folder is locked as well, which exec holds.

    Raises Busy in upstream's words for a cleanup: active_build_timeout or active_lease.
    """
    try:
        build = _take(root, build_lock(key), Mode.EXCLUSIVE, deadline, create=True)
    except Busy as exc:
        raise coded(exc, Stage.LIFECYCLE, Code.ACTIVE_BUILD_TIMEOUT) from exc
    assert build is not None
    taken = [build]
    try:
        artifact = _take(root, artifact_lock(key), Mode.EXCLUSIVE, deadline, create=False)
        if artifact is None:
            made = _make(root, artifact_lock(key))
            artifact = _take(root, artifact_lock(key), Mode.EXCLUSIVE, deadline, create=True)
            if artifact is not None and made is not None:
                _mark_unused(artifact, made)
        assert artifact is not None
        taken.append(artifact)
        if not is_known(root, key):
            taken += _folder(root, key, deadline)
    except BaseException as exc:
        Lease(tuple(taken)).release()
        if isinstance(exc, Busy):
            raise coded(exc, Stage.LIFECYCLE, Code.ACTIVE_LEASE) from exc
        raise
    return Lease(tuple(taken))


def _folder(root: StoreRoot, key: str, deadline: Deadline) -> tuple[Held, ...]:
    try:
        return (acquire_dir(root.path / ARTIFACTS / key, Mode.EXCLUSIVE, deadline),)
    except IoFailed as exc:
        if exc.details["errno"] not in _NO_FOLDER:
            raise
        return ()


def is_known(root: StoreRoot, key: str) -> bool:
    """Whether the artifact lock tells of every lease: not when its file is missing, nor when it was made in
    place of a missing one and nobody has leased by it since."""
    path = lock_path(root, key)
    try:
        return os.lstat(path).st_mtime_ns != 0
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as exc:
        raise from_os_error(exc, f"cannot look at {path}", path) from exc


def _make(root: StoreRoot, name: str) -> os.stat_result | None:
    """Make a lock file and tell its stat; None when there was one, or when whoever takes it has to say why
    it cannot be made."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with root.folder(LOCKS) as folder:
            fd = os.open(name, flags, LOCK_MODE, dir_fd=folder)
            try:
                return os.fstat(fd)
            finally:
                os.close(fd)
    except OSError:
        return None


def _mark_unused(held: Held, made: os.stat_result) -> None:
    """A lock file's times are the clock of last use, and that it was missing is no use. They stay when
    somebody used it since it was made."""
    try:
        if identity(os.fstat(held.fd)) == identity(made):
            os.utime(held.fd, ns=(0, 0))
    except OSError as exc:
        held.release()
        raise from_os_error(exc, f"cannot stamp {held.path}", held.path) from exc
    except BaseException:
        held.release()
        raise


def building(root: StoreRoot, key: str, deadline: Deadline) -> Held:
    """The build lock: held from before the second lookup until the result of a build is known."""
    return _producing(root, build_lock(key), deadline)


def replacing(root: StoreRoot, key: str, deadline: Deadline) -> Held:
    """The exclusive artifact lock of a builder, who holds the build lock already."""
    return _producing(root, artifact_lock(key), deadline)


def _producing(root: StoreRoot, name: str, deadline: Deadline) -> Held:
    try:
        held = _take(root, name, Mode.EXCLUSIVE, deadline, create=True)
    except Busy as exc:
        raise coded(exc, Stage.PRODUCTION, Code.ACTIVE_BUILD_TIMEOUT) from exc
    assert held is not None
    return held


def touch(held: Held) -> None:
    """Note a use: the lock file's times are the clock of last use. Not worth failing for."""
    try:
        os.utime(held.fd)
    except OSError:
        return


def lock_path(root: StoreRoot, key: str) -> Path:
    """The artifact lock's file."""
    return root.path / LOCKS / artifact_lock(key)


def _take(root: StoreRoot, name: str, mode: Mode, deadline: Deadline, *, create: bool) -> Held | None:
    try:
        with root.folder(LOCKS) as folder:
            return acquire(name, mode, deadline, dir_fd=folder, create=create, file_mode=LOCK_MODE)
    except OSError as exc:
        if exc.errno in (errno.ENOENT, errno.ENOTDIR) and not create:
            return None  # there is no folder of locks, so there is nothing to lock
        raise from_os_error(exc, f"cannot open {root.path / LOCKS}", root.path / LOCKS) from exc
