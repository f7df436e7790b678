"""Whether an entry is the leftover of somebody who is dead, and how we know.

A publisher holds the build lock for as long as it lives, a mover the exclusive artifact lock: a free lock is
the proof. The pid in a name is only more evidence. What is planned on is seen without keeping any lock; the
proof that counts is the lock that reclaiming then takes.
"""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

from hwctl.fs.liveness import proc_stat
from hwctl.fs.lock_holders import held_by_other
from hwctl.stores.base import Artifact, Death, Staleness, StalePolicy, State
from hwctl.stores.hostweights import layout
from hwctl.stores.hostweights.layout import CLEANUP, INIT_LOCK, LOCKS, STICKY, WRITE_BITS, Place
from hwctl.stores.hostweights.places import Spot
from hwctl.stores.hostweights.store_root import StoreRoot


def judge(root: StoreRoot, spot: Spot, artifact: Artifact, policy: StalePolicy) -> Staleness:
    """The verdict on one entry. OSError passes through; HwctlError when a lock cannot be asked."""
    what = _leftover(root, spot, artifact)
    if what is None:
        return Staleness(Death.NOT_STALE, (f"its state is {artifact.state}",))
    age = time.time_ns() - (artifact.last_used or 0)
    if policy.older_than is not None and age < policy.older_than:
        return Staleness(Death.NOT_STALE, (what, f"it changed {age // 10**9} s ago"))
    if spot.key is None:
        return _by_locks(root, what, (INIT_LOCK,), None)
    pid = artifact.detail.get("publisher_pid")
    locks = (layout.build_lock(spot.key), layout.artifact_lock(spot.key))
    # Only the build lock stands for a publisher; readers of the key's artifact do not keep staging alive.
    wanted = locks[:1] if spot.place is Place.STAGING else locks
    return _by_locks(root, what, wanted, pid if isinstance(pid, int) else None)


def _leftover(root: StoreRoot, spot: Spot, artifact: Artifact) -> str | None:
    """What kind of leftover it would be, None for an entry that is none."""
    if artifact.state in (State.STAGING, State.TEMPORARY, State.ORPHAN):
        return {
            State.STAGING: "staging of a publication",
            State.TEMPORARY: artifact.reason or "a temporary",
            State.ORPHAN: "a deny marker without an artifact",
        }[artifact.state]
    if artifact.state is State.QUARANTINED:
        parsed = layout.parse_quarantine(spot.name)
        if parsed is not None and parsed.reason == CLEANUP:
            return "a removal that was not finished"
        return (
            "a move into quarantine that was not finished" if artifact.detail.get("unfinished_move") else None
        )
    if spot.place is Place.ARTIFACT and _is_half_moved(spot.path(root.path)):
        return "a publication or a move that was not finished (mode 01755)"
    return None


def _is_half_moved(path: Path) -> bool:
    """Sticky and writable: on its way in or out. Sticky alone is a denial, and stays for a person."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(mode) and bool(mode & STICKY) and bool(mode & WRITE_BITS)


def _by_locks(root: StoreRoot, what: str, names: tuple[str, ...], pid: int | None) -> Staleness:
    evidence = [what]
    for name in names:
        # KEY.build.lock: whose it is says the entry that all this is about.
        called = f"its {name.split('.')[-2]} lock"
        try:
            holder = held_by_other(root.path / LOCKS / name)
        except (FileNotFoundError, NotADirectoryError):
            if name == names[0] and pid is not None and proc_stat(pid) is not None:
                # Somebody removed the lock file: then a free name proves nothing about its holder.
                return Staleness(
                    Death.UNPROVEN, (what, f"{called} is gone, and a process of pid {pid} lives")
                )
            evidence.append(f"{called} is not there, so nobody holds it")
            continue
        if holder is not None:
            return Staleness(Death.LIVE, (what, f"{called} is held by {holder}"))
        evidence.append(f"{called} is free")
    if pid is not None:
        alive = proc_stat(pid) is not None
        evidence.append(f"pid {pid} is {'another process now' if alive else 'gone'}")
    return Staleness(Death.PROVEN, tuple(evidence))
