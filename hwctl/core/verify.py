"""Verify: which entries to check, in what order and how many at once, and what the answer is for each.

Judging an entry is the family's business (``Store.check``). Here damage is kept apart from "could not find
out" (VER-10), an artifact that is still being built from one that is missing (LEA-05), and nothing that
goes wrong with one entry keeps the others from being looked at. Nothing is ever written.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hwctl.core.absence import explain, of_staging
from hwctl.errors import Busy, Finding, HwctlError, NotFound, Status, Unsupported, from_os_error
from hwctl.fs.deadline import Deadline
from hwctl.stores.base import (
    UNFIT,
    Artifact,
    CheckOptions,
    Level,
    Report,
    State,
    Store,
)

CHECKED_STATES = frozenset(
    {
        State.READY,
        State.INCOMPLETE,
        State.DAMAGED,
        State.CONSUMING,
        State.DENIED,
        State.UNREADABLE,
    }
)
"""What a check of a whole store looks at: all that a reader could take for an artifact. Staging,
quarantine, leftovers and strangers are counted and passed over."""


@dataclass(frozen=True, slots=True)
class Subject:
    """One entry to check; ``named`` says that the caller asked for this very one."""

    store: Store
    artifact: Artifact
    named: bool = True
    expected: object | None = None


@dataclass(frozen=True, slots=True)
class Selection:
    """What to check, sorted and without repetition, and what was passed over, by state."""

    subjects: tuple[Subject, ...]
    skipped: Mapping[State, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer for one entry: a report, or why there is none.

    ``mendable`` says that setting the artifact aside and publishing it again would help: it is in place,
    and what is wrong is not the store.
    """

    artifact: Artifact
    status: Status
    report: Report | None = None
    error: HwctlError | None = None
    mendable: bool = False


def whole(store: Store) -> tuple[list[Subject], Counter[State]]:
    """Every entry of a store that a reader could take for an artifact, and the count of all others."""
    subjects, skipped = [], Counter[State]()
    for artifact in store.scan():
        if artifact.state in CHECKED_STATES:
            subjects.append(Subject(store, artifact, named=False))
        else:
            skipped[artifact.state] += 1
    return subjects, skipped


def of_itself(store: Store, level: Level) -> Verdict | None:
    """The answer for a store without anything to check, where the store itself is wrong; else None.

    With artifacts it is theirs: no reader can open them.
    """
    artifact = Artifact(store.family, store.root, "", store.root, State.DAMAGED, owner_uid=store.owner_uid)
    if store.frozen is not None:
        return Verdict(artifact, Status.UNSUPPORTED, error=Unsupported(store.frozen, path=store.root))
    if not store.faults:
        return None
    artifact = replace(artifact, reason=store.faults[0].message)
    return Verdict(artifact, Status.DAMAGED, Report(artifact, level, store.faults))


def select(subjects: Iterable[Subject], skipped: Mapping[State, int]) -> Selection:
    """Sort by family, store and key, and keep one of those that were named twice."""
    seen: dict[tuple[str, str], Subject] = {}
    for subject in subjects:
        place = (str(subject.store.root), str(subject.artifact.path))
        if place not in seen or subject.named:
            seen[place] = subject
    ordered = sorted(seen.values(), key=lambda subject: _order(subject.artifact))
    return Selection(tuple(ordered), dict(skipped))


def _order(artifact: Artifact) -> tuple[str, str, str, str]:
    return (artifact.family.value, str(artifact.store), artifact.key, str(artifact.path))


def verify(subjects: Sequence[Subject], level: Level, options: CheckOptions) -> Iterator[Verdict]:
    """Check every subject and yield the verdicts in the order given, whatever ``options.jobs`` is.

    Many entries are checked at once, or the files of few; a rate holds for the whole, so then one entry
    follows the other.
    """
    outer = 1 if options.rate is not None else min(options.jobs, len(subjects))
    if outer <= 1:
        for subject in subjects:
            yield judge(subject, level, options)
        return
    from concurrent.futures import Future, ThreadPoolExecutor

    stop = _Stop(options)
    shared = replace(options, jobs=max(1, options.jobs // outer), advance=stop.advance)
    pool = ThreadPoolExecutor(outer, thread_name_prefix="verify")
    try:
        # A window, not all at once: the reports of a large store need not be held in memory together.
        window: list[Future[Verdict]] = []
        for subject in subjects:
            window.append(pool.submit(judge, subject, level, shared))
            if len(window) >= 4 * outer:
                yield window.pop(0).result()
        for future in window:
            yield future.result()
    except BaseException:
        # A signal, or a caller that lost interest. Nothing was written, so there is nothing to wait for.
        stop.event.set()
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()


class _Stopped(BaseException):
    """Ends a worker whose result nobody waits for any more."""


class _Stop:
    """An advance that passes the count on, until it is told to end the worker instead."""

    def __init__(self, options: CheckOptions) -> None:
        self.event = threading.Event()
        self._advance = options.advance

    def advance(self, count: int) -> None:
        if self.event.is_set():
            raise _Stopped
        self._advance(count)


def judge(subject: Subject, level: Level, options: CheckOptions) -> Verdict:
    """Check one entry. Whatever stands in the way of finding out becomes the verdict's error."""
    if subject.expected is not None:
        options = replace(options, expected=subject.expected)
    artifact = subject.artifact
    try:
        if subject.named:
            wait = options.wait.earlier(options.deadline)
            artifact = wait_until_ready(subject.store, artifact, wait, options.expected)
            if artifact.state is State.STAGING:
                return _unfinished(subject.store, artifact, level, options)
        report = subject.store.check(artifact, level, options)
    except NotFound as exc:
        if subject.named:
            return Verdict(replace(artifact, state=State.ABSENT), exc.status, error=exc)
        # Evicted or replaced between the listing and the check: nothing is wrong with the store.
        return Verdict(replace(artifact, state=State.VANISHED), Status.OK)
    except HwctlError as exc:
        return Verdict(artifact, exc.status, error=exc)
    except OSError as exc:
        failure = from_os_error(exc, "could not check", artifact.path)
        return Verdict(artifact, failure.status, error=failure)
    if report.valid:
        return Verdict(report.artifact, Status.OK, report)
    if report.artifact.state is State.READY:
        # Its place and markers say ready; now it is known better.
        report = replace(report, artifact=replace(report.artifact, state=State.DAMAGED))
    of_store = all(finding in subject.store.faults for finding in report.findings)
    mendable = report.artifact.state in UNFIT and not of_store
    return Verdict(report.artifact, Status.DAMAGED, report, mendable=mendable)


def wait_until_ready(
    store: Store, artifact: Artifact, deadline: Deadline, expected: object | None = None
) -> Artifact:
    """The entry as it is once it is there and no longer being built, or when the deadline has passed.

    Raises NotFound when it is absent, Busy when it is absent because somebody is building it.
    """
    while True:
        now = store.look(artifact)
        if now is not None and now.state not in (State.STAGING, State.ABSENT):
            return now
        if deadline.expired():
            break
        deadline.pause()
    if now is not None and now.state is State.STAGING:
        return now
    raise explain(store, artifact, expected)


def _unfinished(store: Store, artifact: Artifact, level: Level, options: CheckOptions) -> Verdict:
    """A staging entry that was named: busy while its producer may live; once that is proven dead, incomplete,
    with all that is wrong beside it, since another converter's tree may be whole and only unpublished."""
    error = of_staging(store, artifact, artifact)
    if isinstance(error, Busy):
        return Verdict(artifact, error.status, error=error)
    report = store.check(artifact, level, options)
    abandoned = Finding("abandoned", error.message)
    return Verdict(artifact, Status.DAMAGED, replace(report, findings=(abandoned, *report.findings)))
