"""Whether an entry is garbage: what no valid locator names, judged by its page's lock.

All writers hold the page's exclusive lock while they make anything with its prefix, so under that lock no
age is needed. Only the safetensors library's own temporaries carry no prefix: those are judged by age.
"""

from __future__ import annotations

import os
import time

from hwctl.errors import from_os_error
from hwctl.fs.lock_holders import held_by_other
from hwctl.stores.base import Artifact, Death, Staleness, StalePolicy, State
from hwctl.stores.pageweights import layout
from hwctl.stores.pageweights.layout import Kind, parse_name
from hwctl.stores.pageweights.roots import Root

_LIBRARY_GRACE_NS = 3600 * 10**9
_WHY = {
    State.TEMPORARY: "it was never finished",
    State.ORPHAN: "no valid locator names it",
    State.INCOMPLETE: "its locator names files that are missing; the next access would remove it",
}


def judge(root: Root, artifact: Artifact, policy: StalePolicy) -> Staleness:
    """The verdict on one entry. Raises IoFailed when the lock or the file cannot be looked at."""
    why = _WHY.get(artifact.state)
    if why is None:
        return Staleness(Death.NOT_STALE)
    name = parse_name(artifact.path.name)
    if name.prefix is None:
        return _judge_library(root, artifact, policy)
    lock = layout.lock_name(name.prefix)
    try:
        holder = held_by_other(lock, root.fd)
    except FileNotFoundError:
        return Staleness(Death.PROVEN, (why, "its page has no lock file, so nobody holds it"))
    except OSError as exc:
        raise from_os_error(exc, f"cannot look at {lock}", root.path / lock) from exc
    if holder is not None:
        return Staleness(Death.LIVE, (f"its page is locked by {holder}",))
    evidence = "nobody holds its page's lock, and whoever writes a page holds it"
    return Staleness(Death.PROVEN, (why, evidence))


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
    grace = _LIBRARY_GRACE_NS if policy.older_than is None else policy.older_than
    age = time.time_ns() - max(st.st_mtime_ns, st.st_ctime_ns)
    if st.st_size != artifact.bytes:
        return Staleness(Death.LIVE, ("its size has changed since it was listed",))
    told = f"unchanged for {max(age, 0) // 10**9} s, a temporary of the safetensors library"
    if age < grace:
        return Staleness(Death.UNPROVEN, (told, f"left alone until it is {grace // 10**9} s old"))
    return Staleness(Death.PROVEN, (told,))
