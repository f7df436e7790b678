"""Publishing one page into a page-weights cache: under an authority that is given, or derived from a source.

Owns what the page is published under and what a dry run foresees. Locks, the order of publication and the
eviction after it are the cache's own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hwctl.core.expected import measure, read_authority_file
from hwctl.core.other_users import refusal
from hwctl.core.publishing import Publishing
from hwctl.errors import Damaged, HwctlError, NotFound, Refused, Usage
from hwctl.fs.deadline import Deadline
from hwctl.fs.mounts import mount_of, mount_of_fd
from hwctl.fs.paths import identity
from hwctl.stores.base import Advance, Artifact, Family, State, silent
from hwctl.stores.pageweights import offers, publication, room, roots
from hwctl.stores.pageweights.authority import Authority, unwritable
from hwctl.stores.pageweights.eviction import Eviction
from hwctl.stores.pageweights.layout import locator_name
from hwctl.stores.pageweights.offers import Offer
from hwctl.stores.pageweights.reading import Pace
from hwctl.stores.pageweights.roots import Root
from hwctl.stores.pageweights.store import open_store
from hwctl.stores.pageweights.writer import ArtifactPlan, judge_offer, plan_artifact


@dataclass(frozen=True, slots=True)
class FromSource:
    """An authority to be derived: the object is measured, its dtype is that of the page's weights."""

    source: Path
    format_revision: int
    page_id: int


@dataclass(frozen=True, slots=True)
class Request:
    """Everything about one publication. ``budget`` None evicts nothing; ``wait`` is in seconds.

    ``words`` are the command's own, for telling how another user would run it.
    """

    page: Path
    cache: Path
    authority: Path | FromSource
    budget: int | None = None
    wait: float = 0.0
    advance: Advance = silent
    expect: Callable[[int | None], None] = lambda _total: None
    words: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class PublishResult:
    """Where the page is, or will be. ``artifact`` is its entry in the cache.

    ``cache_key``, ``artifact_sha256`` and ``manifest_sha256`` (of the receipt) are None for a plan.
    ``eviction`` is what went for the budget, or would go; ``not_evicted`` why that came to nothing.
    ``replaced`` says that the rest of an older page has to go.
    """

    outcome: Publishing
    artifact: Artifact
    cache_key: str | None = None
    artifact_sha256: str | None = None
    manifest_sha256: str | None = None
    eviction: Eviction | None = None
    not_evicted: str | None = None
    replaced: bool = False


def publish(request: Request) -> PublishResult:
    """Publish the page, join another publisher of it, or find it there already.

    Raises Usage for an authority that nothing can be published under, NotFound or Damaged for the page's
    file (with all findings; nothing is written then), Damaged for a page that is in the cache but not sound,
    Refused (place, owner, other content), Busy, NoRoom, Unsupported and IoFailed.
    """
    _require_owner(request)
    with offers.from_file(request.page) as offer:
        authority = _authority(request, offer)
        request.expect(sum(tensor.nbytes for tensor in offer.values()))
        with roots.writable(request.cache, create=True) as root:
            done = publication.publish(
                root,
                authority,
                offer,
                wait=Deadline.after(request.wait),
                budget=request.budget,
                advance=request.advance,
            )
    return PublishResult(
        Publishing(done.outcome.value),
        _entry(request.cache, authority, done.artifact_bytes),
        done.locator.key,
        done.artifact_sha256,
        done.locator.receipt_sha256,
        done.eviction,
        done.not_evicted,
        done.replaced,
    )


def foresee(request: Request) -> PublishResult:
    """What ``publish`` would do, as far as it shows without a lock and without writing.

    Raises what it would raise for the page's file, the authority, the place, the room, and for a page that
    is there, which is read as ``publish`` reads it. What the offered weights hold is not looked at, since
    that takes a full read.
    """
    _require_owner(request)
    with offers.from_file(request.page) as offer:
        authority = _authority(request, offer)
        findings = judge_offer(offer, authority)
        if findings:
            raise Damaged(findings[0].message, findings, path=request.page)
        plan = plan_artifact(offer)
        try:
            with roots.opened(request.cache) as root:
                return _foreseen(request, root, authority, plan)
        except NotFound:
            pass
        roots.require_writable(request.cache)
        roots.require_local(request.cache, mount_of(request.cache))
        inodes = room.inodes_needed(None, authority.prefix)
        room.require_room(request.cache, request.cache, plan.size, request.budget, inodes)
        return PublishResult(Publishing.PLANNED, _entry(request.cache, authority, plan.size))


def _foreseen(request: Request, root: Root, authority: Authority, plan: ArtifactPlan) -> PublishResult:
    """The same in a root that is there."""
    roots.require_own(root)
    page = publication.find_page(root, authority, Pace())
    artifact = _entry(request.cache, authority, plan.size)
    if page.hit:
        done = publication.require_same(root, page, plan)
        return PublishResult(
            Publishing.ALREADY_PUBLISHED,
            artifact,
            done.locator.key,
            done.artifact_sha256,
            done.locator.receipt_sha256,
        )
    roots.require_writable(request.cache)
    roots.require_local(request.cache, mount_of_fd(root.fd))
    inodes = room.inodes_needed(root, authority.prefix)
    room.require_room(request.cache, root.fd, plan.size, request.budget, inodes)
    planned = PublishResult(Publishing.PLANNED, artifact, replaced=page.locator is not None)
    if request.budget is None:
        return planned
    try:
        eviction = room.foresee_evicted(root, page, request.budget, authority.prefix, plan.size)
        return replace(planned, eviction=eviction)
    except HwctlError as exc:
        return replace(planned, not_evicted=exc.message)


def _require_owner(request: Request) -> None:
    """Only the owner writes into a cache; root neither, who would leave files of its own in it."""
    try:
        with roots.opened(request.cache) as root:
            owner = root.place.uid
    except NotFound:
        return
    if owner != os.geteuid():
        raise refusal(owner, request.cache, request.words)


def _authority(request: Request, offer: Offer) -> Authority:
    if isinstance(request.authority, Path):
        authority, where = read_authority_file(request.authority), request.authority
    else:
        authority, where = _derived(request.authority, offer, request.page), request.authority.source
    findings = unwritable(authority)
    if findings:
        reasons = "; ".join(finding.message for finding in findings)
        raise Usage(f"nothing can be published under this authority: {reasons}", path=where)
    return authority


def _derived(wanted: FromSource, offer: Offer, page: Path) -> Authority:
    dtype = offers.dtype_of(offer)
    if dtype is None:
        raise Usage(f"{page} holds none of a page's weights, so there is no dtype to derive", path=page)
    source = measure(wanted.source)
    if source.bytes < 1:
        raise Usage(f"the source object {wanted.source} is empty", path=wanted.source)
    if identity(os.stat(wanted.source)) != source.identity:
        raise Refused("the source object changed while it was hashed", path=wanted.source)
    return Authority(
        page_id=wanted.page_id,
        source_sha256=source.sha256,
        source_bytes=source.bytes,
        source_identity=source.identity,
        source_format_revision=wanted.format_revision,
        dtype=dtype,
    )


def _entry(cache: Path, authority: Authority, size: int) -> Artifact:
    """The page as it lies there now, or a stand-in for one that does not."""
    prefix = authority.prefix
    planned = Artifact(
        Family.PAGEWEIGHTS, cache, prefix, cache / locator_name(prefix), State.ABSENT, bytes=size, files=3
    )
    return open_store(cache).look(planned) or planned
