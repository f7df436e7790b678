"""What the folder of an artifact shows by its two documents, of which only the marker is read.

Whether a ready one looks as its publisher left it is for ``glance``, whether it is sound for ``checks``.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass

from hwctl.fs.paths import kind_of, opened_dir, read_document
from hwctl.stores.base import State
from hwctl.stores.hostweights import canonical
from hwctl.stores.hostweights.fields import Problems
from hwctl.stores.hostweights.layout import MANIFEST, READY, Place
from hwctl.stores.hostweights.manifest import parse_ready
from hwctl.stores.hostweights.places import Spot

_READY_LIMIT = 1 << 20


@dataclass(frozen=True, slots=True)
class Look:
    """What an artifact directory shows without its payloads being read.

    ``created_ns`` is when the manifest was written, ``ready_ns`` the marker's mtime, which is a clock of
    last use as well.
    """

    state: State = State.INCOMPLETE
    reason: str | None = None
    created_ns: int | None = None
    ready_ns: int | None = None
    publication_id: str | None = None


def look_inside(parent: int, spot: Spot, st: os.stat_result) -> Look:
    """The look of an entry in ``parent``, empty for what is no artifact. PermissionError passes through."""
    if not stat.S_ISDIR(st.st_mode) or spot.place not in (Place.ARTIFACT, Place.QUARANTINE):
        return Look()
    with opened_dir(spot.name, dir_fd=parent) as fd:
        created, problem = _manifest_facts(fd)
        ready_ns: int | None = None
        try:
            document = read_document(READY, dir_fd=fd, limit=_READY_LIMIT)
            ready_ns = document.stat.st_mtime_ns
            problems = Problems(READY)
            ready = parse_ready(canonical.parse(document.data).value, problems)
        except FileNotFoundError:
            return Look(State.INCOMPLETE, f"{READY} is missing", created)
        except PermissionError:
            raise
        except (OSError, canonical.BadDocument) as exc:
            reason = exc.strerror if isinstance(exc, OSError) else str(exc)
            return Look(State.DAMAGED, f"{READY} {reason}", created, ready_ns)
    if ready is None:
        return Look(State.DAMAGED, problems.found[0].message, created, ready_ns)
    state = State.READY if problem is None else problem[0]
    return Look(state, None if problem is None else problem[1], created, ready_ns, ready.publication_id)


def _manifest_facts(fd: int) -> tuple[int | None, tuple[State, str] | None]:
    """When the manifest was written, and what is wrong with the file that should hold it."""
    try:
        st = os.stat(MANIFEST, dir_fd=fd, follow_symlinks=False)
    except FileNotFoundError:
        return None, (State.INCOMPLETE, f"{MANIFEST} is missing")
    if not stat.S_ISREG(st.st_mode):
        return None, (State.DAMAGED, f"{MANIFEST} is a {kind_of(st.st_mode)}")
    return st.st_mtime_ns, None
