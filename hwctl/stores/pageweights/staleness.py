"""Whether an entry is garbage: what no valid locator names, judged by its page's lock.

All writers hold the page's exclusive lock while they make anything with its prefix, so under that lock no
age is needed; where the lock's file is gone, disuse has to be proven otherwise. Only the safetensors
library's own temporaries carry no prefix: those are judged by age. A pair whose locator lies in quarantine is
no garbage: its move was interrupted.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from hwctl.errors import from_os_error
from hwctl.fs.liveness import Life
from hwctl.fs.lock_holders import held_by_other
from hwctl.fs.openfiles import OpenFiles
from hwctl.fs.unused import GRACE_NS, disuse
from hwctl.stores.base import Artifact, Death, Staleness, StalePolicy, State
from hwctl.stores.pageweights import aside, layout
from hwctl.stores.pageweights.grouping import Names
from hwctl.stores.pageweights.layout import Kind, parse_name, quarantined_prefix
from hwctl.stores.pageweights.roots import Root

_LIBRARY_GRACE_NS = 3600 * 10**9
_LIVES = {Life.DEAD: Death.PROVEN, Life.ALIVE: Death.LIVE, Life.UNKNOWN: Death.UNPROVEN}
_WHY = {
    State.TEMPORARY: "it was never finished",
    State.ORPHAN: "no valid locator names it",
    State.INCOMPLETE: "its locator names files that are missing; the next access would remove it",
}


@dataclass(frozen=True, slots=True)
class Seen:
    """What a run over many entries looks at once for all of them: who has what open, the entries of the
    quarantine, and the names in the root by prefix."""

    open_files: Callable[[], OpenFiles]
    quarantine: Names
    names: Callable[[int, str], Iterable[str]]


def judge(root: Root, artifact: Artifact, policy: StalePolicy, seen: Seen) -> Staleness:
    """The verdict on one entry. Raises IoFailed when the lock or the file cannot be looked at."""
    name = parse_name(artifact.path.name)
    prefix = quarantined_prefix(artifact.path.name) or name.prefix
    why, keeps = _WHY.get(artifact.state), False
    if artifact.state is State.QUARANTINED and aside.is_hollow(root, artifact.path.name):
        why = "an entry of the quarantine that holds no file of a page"
    elif artifact.state is State.ORPHAN and prefix is not None and name.key is not None:
        entry = aside.interrupted(root, prefix, name.key, seen.quarantine)
        if entry is not None:
            why, keeps = f"a move into quarantine that was not finished; its locator lies in {entry}", True
    if why is None:
        return Staleness(Death.NOT_STALE)
    if prefix is None:
        return _judge_library(root, artifact, policy)
    lock = layout.lock_name(prefix)
    try:
        holder = held_by_other(lock, root.fd, trying=not policy.looking)
    except FileNotFoundError:
        life, clause = _without_lock(root, artifact, prefix, policy, seen)
        evidence = ("its page has no lock file, which tells nothing", clause)
        return Staleness(_LIVES[life], (why, *evidence), keeps, lockless=True)
    except OSError as exc:
        raise from_os_error(exc, f"cannot look at {lock}", root.path / lock) from exc
    if holder is not None:
        return Staleness(Death.LIVE, (f"its page is locked by {holder}",), keeps)
    free = "nobody holds its page's lock, and whoever writes a page holds it"
    return Staleness(Death.PROVEN, (why, free), keeps)


def _without_lock(
    root: Root, artifact: Artifact, prefix: str, policy: StalePolicy, seen: Seen
) -> tuple[Life, str]:
    """Whether nobody is at work on it, as the newest change and open files of its prefix tell."""
    try:
        names = seen.names(root.fd, prefix)
        stats = [os.stat(name, dir_fd=root.fd, follow_symlinks=False) for name in names]
    except FileNotFoundError:
        return Life.ALIVE, "somebody removes files of its prefix right now"
    except OSError as exc:
        raise from_os_error(exc, "cannot look at the files of its prefix", artifact.path) from exc
    return disuse(stats, root.place.uid, policy.grace(GRACE_NS), seen.open_files)


def _judge_library(root: Root, artifact: Artifact, policy: StalePolicy) -> Staleness:
    """``.tmpXXXXXX``: nobody knows whose it is, so only age speaks, of its bytes and of its inode."""
    name = artifact.path.name
    if parse_name(name).kind is not Kind.LIBRARY_TEMPORARY:
        return Staleness(Death.NOT_STALE)
    try:
        st = os.stat(name, dir_fd=root.fd, follow_symlinks=False)
    except FileNotFoundError:
        return Staleness(Death.PROVEN, ("it is gone",))
    except OSError as exc:
        raise from_os_error(exc, f"cannot look at {name}", artifact.path) from exc
    grace = policy.grace(_LIBRARY_GRACE_NS)
    age = time.time_ns() - max(st.st_mtime_ns, st.st_ctime_ns)
    if st.st_size != artifact.bytes:
        return Staleness(Death.LIVE, ("its size has changed since it was listed",))
    told = f"unchanged for {max(age, 0) // 10**9} s, a temporary of the safetensors library"
    if age < grace:
        return Staleness(Death.UNPROVEN, (told, f"left alone until it is {grace // 10**9} s old"))
    return Staleness(Death.PROVEN, (told,))
