"""What every family of store has in common: the artifact as a value, and the Store protocol.

The verbs in ``core`` are written once over this protocol. It owns vocabulary and shapes only; how a
family lays out, judges, locks and removes its artifacts lives in that family's ``store.py``.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from hwctl.errors import Finding
from hwctl.fs.deadline import Deadline
from hwctl.fs.lock_table import Entry, Mode
from hwctl.fs.locks import Held
from hwctl.fs.openfiles import User
from hwctl.fs.remove import Removed as Removed

Advance = Callable[[int], None]
"""Told of every stretch of bytes that was worked through, for progress and pace."""


def silent(_count: int) -> None:
    """An Advance that tells nobody."""


class Family(enum.StrEnum):
    HOSTWEIGHTS = "hostweights"
    KTINT8 = "ktint8"
    PAGEWEIGHTS = "pageweights"


class State(enum.StrEnum):
    """Where an entry stands, as far as its place and its marker files tell."""

    STAGING = "staging"
    READY = "ready"
    INCOMPLETE = "incomplete"
    DAMAGED = "damaged"
    CONSUMING = "consuming"
    DENIED = "denied"
    QUARANTINED = "quarantined"
    TEMPORARY = "temporary"
    ORPHAN = "orphan"
    FOREIGN = "foreign"
    UNREADABLE = "unreadable"
    VANISHED = "vanished"
    ABSENT = "absent"


UNFIT = frozenset({State.INCOMPLETE, State.DAMAGED, State.DENIED})
"""States of an artifact in its place that no reader takes: verify calls it damaged."""

AT_REST = UNFIT | {State.READY}
"""Artifacts in their place, which may be set aside or evicted. What is being made or used up is for
reclaim-stale to judge, evidence in hand."""


class Level(enum.StrEnum):
    """How deep a check looks; each level includes the ones before it."""

    MARKER = "marker"
    SIZE = "size"
    FULL = "full"


class Content(enum.StrEnum):
    """Whether the rules about the tensors' values were looked at."""

    CHECKED = "checked"
    NOT_CHECKED = "not-checked"
    NOT_ASKED = "not-asked"


@dataclass(frozen=True, slots=True)
class Holders:
    """Who holds an artifact's locks, read from /proc/locks without taking any."""

    shared: int = 0
    exclusive: int = 0
    pids: tuple[int, ...] = ()

    @classmethod
    def of(cls, entries: Collection[Entry]) -> Holders:
        """Those of some locks. One in another pid namespace is counted, but has no pid here."""
        modes = Counter(entry.mode for entry in entries)
        pids = sorted({entry.pid for entry in entries if entry.pid > 0})
        return cls(modes[Mode.SHARED], modes[Mode.EXCLUSIVE], tuple(pids))


@dataclass(frozen=True, slots=True)
class Artifact:
    """One entry of a store, as a scan saw it.

    ``bytes`` is counted as the family counts (st_size), ``allocated`` is what the disk gave
    (st_blocks * 512, each inode once). ``created`` and ``last_used`` are nanoseconds since the epoch.
    ``inode`` is (device, inode) of ``path``, so that a later look can tell a successor of the same name.
    ``detail`` holds the family's own facts, JSON-ready.
    """

    family: Family
    store: Path
    key: str
    path: Path
    state: State
    bytes: int = 0
    allocated: int = 0
    files: int = 0
    created: int | None = None
    last_used: int | None = None
    leases: Holders = Holders()
    inode: tuple[int, int] | None = None
    owner_uid: int | None = None
    reason: str | None = None
    detail: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """How a check may go about it. ``expected`` is the family's own type (identity, authority, geometry).

    ``restoring`` judges an entry as it would stand once moved back: its place in quarantine, a deny
    marker and the sticky bit are no findings then, everything else is.
    """

    jobs: int = 1
    rate: int | None = None
    deadline: Deadline = field(default_factory=Deadline.never)
    wait: Deadline = field(default_factory=Deadline.now)
    advance: Advance = silent
    expected: object | None = None
    restoring: bool = False


@dataclass(frozen=True, slots=True)
class Report:
    """What a check found: every finding, in the family's order of checks."""

    artifact: Artifact
    level: Level
    findings: tuple[Finding, ...]
    checked_bytes: int = 0
    content: Content = Content.NOT_ASKED
    warnings: tuple[str, ...] = ()

    @property
    def valid(self) -> bool:
        return not self.findings


@dataclass(frozen=True, slots=True)
class Lease:
    """Locks taken for one artifact, in the order they were taken. Empty means there was nothing to lock."""

    locks: tuple[Held, ...] = ()

    def release(self) -> None:
        """Let go in reverse order. In a forked child this closes and never unlocks."""
        for held in reversed(self.locks):
            held.release()

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.release()


class Death(enum.Enum):
    """The answer to "may this be reclaimed?". Only PROVEN may be removed."""

    PROVEN = "stale"
    LIVE = "live"
    UNPROVEN = "unproven"
    NOT_STALE = "not-stale"


@dataclass(frozen=True, slots=True)
class StalePolicy:
    """What the caller allows reclaim-stale to count as dead.

    ``older_than`` (ns) replaces a family's own grace times; None keeps them. ``looking`` is for whoever only
    shows the verdict: no lock is tried then, not even for a moment.
    """

    older_than: int | None = None
    leaseless: bool = False
    ready: bool = False
    other_users: bool = False
    looking: bool = False

    def grace(self, own_ns: int) -> int:
        """How long nothing may have changed, in ns, where the family itself would wait ``own_ns``."""
        return own_ns if self.older_than is None else self.older_than


@dataclass(frozen=True, slots=True)
class Staleness:
    """A verdict with the evidence for it, one clause each, fit to be shown to an operator.

    ``keeps`` says that a move was interrupted, and nothing is garbage: the entry is set aside, not removed.
    ``lockless`` says that its lock has no file, so that the verdict holds only until somebody makes one.
    """

    death: Death
    evidence: tuple[str, ...] = ()
    keeps: bool = False
    lockless: bool = False


@dataclass(frozen=True, slots=True)
class Size:
    """How much something is: apparent ``bytes``, and ``allocated`` as the disk gave them, each inode once."""

    bytes: int
    allocated: int


@dataclass(frozen=True, slots=True)
class Match:
    """PATH as a family recognised it, by names and markers only.

    Every family's ``locating.py`` offers ``recognise(path) -> Match | None``; ``locate`` opens its store.
    ``recognise`` gets an absolute path whose parents are resolved and whose last component may be a link,
    damaged or absent. Place counts before content: what lies inside a recognised root is that root's entry
    even when its own markers are damaged or it does not exist.

    For a whole store ``path`` is the root and ``key`` is None. For an entry, ``store.look`` must answer for
    an Artifact that holds just this family, store, key and path (with state ABSENT).
    """

    family: Family
    root: Path
    path: Path
    key: str | None = None


class Store(Protocol):
    """One store of one family. All methods may raise HwctlError for "could not find out" and "refused"."""

    @property
    def family(self) -> Family: ...

    @property
    def root(self) -> Path: ...

    @property
    def owner_uid(self) -> int:
        """The uid that owns the root; readers judge against it, writers must be it."""
        ...

    @property
    def faults(self) -> tuple[Finding, ...]:
        """What is wrong with the store itself, for which its readers would not open it; mostly nothing."""
        ...

    @property
    def frozen(self) -> str | None:
        """Why nothing may be changed in the whole store, such as a schema that is not known; None mostly."""
        ...

    def actor(self, artifact: Artifact) -> int:
        """The uid that may change this entry: the root's owner, or a tree's own owner in a shared base."""
        ...

    def size(self) -> Size:
        """What is in the store as the family counts it against a budget, files it does not know included."""
        ...

    def budget(self) -> int | None:
        """Bytes that ``size`` is to stay below, as the store's own policy or the family's formula says."""
        ...

    def documents(self, artifact: Artifact) -> Mapping[str, bytes]:
        """The small documents of an entry as they lie there (manifest, marker, receipt), by name, bounded.

        For showing them to a person: nothing is judged, and one that cannot be read is left out.
        """
        ...

    def model(self, artifact: Artifact) -> str | None:
        """What an entry was made of, as its own documents name it; None where they do not, or are damaged.

        For showing it to a person: nothing is judged, no payload is read, and of a long manifest only the
        beginning. ``scan`` does not ask, so that only who shows it pays for it.
        """
        ...

    def fault(self, artifact: Artifact) -> str | None:
        """Why a ready entry is none after all, as far as that shows without reading it; like ``model`` for
        showing only. None proves nothing: that takes ``check``. Raises where not even that can be seen.
        """
        ...

    def scan(self, *, sizes: bool = True) -> Iterator[Artifact]:
        """Every entry, damaged and foreign ones too, sorted by key; no payload is read, no lock taken.

        Without ``sizes`` those that only a walk through a tree would tell are 0.
        """
        ...

    def look(self, artifact: Artifact, *, sizes: bool = True) -> Artifact | None:
        """The same entry as it is now (same path), or None when it is gone; ``sizes`` as for ``scan``."""
        ...

    def check(self, artifact: Artifact, level: Level, options: CheckOptions) -> Report:
        """Judge an artifact under its shared lease. Damage is in the report; exceptions mean "unknown"."""
        ...

    def lease(self, artifact: Artifact, mode: Mode, deadline: Deadline, *, create: bool = False) -> Lease:
        """Take the family's locks in the family's order, or raise Busy.

        SHARED opens existing lock files only, unless ``create``; EXCLUSIVE is what removing, setting aside
        and restoring need, and creates what it must.
        """
        ...

    def stale(self, artifact: Artifact, policy: StalePolicy) -> Staleness:
        """Whether the entry's producer is proven dead, with the evidence.

        Asked once while planning and again under the exclusive lease: a lock that this very process
        holds is therefore no sign of life.
        """
        ...

    def deny(self, artifact: Artifact, reason: str) -> bool:
        """Turn new readers away from an artifact that is leased right now, without moving it (QUA-03).

        Must not need free space. False where a family has no such mark.
        """
        ...

    def mark_used(self, artifact: Artifact) -> None:
        """Note that a holder was met, for families whose clock of last use hwctl keeps (EVI-01)."""
        ...

    def set_aside(self, artifact: Artifact, reason: str) -> Artifact:
        """Move into quarantine, durably, under an exclusive lease held by the caller; the new entry.

        A move that was interrupted is brought to its end.
        """
        ...

    def restore(self, artifact: Artifact) -> Artifact:
        """Move a quarantined (or lift a merely denied) entry back; never over an existing one."""
        ...

    def users(self, artifact: Artifact, *, certain: bool = False) -> tuple[User, ...]:
        """Who uses an entry without a lease, where a family's own programs take none.

        ``certain`` is for whoever holds the exclusive lease and is about to act: what was seen before that
        does not count, and where it cannot be seen at all that is Refused.
        """
        ...

    def removable(self, artifact: Artifact) -> str | None:
        """Why an entry at rest must not be deleted, None when it may be.

        Where nobody can say which files are the family's own, it is set aside instead.
        """
        ...

    def remove(self, artifact: Artifact) -> Removed:
        """Delete for good, under an exclusive lease held by the caller; vanished files are success."""
        ...

    def sweep(self, deadline: Deadline) -> AbstractContextManager[None]:
        """Held around a whole eviction: one at a time, so that no two make the same room twice."""
        ...
