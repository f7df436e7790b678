"""Hold artifacts for a command: take the shared leases, verify, and say what the command has to know.

The leases come before the check, so that what was verified is what is held. Becoming the command, with its
environment and its exit statuses, is left to ``cli``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from hwctl.core.act import changed
from hwctl.core.plan import Target
from hwctl.core.verify import wait_until_ready
from hwctl.errors import Busy, Damaged, NotFound, Refused, in_short
from hwctl.fs.deadline import Deadline
from hwctl.fs.lock_table import Mode
from hwctl.fs.locks import Held
from hwctl.stores.base import Artifact, CheckOptions, Family, Level, Report, State, Store


@dataclass(frozen=True, slots=True)
class Holding:
    """Artifacts that were found sound and are leased, in the order they were named."""

    artifacts: tuple[Artifact, ...]
    reports: tuple[Report, ...]
    locks: tuple[Held, ...]

    def hand_over(self) -> tuple[int, ...]:
        """Let a program started by exec keep the leases; the descriptors to tell it of."""
        for held in self.locks:
            held.inheritable()
        return tuple(held.fd for held in self.locks)


@contextmanager
def holding(
    targets: Sequence[Target], level: Level, options: CheckOptions, wait: Deadline
) -> Iterator[Holding]:
    """Lease and verify every target; the leases end with the block, or live on through ``hand_over``.

    Waits for locks and for an artifact that is still being built. Raises Busy, NotFound, Refused for a page
    or a whole store, and Unsound.
    """
    artifacts: list[Artifact] = []
    reports: list[Report] = []
    locks: list[Held] = []
    with ExitStack() as leases:
        for target in targets:
            planned = wait_until_ready(target.store, _holdable(target), wait)
            if planned.state is State.STAGING:
                raise Busy("is still being built", path=planned.path)
            lease = leases.enter_context(target.store.lease(planned, Mode.SHARED, wait, create=True))
            report = _checked(target.store, planned, level, options)
            artifacts.append(report.artifact)
            reports.append(report)
            locks.extend(lease.locks)
        yield Holding(tuple(artifacts), tuple(reports), tuple(locks))


def _holdable(target: Target) -> Artifact:
    artifact = target.artifact
    if artifact is None:
        raise Refused("a whole store cannot be held; name an artifact", path=target.store.root)
    if artifact.family is Family.PAGEWEIGHTS:
        # Its own program locks a page exclusively on every access: a held page would stop that program.
        why = "a page cannot be held: the page cache's own program would have to wait for it"
        raise Refused(why, path=artifact.path)
    if artifact.state is State.QUARANTINED:
        raise Refused("is quarantined", path=artifact.path)
    return artifact


def _checked(store: Store, planned: Artifact, level: Level, options: CheckOptions) -> Report:
    """Check the entry as it is now that the lease is held. Raises Unsound."""
    now = store.look(planned)
    if now is None:
        raise NotFound("is gone", path=planned.path)
    difference = changed(planned, now)
    if difference is not None:
        raise Busy(difference, path=planned.path)
    report = store.check(now, level, options)
    if not report.valid:
        raise Unsound(report)
    return report


class Unsound(Damaged):
    """An artifact that was checked and must not be used; ``report`` is what was found."""

    def __init__(self, report: Report) -> None:
        message = f"is not sound: {in_short(report.findings)}"
        super().__init__(message, report.findings, path=report.artifact.path)
        self.report = report
