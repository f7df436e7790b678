"""Making the staging root of a run, or taking up the one that a killed conversion left.

Owns the first moments: the name, the lock, and whose root it is. A root that is there already is taken up
only when its lock is free, its producer does not live, and it was staged from the same source for the same
shape; whatever else it is, it is left alone and the caller told why.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from hwctl.errors import Finding, NotFound, Refused, from_os_error
from hwctl.fs.deadline import Deadline
from hwctl.fs.liveness import Life
from hwctl.fs.lock_table import Mode
from hwctl.fs.paths import opened_dir
from hwctl.fs.probe import probe
from hwctl.stores.ktint8 import layout
from hwctl.stores.ktint8.documents import read_lease, read_manifest
from hwctl.stores.ktint8.producer import Producer, life_of
from hwctl.stores.ktint8.root_lock import LockedRoot, inode_named, open_root
from hwctl.stores.ktint8.staging import Order, Staging, layer_digest
from hwctl.stores.ktint8.tree import judge_root


def begin(base: Path, order: Order, deadline: Deadline, *, workers: int) -> Staging | None:
    """A staging root for an order, locked, leased, its room reserved; None when its final name is taken.

    Waits until ``deadline`` for another process that is at work on the same run, which may well publish it.
    Raises Busy, Refused when the root is somebody else's or of another source, NoRoom, IoFailed; nothing of
    ours is left then.
    """
    path = base / layout.staging_name(layout.require_run_id(order.run_id))
    try:
        opened = _opened(base, path, order, deadline)
    except OSError as exc:
        raise from_os_error(exc, "cannot make the staging root", path) from exc
    if opened is None:
        return None
    staging, recorded = opened
    try:
        staging.prepare(recorded, workers)
    except BaseException as exc:
        staging.close()
        if isinstance(exc, OSError):
            raise from_os_error(exc, "cannot stage the tree", path) from exc
        raise
    return staging


def _opened(
    base: Path, path: Path, order: Order, deadline: Deadline
) -> tuple[Staging, Mapping[int, str]] | None:
    """The root, locked, and the layers on record in it; what was made here goes again on any way out."""
    with opened_dir(base) as base_fd:
        probe(base_fd)
        taken = _take(base_fd, order.final, path, deadline)
        if taken is None:
            return None
        root, made = taken
        try:
            recorded = {} if made else _resumable(root.fd, order, path)
            return Staging(root, order), recorded
        except BaseException:
            if made:
                _drop_empty(base_fd, path.name)
            root.close()
            raise


def _drop_empty(base_fd: int, name: str) -> None:
    with suppress(OSError):
        os.rmdir(name, dir_fd=base_fd)


def _take(base_fd: int, final: str, path: Path, deadline: Deadline) -> tuple[LockedRoot, bool] | None:
    """The root, locked, and whether it was made just now; None once ``final`` is there."""
    while inode_named(base_fd, final) is None:
        made = _make(base_fd, path.name)
        try:
            root = open_root(path, Mode.EXCLUSIVE, deadline, base_fd=base_fd, judge=_judge)
        except NotFound:
            continue  # published or removed while we waited: begin again with what is there now
        except BaseException:
            if made:
                _drop_empty(base_fd, path.name)
            raise
        return root, made
    return None


def _judge(st: os.stat_result) -> list[Finding]:
    return judge_root(st, os.geteuid())


def _make(base_fd: int, name: str) -> bool:
    try:
        os.mkdir(name, 0o700, dir_fd=base_fd)
    except FileExistsError:
        return False
    return True


def _resumable(root_fd: int, order: Order, path: Path) -> Mapping[int, str]:
    """The layers on record in a root that was there already, or Refused with the reason why it stays."""
    if all(layout.temporary_pid(name) is not None for name in os.listdir(root_fd)):
        return {}  # killed between mkdir and lease: the lock is ours now, and there is nothing to lose
    found = read_lease(root_fd, order.run_id)
    if not found.present:
        return _without_lease(root_fd, order, path)
    if found.lease is None:
        raise _occupied(path, found.findings[0].message)
    _require_dead(Producer(found.lease.producer_pid, found.written_ns, found.lease.producer), path)
    progress = found.lease.progress
    if progress is None:
        raise _occupied(path, "hwctl did not stage it, --from would name it")
    if progress.source != order.source or progress.geometry != order.geometry:
        raise _occupied(path, "it is the rest of a conversion of another source or shape")
    return progress.layers


def _without_lease(root_fd: int, order: Order, path: Path) -> Mapping[int, str]:
    """What is on record where the lease is gone and the rename never came: the manifest knows every layer."""
    manifest = read_manifest(root_fd, ephemeral=not order.shared).parsed.manifest
    if manifest is None or manifest.producer is None:
        raise _occupied(path, "it has no lease, and no manifest says who made it")
    _require_dead(Producer(manifest.producer.pid, 0, manifest.producer), path)
    if manifest.source != order.source or manifest.geometry != order.geometry:
        raise _occupied(path, "it is the rest of a conversion of another source or shape")
    return {
        layer.index: layer_digest([digest for digest in layer.digests if digest is not None])
        for layer in manifest.layers
    }


def _require_dead(producer: Producer, path: Path) -> None:
    life, evidence = life_of(producer)
    if life is Life.ALIVE and producer.pid != os.getpid():
        raise _occupied(path, evidence)


def _occupied(path: Path, why: str) -> Refused:
    return Refused(f"{path} exists: {why}; reclaim it or choose another run id", path=path)
