"""What an eviction may take, in which order, and when it has taken enough. Pure: facts in, answers out.

The limits are of two kinds. *Targets* (``max_size``, ``min_free``, ``keep``) concern the whole store and are
reached by taking the oldest first, not one more than needed. *Terms* (``older_than``, ``everything``) make
each entry due by itself.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from hwctl.stores.base import AT_REST, Artifact, State

BUDGET = "budget"
"""What binds a store when ``max_size`` does."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What was asked for; sizes in bytes, ``older_than`` in nanoseconds. None is no limit."""

    max_size: int | None = None
    min_free: int | None = None
    older_than: int | None = None
    keep: int | None = None
    everything: bool = False

    @property
    def targets(self) -> bool:
        return self.max_size is not None or self.min_free is not None or self.keep is not None

    @property
    def any(self) -> bool:
        return self.targets or self.older_than is not None or self.everything


@dataclass(frozen=True, slots=True)
class Filters:
    """Which entries may be taken at all. Globs are matched against keys; ``min_age`` is in nanoseconds."""

    match: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    min_age: int | None = None
    quarantined: bool = False

    def take(self, artifact: Artifact) -> bool:
        """Whether the entry is one of those the caller speaks of."""
        states = frozenset({State.QUARANTINED}) if self.quarantined else AT_REST
        return artifact.state in states and matches(artifact.key, self.match, self.exclude)

    def too_young(self, artifact: Artifact, now: int) -> bool:
        """Whether ``min_age`` protects it. A creation time in the future protects nothing."""
        if self.min_age is None or artifact.created is None or artifact.created > now:
            return False
        return now - artifact.created < self.min_age


def matches(key: str, match: Sequence[str], exclude: Sequence[str] = ()) -> bool:
    """Shell globs on a key: any of ``match`` (or none given), and none of ``exclude``."""
    wanted = not match or any(fnmatchcase(key, glob) for glob in match)
    return wanted and not any(fnmatchcase(key, glob) for glob in exclude)


def used_at(artifact: Artifact) -> int:
    """Last use as its clock has it, be it in the future or before 1970; never used counts as made."""
    used = artifact.last_used if artifact.last_used is not None else artifact.created
    return used or 0


def clock(artifact: Artifact, now: int) -> int:
    """Last use as far as it can be true: neither in the future nor before 1970."""
    return min(max(used_at(artifact), 0), now)


def oldest_first(artifacts: Iterable[Artifact]) -> list[Artifact]:
    """The one order of an eviction: by last use, then by key, so that the same store gives the same order.

    A clock that cannot be true still says which of two was used later.
    """
    return sorted(artifacts, key=lambda artifact: (used_at(artifact), artifact.key, str(artifact.path)))


def due(artifact: Artifact, limits: Limits, now: int) -> bool:
    """Whether a term makes this entry go whatever the rest of the store is like."""
    if limits.everything:
        return True
    return limits.older_than is not None and now - clock(artifact, now) > limits.older_than


class Measure(enum.StrEnum):
    """What a target is measured in."""

    SIZE = "size"
    FREE = "free"
    COUNT = "count"


@dataclass(frozen=True, slots=True)
class Shortfall:
    """A target that is not reached: how much is too much (or too little), and what bound it."""

    measure: Measure
    wanted: int
    have: int
    bound_by: str

    @property
    def remainder(self) -> int:
        return abs(self.wanted - self.have)


@dataclass(frozen=True, slots=True)
class Ledger:
    """How the store stands against its targets while entries go.

    ``size`` is counted as the family counts, ``free`` is what the file system has, ``count`` how many
    entries of those the caller speaks of are left. ``room`` is the most the file system or the cgroup
    could ever hold, and ``room_bound`` which of them it is (EVI-07).
    """

    limits: Limits
    size: int
    free: int
    count: int
    room: int
    room_bound: str

    def without(self, artifact: Artifact, freed: int) -> Ledger:
        """The ledger after an entry went and gave ``freed`` bytes back."""
        gain = _counted(artifact)
        return replace(self, size=self.size - artifact.bytes, free=self.free + freed, count=self.count - gain)

    def binding(self) -> tuple[int, str]:
        """The most the store may hold, and what sets it: the budget, the file system or the cgroup."""
        budget = self.room if self.limits.max_size is None else self.limits.max_size
        return (budget, BUDGET) if budget < self.room else (self.room, self.room_bound)

    def shortfalls(self) -> tuple[Shortfall, ...]:
        """Every target not reached yet."""
        short = []
        limits = self.limits
        most, bound = self.binding()
        if limits.max_size is not None and self.size > most:
            short.append(Shortfall(Measure.SIZE, most, self.size, bound))
        if limits.min_free is not None and self.free < limits.min_free:
            short.append(Shortfall(Measure.FREE, limits.min_free, self.free, "min-free"))
        if limits.keep is not None and self.count > limits.keep:
            short.append(Shortfall(Measure.COUNT, limits.keep, self.count, "keep"))
        return tuple(short)

    def nearer_than(self, before: Ledger) -> bool:
        """Whether some target that is missed is nearer than it was."""
        return self._gains_by(before.size - self.size, self.free - before.free, before.count - self.count)

    def helped_by(self, artifact: Artifact, freed: int) -> bool:
        """Whether some target comes nearer when this entry goes and gives ``freed`` bytes back."""
        return self._gains_by(artifact.bytes, freed, _counted(artifact))

    def _gains_by(self, size: int, free: int, count: int) -> bool:
        """Whether a target that is missed comes nearer by so much less size, more room or fewer entries."""
        gains = {Measure.SIZE: size, Measure.FREE: free, Measure.COUNT: count}
        return any(gains[short.measure] > 0 for short in self.shortfalls())


def _counted(artifact: Artifact) -> int:
    """How much an entry is of ``count``: garbage takes room, but --keep speaks of what is of use."""
    return 0 if artifact.state is State.ORPHAN else 1
