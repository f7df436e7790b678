"""Whether an entry is the leftover of somebody who is dead, and how we know.

A publisher holds the build lock for as long as it lives, a mover the exclusive artifact lock: a free lock is
the proof. The pid in a name is only more evidence. Where the file of a lock is gone, disuse has to be proven
otherwise. What is planned on is seen without keeping any lock; the proof that counts is the lock that
reclaiming then takes.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

from hwctl.fs.liveness import Life, in_use
from hwctl.fs.lock_holders import held_by_other
from hwctl.fs.openfiles import OpenFiles
from hwctl.fs.paths import opened_dir
from hwctl.fs.unused import GRACE_NS, disuse
from hwctl.fs.walk import walk_stats
from hwctl.stores.base import Artifact, Death, Staleness, StalePolicy, State
from hwctl.stores.hostweights import layout
from hwctl.stores.hostweights.layout import CLEANUP, INIT_LOCK, LOCKS, STICKY, WRITE_BITS, Place
from hwctl.stores.hostweights.places import Spot
from hwctl.stores.hostweights.store_root import StoreRoot

_LIVES = {Life.DEAD: Death.PROVEN, Life.ALIVE: Death.LIVE, Life.UNKNOWN: Death.UNPROVEN}


def judge(
    root: StoreRoot, spot: Spot, artifact: Artifact, policy: StalePolicy, open_files: Callable[[], OpenFiles]
) -> Staleness:
    """The verdict on one entry. OSError passes through; HwctlError when a lock cannot be asked."""
    moving = _interrupted_move(root, spot, artifact)
    what = moving or _leftover(spot, artifact)
    if what is None:
        return Staleness(Death.NOT_STALE, (f"its state is {artifact.state}",))
    age = time.time_ns() - (artifact.last_used or 0)
    if policy.older_than is not None and age < policy.older_than:
        return Staleness(Death.NOT_STALE, (what, f"it changed {age // 10**9} s ago"))
    life, evidence = _by_locks(root, _locks_of(spot), trying=not policy.looking)
    pid = artifact.detail.get("publisher_pid")
    lives = isinstance(pid, int) and in_use(pid)
    lockless = life is Life.UNKNOWN
    if lockless:
        life, clause = _without_lock(root, spot, policy, open_files)
        evidence += (clause,)
        if life is Life.DEAD and lives:
            life = Life.UNKNOWN
    if isinstance(pid, int) and life is not Life.ALIVE:
        evidence += (f"pid {pid} is {'running, whoever that is now' if lives else 'gone'}",)
    return Staleness(_LIVES[life], (what, *evidence), moving is not None, lockless)


def _interrupted_move(root: StoreRoot, spot: Spot, artifact: Artifact) -> str | None:
    """What kind of move it was in that was not finished, and that must not cost a byte; None for none."""
    if artifact.state is State.QUARANTINED:
        unfinished = bool(artifact.detail.get("unfinished_move")) and not _is_tombstone(spot)
        return "a move into quarantine that was not finished" if unfinished else None
    if spot.place is Place.ARTIFACT and _is_half_moved(spot.path(root.path)):
        return "a publication or a move that was not finished (mode 01755)"
    return None


def _leftover(spot: Spot, artifact: Artifact) -> str | None:
    """What kind of leftover it would be, None for an entry that is none."""
    if artifact.state is State.QUARANTINED:
        return "a removal that was not finished" if _is_tombstone(spot) else None
    if artifact.state in (State.STAGING, State.TEMPORARY, State.ORPHAN):
        return {
            State.STAGING: "staging of a publication",
            State.TEMPORARY: artifact.reason or "a temporary",
            State.ORPHAN: "a deny marker without an artifact",
        }[artifact.state]
    return None


def _is_tombstone(spot: Spot) -> bool:
    parsed = layout.parse_quarantine(spot.name)
    return parsed is not None and parsed.reason == CLEANUP


def _is_half_moved(path: Path) -> bool:
    """Sticky and writable: on its way in or out. Sticky alone is a denial, and stays for a person."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(mode) and bool(mode & STICKY) and bool(mode & WRITE_BITS)


def _locks_of(spot: Spot) -> tuple[str, ...]:
    """The lock that whoever is at work on an entry holds for certain, and then one that may be held too."""
    if spot.key is None:
        return (INIT_LOCK,)
    if spot.place is Place.STAGING:
        # Only the build lock stands for a publisher; readers of the key's artifact do not keep it alive.
        return (layout.build_lock(spot.key),)
    return (layout.artifact_lock(spot.key), layout.build_lock(spot.key))


def _by_locks(root: StoreRoot, names: tuple[str, ...], *, trying: bool) -> tuple[Life, tuple[str, ...]]:
    """Whether anybody holds one of the locks; UNKNOWN where the file of the first is gone."""
    evidence: list[str] = []
    life = Life.DEAD
    for name in names:
        # KEY.build.lock: whose it is says the entry that all this is about.
        called = f"its {name.split('.')[-2]} lock"
        try:
            holder = held_by_other(root.path / LOCKS / name, trying=trying)
        except (FileNotFoundError, NotADirectoryError):
            if name == names[0]:
                life = Life.UNKNOWN
                evidence.append(f"{called} has no file, which tells nothing")
            continue
        if holder is not None:
            return Life.ALIVE, (f"{called} is held by {holder}",)
        evidence.append(f"{called} is free")
    return life, tuple(evidence)


def _without_lock(
    root: StoreRoot, spot: Spot, policy: StalePolicy, open_files: Callable[[], OpenFiles]
) -> tuple[Life, str]:
    path = spot.path(root.path)
    with opened_dir(path.parent) as folder:
        return disuse(walk_stats(folder, path.name), root.owner_uid, policy.grace(GRACE_NS), open_files)
