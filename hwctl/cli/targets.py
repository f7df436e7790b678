"""What verbs are pointed at: PATHs from the command line, else HWCTL_ROOTS, else the stores in /dev/shm.

What was named, by the caller or by HWCTL_ROOTS, and cannot be dealt with is a failure of the run. What was
only met in /dev/shm is not: it may be anybody's, so it is passed over with a warning.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hwctl.cli import environment
from hwctl.cli.answer import Answer
from hwctl.cli.exits import as_failure
from hwctl.errors import HwctlError, NotFound, Unsupported
from hwctl.fs.deadline import Deadline
from hwctl.stores import locate
from hwctl.stores.base import Family, Match, State, Store

if TYPE_CHECKING:
    from hwctl.core.plan import Target

SHARED_MEMORY = Path("/dev/shm")


def stated(paths: Iterable[Path]) -> list[Path]:
    """The PATHs that were given, else HWCTL_ROOTS; none when the stores in /dev/shm are meant."""
    return [*paths] or [*environment.roots()]


def order(match: Match) -> tuple[str, str, str]:
    """Sorts by family, store and key, as all output is."""
    return (match.family.value, str(match.root), match.key or "")


def swept(answer: Answer, family: Family | None) -> list[Match]:
    """The stores in /dev/shm, sorted by family and root."""
    try:
        return sorted(locate.discover(SHARED_MEMORY, family), key=order)
    except HwctlError as exc:
        answer.fail(exc)
        return []


@contextmanager
def passing_over(answer: Answer, root: Path) -> Iterator[None]:
    """Deal with a store that was only met: whatever stands in the way is a warning, and the rest goes on."""
    try:
        yield
    except (HwctlError, OSError) as exc:
        answer.warn(f"{root}: left alone: {as_failure(exc, 'cannot be looked at').message}")


class Resolver:
    """Turns paths into targets; each store is opened once, and a path that leads nowhere becomes a failure
    of the run that does not stop the others."""

    def __init__(
        self,
        answer: Answer,
        family: Family | None,
        *,
        absent: bool = False,
        idle: bool = False,
        sizes: bool = True,
        wait: Deadline | None = None,
    ) -> None:
        """``absent`` lets an entry be named that is not there yet, and ``wait`` bounds how long its store may
        take to come; ``idle`` is meant as by ``locate``, ``sizes`` as by ``Store.scan``."""
        self._wait = wait
        self._idle = idle
        self._sizes = sizes
        self._answer = answer
        self._family = family
        self._absent = absent
        self._stores: dict[tuple[Family, Path], Store] = {}

    def named(self, paths: Iterable[Path]) -> list[Target]:
        """The stores and entries that a person named, each once, in the order given."""
        found: dict[tuple[Family, Path], Target] = {}
        for path in paths:
            try:
                if self._wait is None:
                    match = locate.locate(path, self._family, idle=self._idle)
                else:
                    match = locate.locate_in_time(path, self._family, self._wait)
                target = self._target(match)
            except HwctlError as exc:
                self._answer.fail(exc)
            else:
                found.setdefault((match.family, target.path), target)
        return list(found.values())

    def given(self, paths: Sequence[Path]) -> list[Target]:
        """What the paths name, else the stores of HWCTL_ROOTS, else those that are met in /dev/shm."""
        if paths:
            return self.named(paths)
        if roots := stated(()):
            return [replace(target, named=False) for target in self.named(roots)]
        targets: list[Target] = []
        for match in swept(self._answer, self._family):
            with passing_over(self._answer, match.root):
                targets.append(replace(self._target(match), named=False, met=True))
        return targets

    def _target(self, match: Match) -> Target:
        from hwctl.core.plan import Target  # inspect, too, sweeps, and makes no plan

        store = self._stores.get((match.family, match.root))
        if store is None:
            store = self._stores[match.family, match.root] = locate.open_store(match)
        if store.frozen is not None:
            raise Unsupported(store.frozen, path=match.root)
        artifact = locate.entry(store, match, sizes=self._sizes)
        if artifact is not None and artifact.state is State.ABSENT and not self._absent:
            raise NotFound("there is no such entry", path=match.path)
        return Target(store, artifact)


def called(
    answer: Answer, targets: Iterable[Target], names: Iterable[str], states: Collection[State] | None = None
) -> list[Target]:
    """The entries of these names or keys, looked for in the stores of ``targets``; one that is not found is a
    failure that stops no other. ``states`` are those that ``core.quarantine.find`` looks for unless given."""
    from hwctl.core.quarantine import MAY_BE_RESTORED, find

    stores = [target.store for target in targets if _listed(answer, target)]
    found = []
    for name in names:
        try:
            found.append(find(stores, name, MAY_BE_RESTORED if states is None else states))
        except HwctlError as exc:
            answer.fail(exc)
    return found


def once(targets: Iterable[Target]) -> list[Target]:
    """Each target once, in the order given: a path, a name and a key may all mean the same entry."""
    found: dict[tuple[Family, Path], Target] = {}
    for target in targets:
        found.setdefault((target.store.family, target.path), target)
    return list(found.values())


def _listed(answer: Answer, target: Target) -> bool:
    """Whether a store can be searched. One that was only met, and cannot, hides no name from the others."""
    if not target.met:
        return True
    with passing_over(answer, target.path):
        for _ in target.store.scan(sizes=False):
            pass
        return True
    return False
