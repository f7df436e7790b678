"""What the deleting verbs are pointed at: PATHs from the command line, or the roots they sweep by default."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from hwctl.cli import environment
from hwctl.cli.answer import Answer
from hwctl.core.plan import Target
from hwctl.errors import HwctlError, NotFound, Unsupported
from hwctl.stores import locate
from hwctl.stores.base import Family, Match, State, Store

SHARED_MEMORY = Path("/dev/shm")


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
    ) -> None:
        """``absent`` lets an entry be named that is not there yet; ``idle`` is meant as by ``locate``,
        ``sizes`` as by ``Store.scan``."""
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
                match = locate.locate(path, self._family, idle=self._idle)
                target = self._target(match, named=True)
            except HwctlError as exc:
                self._answer.fail(exc)
            else:
                found.setdefault((match.family, match.path), target)
        return list(found.values())

    def default(self) -> list[Target]:
        """HWCTL_ROOTS, else /dev/shm and the stores found in it."""
        roots = environment.roots()
        if roots:
            targets = self.named(roots)
            return [Target(target.store, target.artifact, named=False) for target in targets]
        try:
            found = locate.discover(SHARED_MEMORY, self._family)
        except HwctlError as exc:
            self._answer.fail(exc)
            return []
        return [target for match in found if (target := self._found(match)) is not None]

    def _found(self, match: Match) -> Target | None:
        """A store that nobody named; one that is not to be touched is passed over."""
        try:
            return self._target(match, named=False)
        except Unsupported as exc:
            self._answer.warn(f"{match.root}: left alone: {exc.message}")
            return None

    def _target(self, match: Match, *, named: bool) -> Target:
        store = self._stores.get((match.family, match.root))
        if store is None:
            store = self._stores[match.family, match.root] = locate.open_store(match)
        if store.frozen is not None:
            raise Unsupported(store.frozen, path=match.root)
        artifact = locate.entry(store, match, sizes=self._sizes)
        if artifact is not None and artifact.state is State.ABSENT and not self._absent:
            raise NotFound("there is no such entry", path=match.path)
        return Target(store, artifact, named)
