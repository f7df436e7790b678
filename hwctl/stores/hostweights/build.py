"""Get or build: one process builds the artifact of a key, the others wait and join.

Owns who builds and when, and clearing the way for a build. How an artifact is written is ``publication``'s
work, how it is looked up ``lookup``'s.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hwctl.errors import Damaged, HwctlError, IoFailed, from_os_error, in_short
from hwctl.fs.deadline import Deadline
from hwctl.stores.base import Advance, CheckOptions, Level, silent
from hwctl.stores.hostweights import leases, quarantine
from hwctl.stores.hostweights.layout import QUARANTINE
from hwctl.stores.hostweights.lookup import attempt
from hwctl.stores.hostweights.publication import Publication, publish
from hwctl.stores.hostweights.publishable import require_findable, require_one_mount
from hwctl.stores.hostweights.store_root import StoreRoot
from hwctl.stores.hostweights.verdict import Code, Lookup, Outcome, Stage, coded
from hwctl.stores.hostweights.writer import Producer


def get_or_build(
    root: StoreRoot,
    publication: Publication,
    produce: Producer,
    *,
    level: Level = Level.SIZE,
    deadline: Deadline,
    options: CheckOptions | None = None,
    advance: Advance = silent,
) -> Lookup:
    """The artifact of an identity, with a lease on it: HIT, BUILT, or JOINED when another process built it.

    ``produce`` runs only in the process that builds. ``deadline`` bounds every wait for a lock; ``options``
    are for the checks, at ``level``, and their jobs for the writing too. An invalid artifact is denied and
    replaced, as upstream does.

    Raises Busy, NoRoom, IoFailed, Refused and Usage with upstream's words in ``details``
    (``verdict.failure_of``), and Damaged when what was just built does not verify.
    """
    identity = publication.identity
    jobs = 1 if options is None else options.jobs

    def look() -> Lookup:
        return attempt(root, identity, level, deadline, deny_invalid=True, options=options)

    require_findable(root)
    first = look()
    if first.outcome is Outcome.HIT:
        return first
    require_one_mount(root)
    with leases.building(root, identity.key, deadline):
        found = look()
        if found.outcome is Outcome.HIT:
            return replace(found, outcome=Outcome.JOINED)
        # The first look denies what it finds invalid, and the second then meets the denial before all else.
        wrong = first.findings or found.findings
        aside = _prepare(root, identity.key, deadline)
        publish(root, publication, produce, deadline, jobs=jobs, advance=advance)
        found = look()
        if found.outcome is not Outcome.HIT:
            message = f"the new artifact does not verify: {in_short(found.findings)}"
            raise Damaged(message, found.findings, path=found.path)
        return replace(found, outcome=Outcome.BUILT, set_aside=aside, findings=() if aside is None else wrong)


def _prepare(root: StoreRoot, key: str, deadline: Deadline) -> Path | None:
    """Clear the way; where what stood in it is now."""
    with leases.replacing(root, key, deadline):
        try:
            name = quarantine.prepare_rebuild(root, key)
        except OSError as exc:
            raise quarantine_failure(exc, root) from exc
    return None if name is None else root.path / QUARANTINE / name


def cleanup(root: StoreRoot, key: str) -> None:
    """Remove the artifact of a key without waiting for anybody; an absent one is success.

    Raises Busy (active_build_timeout or active_lease), IoFailed or NoRoom.
    """
    with leases.exclusive(root, key, Deadline.now()):
        try:
            quarantine.clean_up(root, key)
        except OSError as exc:
            raise quarantine_failure(exc, root) from exc


def quarantine_failure(exc: OSError, root: StoreRoot) -> HwctlError:
    """An OSError while entries were moved aside or deleted."""
    error = from_os_error(exc, f"cannot clear the way in {root.path}", exc.filename or root.path)
    if isinstance(error, IoFailed):
        error.retryable = True
    return coded(error, Stage.LIFECYCLE, Code.QUARANTINE_FAILED)
