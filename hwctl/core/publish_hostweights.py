"""Publishing into a host weight store: from a checkpoint, or from an artifact of another store.

Owns the order of the steps, and what is refused by looking at the two places. What is published is settled in
checkpoint_material and artifact_material, what is there already in existing_artifact; locks, staging and the
commit are the store's.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path

from hwctl.core.artifact_material import from_artifact
from hwctl.core.checkpoint_material import from_checkpoint
from hwctl.core.existing_artifact import look_at, require_known, require_same, sound, what_is_wrong
from hwctl.core.other_users import refusal
from hwctl.core.publish_material import FormatMetadata, Material, Naming, Work
from hwctl.core.publishing import Publishing
from hwctl.core.tensor_stream import Stream
from hwctl.errors import Refused, Usage
from hwctl.fs import space
from hwctl.fs.paths import real
from hwctl.stores.base import CheckOptions, Level
from hwctl.stores.hostweights.build import get_or_build
from hwctl.stores.hostweights.capacity import Admission, store_bytes
from hwctl.stores.hostweights.domain import Capacity
from hwctl.stores.hostweights.layout import ARTIFACTS
from hwctl.stores.hostweights.locating import recognise
from hwctl.stores.hostweights.opening import Wanted, open_root
from hwctl.stores.hostweights.publishable import require_findable, require_one_mount
from hwctl.stores.hostweights.store_root import look_at_root
from hwctl.stores.hostweights.tensors import plan_payloads
from hwctl.stores.hostweights.verdict import Outcome
from hwctl.weights.checkpoint import BLOBS, open_checkpoint

_DOCUMENTS = 3
"""The artifact's directory, its manifest and its marker."""


_BECAME = {
    Outcome.BUILT: Publishing.PUBLISHED,
    Outcome.JOINED: Publishing.JOINED,
    Outcome.HIT: Publishing.ALREADY_PUBLISHED,
}


@dataclass(frozen=True, slots=True)
class Request:
    """Everything about one publication. ``format_metadata`` None takes the source's, or nothing.

    ``words`` are the command's own, for telling how another user would run it.
    """

    source: Path
    store: Path
    naming: Naming = field(default_factory=Naming)
    format_metadata: FormatMetadata | None = None
    ordered: bool = False
    wanted: Wanted = field(default_factory=Wanted)
    work: Work = field(default_factory=Work)
    words: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class PublishResult:
    """Where the artifact is, or will be. ``bytes`` is the size of its tensors, ``files`` counts its payloads.

    ``manifest_sha256`` is None for a plan. ``unused`` names weight files of the source that its index
    leaves out, ``part_of`` is more than 1 for a single shard of so many. ``unsound`` says what was wrong
    with an artifact that stood in the way, and ``set_aside`` where it was moved; a plan knows only the first.
    """

    outcome: Publishing
    store: Path
    key: str
    path: Path
    bytes: int
    files: int
    tensors: int
    manifest_sha256: str | None = None
    unused: tuple[str, ...] = ()
    part_of: int = 1
    unsound: str | None = None
    set_aside: Path | None = None


def publish(request: Request) -> PublishResult:
    """Publish, join another publisher, or find the artifact there already.

    Raises NotFound, Damaged (of the source, with all findings), Refused (place, owner, collision, a source
    that changed), Unsupported, Busy, NoRoom and IoFailed. Nothing is left behind then.
    """
    with _opened(request) as material:
        # Hashing the sources may have taken an hour: waiting begins only now.
        deadline = request.work.deadline()
        root = open_root(request.store, replace(request.wanted, wait=deadline))
        # Upstream sets aside what a later version made, like anything else that it cannot use.
        require_known(root, material, look_at(root, material, Level.MARKER))
        stream = Stream(material.reader, ordered=request.ordered)
        found = get_or_build(
            root,
            material.publication,
            stream,
            deadline=deadline,
            options=CheckOptions(jobs=request.work.jobs),
            advance=request.work.advance,
        )
        assert found.lease is not None
        with found.lease:
            if found.outcome is not Outcome.BUILT:
                require_same(root, material, request.format_metadata, request.work)
        result = _result(root.path, material, _BECAME[found.outcome], found.manifest_sha256)
        return replace(result, unsound=what_is_wrong(found.findings), set_aside=found.set_aside)


def foresee(request: Request) -> PublishResult:
    """What ``publish`` would do now, as far as it shows without locks: nothing is created or changed."""
    with _opened(request) as material:
        path = real(request.store)
        plans = plan_payloads(material.publication.tensors)
        total = sum(plan.size for plan in plans)
        capacity, unsound = request.wanted.capacity or Capacity(), None
        if path.exists():
            root = look_at_root(path)
            seen = look_at(root, material, Level.SIZE)
            require_known(root, material, seen)
            there = sound(seen)
            if there is not None:
                require_same(root, material, request.format_metadata, request.work)
                return _result(path, material, Publishing.ALREADY_PUBLISHED, there[1])
            require_one_mount(root)
            unsound = None if seen is None else what_is_wrong(seen.findings)
            capacity = root.capacity or capacity
            used = 0 if capacity.max_store_bytes is None else store_bytes(root)
            Admission(root, capacity, used).whole(total)
        space.require(
            path, total, len(plans) + _DOCUMENTS, keep_free=capacity.min_free_bytes, what="the artifact"
        )
        return replace(_result(path, material, Publishing.PLANNED, None), unsound=unsound)


def _opened(request: Request) -> AbstractContextManager[Material]:
    """The material, after everything that can be refused by looking at the two places."""
    store = real(request.store)
    _require_apart(request.source, store)
    _require_owner(store, request.words)
    if store.is_dir():
        require_findable(look_at_root(store))
    match = recognise(real(request.source))
    if match is None:
        checkpoint = open_checkpoint(request.source)
        for shard in checkpoint.shards:
            blobs = shard.path.parent  # what a snapshot of the cache links to is nobody else's folder either
            if blobs.name == BLOBS and store.is_relative_to(blobs):
                raise Refused(f"the store {store} lies among the source's files in {blobs}", path=store)
            if shard.path.is_relative_to(store):
                raise Refused(f"{shard.path}, of the source, lies inside the store {store}", path=store)
        return from_checkpoint(checkpoint, request.naming, request.format_metadata, request.work)
    if request.naming != Naming():
        raise Usage(f"{request.source} is an artifact and brings its own identity", path=request.source)
    return from_artifact(match, request.format_metadata, request.work)


def _require_apart(source: Path, store: Path) -> None:
    """PUB-01: neither may lie inside the other, else a source would be overwritten while it is read."""
    origin = real(source)
    if origin == store or (origin.is_dir() and store.is_relative_to(origin)):
        raise Refused(f"the store {store} lies inside the source {source}", path=store)
    if origin.is_relative_to(store):
        raise Refused(f"the source {source} lies inside the store {store}", path=source)


def _require_owner(store: Path, words: Sequence[str]) -> None:
    """One owner for each store: root, too, would leave files that the owner cannot replace (LEA-04)."""
    try:
        owner = os.stat(store).st_uid
    except OSError:
        return  # opening says what is wrong with it
    if owner != os.geteuid():
        raise refusal(owner, store, words)


def _result(
    store: Path, material: Material, outcome: Publishing, manifest_sha256: str | None
) -> PublishResult:
    specs = material.publication.tensors
    key = material.publication.identity.key
    return PublishResult(
        outcome,
        store,
        key,
        store / ARTIFACTS / key,
        material.bytes,
        len({spec.file_name for spec in specs}),
        len(specs),
        manifest_sha256,
        material.unused,
        material.part_of,
    )
