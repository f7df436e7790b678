"""Publishing a page: artifact, receipt, and the locator last, which is the commit point.

Owns what happens under a page's exclusive lock: what is adopted, what is replaced, in which order names
appear, and that an error leaves nothing of its own behind. Eviction comes after it, with the page's lock let
go. Loading, and building only when it must be, is ``loading``'s.
"""

from __future__ import annotations

import enum
import errno
import hashlib
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace

from hwctl.errors import Busy, Damaged, HwctlError, NoRoom, Refused, from_os_error
from hwctl.fs.atomic import replace_document, sync_dir
from hwctl.fs.deadline import Deadline
from hwctl.stores.base import Advance, Level, silent
from hwctl.stores.pageweights import layout
from hwctl.stores.pageweights.authority import Authority, content_key
from hwctl.stores.pageweights.checks import Verdict, check_page, check_pair
from hwctl.stores.pageweights.content import load_for
from hwctl.stores.pageweights.documents import Locator, locator_record, receipt_record
from hwctl.stores.pageweights.eviction import Eviction, evict_to_budget
from hwctl.stores.pageweights.geometry import code_of
from hwctl.stores.pageweights.locking import lock_page, make_eviction_lock, share_page, try_page
from hwctl.stores.pageweights.offers import Offer
from hwctl.stores.pageweights.place import Place, exists, look_at_document
from hwctl.stores.pageweights.reading import Pace
from hwctl.stores.pageweights.records import digest, stored
from hwctl.stores.pageweights.removal import files_of, remove_names, remove_page
from hwctl.stores.pageweights.room import advised, inodes_needed, min_free, require_room
from hwctl.stores.pageweights.roots import Root, is_read_only, require_fit_for_publishing
from hwctl.stores.pageweights.writer import (
    ArtifactPlan,
    digest_of,
    judge_offer,
    plan_artifact,
    tests_for,
    write_artifact,
)

_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Outcome(enum.StrEnum):
    PUBLISHED = "published"
    ALREADY = "already-published"
    JOINED = "joined"


@dataclass(frozen=True, slots=True)
class Publication:
    """A page that is in the cache. ``artifact_bytes`` is the size of its file.

    ``eviction`` is what was done for a budget; ``not_evicted`` says why nothing was, which takes nothing from
    the page.
    ``replaced`` says that the rest of an older page went: its locator, or files that none named.
    """

    outcome: Outcome
    locator: Locator
    artifact_sha256: str
    artifact_bytes: int
    eviction: Eviction | None = None
    not_evicted: str | None = None
    replaced: bool = False


def publish(
    root: Root,
    authority: Authority,
    offer: Offer,
    *,
    wait: Deadline,
    budget: int | None = None,
    advance: Advance = silent,
) -> Publication:
    """Put the offered tensors under an authority, or find that they are there already.

    Waits until ``wait`` for another builder of the same authority and then joins its result. With a
    ``budget`` in bytes, other pages are evicted afterwards until it holds; without, none is. On a read-only
    mount a page that is there is found all the same.

    Raises Damaged for tensors that break the rules (nothing is written then but a lock file) and for a page
    that is there but damaged; Refused when a sound page of other bytes is there; Busy; NoRoom; Unsupported.
    """
    findings = judge_offer(offer, authority)
    if findings:
        raise Damaged(findings[0].message, findings)
    plan = plan_artifact(offer)
    load_for(code_of(authority.dtype))
    if is_read_only(root):
        return _found_only(root, authority, plan, wait)
    require_fit_for_publishing(root)
    with page_lock(root, authority.prefix, wait) as waited:
        page = find_page(root, authority, Pace())
        if page.hit:
            done = _found(root, page, plan, joined=waited)
        else:
            done = publish_locked(root, authority, plan, page, budget=budget, advance=advance)
    return evicted_after(root, done, budget, wait)


def _found_only(root: Root, authority: Authority, plan: ArtifactPlan, wait: Deadline) -> Publication:
    """The page where nothing can be written, not even a lock file."""
    with share_page(root.place, authority.prefix, wait) or nullcontext():
        page = find_page(root, authority, Pace())
        if page.hit:
            return _found(root, page, plan, joined=False)
    raise from_os_error(OSError(errno.EROFS, os.strerror(errno.EROFS)), "cannot publish the page", root.path)


@contextmanager
def page_lock(root: Root, prefix: str, wait: Deadline) -> Iterator[bool]:
    """Hold a page's lock exclusively; yields whether somebody else had it first."""
    waited = False
    try:
        held = try_page(root.place, prefix)
    except Busy:
        held, waited = lock_page(root.place, prefix, wait), True
    except NoRoom as exc:
        raise advised(exc, root.path, "--keep N") from exc
    with held:
        yield waited


def find_page(root: Root, authority: Authority, pace: Pace, *, keep: bool = False) -> Verdict:
    """The page of an authority: a hit or a miss. Damaged for anything in between, which stays so until a
    person has set it aside."""
    prefix = authority.prefix
    page = check_page(root.place, prefix, authority, Level.FULL, pace, keep=keep)
    if page.findings:
        first = page.findings[0]
        message = f"the page is damaged ({first.code}: {first.message}); quarantine it to rebuild it"
        raise Damaged(message, page.findings, path=root.path / layout.locator_name(prefix))
    return page


def touch(root: Root, prefix: str) -> None:
    """Move a page's clock of last use to now: only for a real use. One that has just gone has no clock, and
    on a read-only mount nobody evicts by it."""
    name = layout.locator_name(prefix)
    try:
        with suppress(FileNotFoundError):
            os.utime(name, dir_fd=root.fd, follow_symlinks=False)
    except OSError as exc:
        if exc.errno == errno.EROFS:
            return
        raise from_os_error(exc, "cannot move the page's clock", root.path / name) from exc


def _found(root: Root, page: Verdict, plan: ArtifactPlan, *, joined: bool) -> Publication:
    """What is there already, provided that it is what was offered."""
    found = require_same(root, page, plan)
    touch(root, found.locator.prefix)
    return replace(found, outcome=Outcome.JOINED) if joined else found


def require_same(root: Root, page: Verdict, plan: ArtifactPlan) -> Publication:
    """The page of a hit as it is there already; Refused when it is not what was offered (PUB-12)."""
    assert page.locator is not None and page.receipt is not None  # a hit has both
    offered = digest_of(plan)
    if offered != page.receipt.artifact_sha256:
        there = page.receipt.artifact_sha256
        raise Refused(
            f"another page is published under this authority: {there} is there, {offered} was offered",
            path=root.path / layout.locator_name(page.locator.prefix),
            details={"there": there, "offered": offered},
        )
    return Publication(Outcome.ALREADY, page.locator, offered, page.receipt.artifact_bytes)


def publish_locked(
    root: Root,
    authority: Authority,
    plan: ArtifactPlan,
    page: Verdict,
    *,
    budget: int | None,
    advance: Advance = silent,
) -> Publication:
    """Publish over a miss, under the page's exclusive lock. Nothing of an attempt that failed stays."""
    tests = tests_for(plan)
    require_room(root.path, root.fd, plan.size, budget, inodes_needed(root, authority.prefix))
    prefix = authority.prefix
    temporary = layout.artifact_temporary(prefix, os.getpid(), threading.get_ident(), time.time_ns())
    try:
        make_eviction_lock(root.place)
        replaced = page.locator is not None
        if page.locator is not None:
            remove_page(root.fd, prefix, page.locator.key)
        try:
            fd = os.open(temporary, _NEW_FILE, layout.DOCUMENT_MODE, dir_fd=root.fd)
            try:
                sha256 = write_artifact(fd, plan, tests, advance)
                os.fchmod(fd, layout.ARTIFACT_MODE)
                os.fsync(fd)
            finally:
                os.close(fd)
            locator, over = _commit(root.place, authority, plan, sha256, temporary)
        except BaseException:
            _discard(root.fd, temporary)
            raise
    except OSError as exc:
        error = from_os_error(exc, "cannot publish the page", root.path)
        raise advised(error, root.path, min_free(plan.size)) from exc
    return Publication(Outcome.PUBLISHED, locator, sha256, plan.size, replaced=replaced or over)


def _commit(
    place: Place, authority: Authority, plan: ArtifactPlan, sha256: str, temporary: str
) -> tuple[Locator, bool]:
    """Give the written artifact its name, with a receipt, and last of all the locator; whether files that
    had the names before are gone."""
    prefix, fd = authority.prefix, place.dir_fd
    key = content_key(authority, sha256, digest(plan.geometry))
    names = layout.pair_of(prefix, key)
    files_of(fd, (*names, layout.locator_name(prefix)))  # no folder has one of them
    there = any(exists(place, name) for name in names)
    adopted = _adoptable(place, authority, key)
    try:
        if adopted is not None:
            _discard(fd, temporary)
            receipt_sha256 = adopted
        else:
            os.rename(temporary, names[1], src_dir_fd=fd, dst_dir_fd=fd)
            sync_dir(fd)
            receipt = stored(receipt_record(authority, key, plan.geometry, sha256, plan.size))
            _put_document(fd, names[0], receipt)
            receipt_sha256 = hashlib.sha256(receipt).hexdigest()
        _put_document(fd, layout.locator_name(prefix), stored(locator_record(authority, key, receipt_sha256)))
    except BaseException:
        # Whatever has its name by now goes again, the locator first; an adopted pair was there before us.
        remove_names(fd, (layout.locator_name(prefix), *(names if adopted is None else ())))
        raise
    return Locator(prefix, authority, key, receipt_sha256), there and adopted is None


def _adoptable(place: Place, authority: Authority, key: str) -> str | None:
    """The digest of the receipt of a sound pair that a crash left without a locator, None where there is
    none: half a pair is removed, a wrong one will be replaced by the renames."""
    prefix = authority.prefix
    names = layout.pair_of(prefix, key)
    there = [name for name in names if exists(place, name)]
    if len(there) == 1:
        remove_names(place.dir_fd, names)
    if len(there) < len(names):
        return None
    looked = look_at_document(place, names[0])
    if looked.data is None:
        return None
    locator = Locator(prefix, authority, key, hashlib.sha256(looked.data).hexdigest())
    return locator.receipt_sha256 if check_pair(place, locator, Level.FULL, Pace()).hit else None


def _put_document(fd: int, name: str, data: bytes) -> None:
    temporary = layout.document_temporary(name, os.getpid(), threading.get_ident())
    _discard(fd, temporary)  # of a dead process with our numbers: we hold the page's lock
    replace_document(fd, name, data, mode=layout.DOCUMENT_MODE, temporary=temporary)


def _discard(fd: int, name: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=fd)


def evicted_after(root: Root, done: Publication, budget: int | None, wait: Deadline) -> Publication:
    """Evict to the budget after a publication, which stands whatever becomes of that.

    Another process that is evicting does the same work; a lock that cannot be taken is for a person to see.
    """
    if budget is None or done.outcome is not Outcome.PUBLISHED:
        return done
    try:
        return replace(done, eviction=evict_to_budget(root, budget, wait, spare=done.locator.prefix))
    except HwctlError as exc:
        return replace(done, not_evicted=exc.message)
