"""May this tree be reclaimed? Stale means proven dead, and every verdict carries its evidence (section 8).

Owns the order of the questions for staging, half-consumed and ready trees. Life of one process is
``producer``; names of holders come from ``fs``. Nothing is deleted here, and no lock is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hwctl.fs.liveness import Life
from hwctl.fs.lock_holders import held_by_other
from hwctl.fs.openfiles import OpenFiles
from hwctl.fs.paths import opened_dir
from hwctl.fs.unused import disuse
from hwctl.fs.walk import walk_stats
from hwctl.stores.base import Artifact, Death, Staleness, StalePolicy, State
from hwctl.stores.ktint8 import stranger
from hwctl.stores.ktint8.documents import ReadManifest, read_lease, read_manifest
from hwctl.stores.ktint8.producer import Producer, life_of
from hwctl.stores.ktint8.roots import Kind

_NS = 1_000_000_000
STAGING_GRACE_NS = 15 * 60 * _NS
"""How long nothing may have changed in a staging tree that only a bare pid speaks for."""

FINISHED_GRACE_NS = 60 * 60 * _NS
"""The same for ready and half-consumed trees: kt-kernel's consumer holds no lock and may be loading."""

_FREE = "nobody holds the lock on its root"


def judge(artifact: Artifact, policy: StalePolicy, open_files: Callable[[], OpenFiles]) -> Staleness:
    """The verdict on one entry. Raises IoFailed when it cannot be looked into."""
    if artifact.detail.get("kind") == Kind.PERSISTENT:
        return Staleness(Death.NOT_STALE, ("a persistent store is kept until it is evicted",))
    judge = {State.STAGING: _staging, State.CONSUMING: _consuming, State.READY: _ready}.get(artifact.state)
    if judge is None:
        return Staleness(Death.NOT_STALE, (artifact.reason,) if artifact.reason else ())
    with opened_dir(artifact.path) as root_fd:
        kept_anyway = artifact.state is State.READY and not policy.ready
        holder = None if kept_anyway else held_by_other(".", root_fd, trying=not policy.looking)
        if holder is not None:
            return Staleness(Death.LIVE, (f"its root is locked by {holder}",))
        return judge(_Tree(artifact, root_fd, open_files), policy)


@dataclass(frozen=True, slots=True)
class _Tree:
    artifact: Artifact
    root_fd: int
    open_files: Callable[[], OpenFiles]


def _staging(tree: _Tree, policy: StalePolicy) -> Staleness:
    read = read_lease(tree.root_fd, tree.artifact.key)
    if read.lease is not None:
        who = Producer(read.lease.producer_pid, read.written_ns, read.lease.producer)
        return _of_producer(tree, who, policy, STAGING_GRACE_NS)
    if read.present:
        return Staleness(Death.UNPROVEN, tuple(finding.message for finding in read.findings))
    manifest = read_manifest(tree.root_fd, ephemeral=True).parsed.manifest
    if manifest is not None and manifest.producer is not None:
        return _of_producer(
            tree, Producer(manifest.producer.pid, 0, manifest.producer), policy, STAGING_GRACE_NS
        )
    none = "it has no lease, and no manifest says who made it"
    if not policy.leaseless or policy.older_than is None:
        return Staleness(Death.UNPROVEN, (f"{none}; --leaseless with --older-than takes it by its age",))
    return _unused(tree, policy.older_than, (none,))


def _of_producer(tree: _Tree, who: Producer, policy: StalePolicy, grace_ns: int) -> Staleness:
    """A tree that somebody is on record for. hwctl's producers hold the lock for as long as they live."""
    life, evidence = life_of(who)
    if life is Life.ALIVE:
        return Staleness(Death.LIVE, (evidence,))
    if who.identity is not None:
        return Staleness(Death.PROVEN, (evidence, _FREE))
    if life is Life.UNKNOWN:
        return Staleness(Death.UNPROVEN, (evidence,))
    return _unused(tree, policy.grace(grace_ns), (evidence,))


def _consuming(tree: _Tree, policy: StalePolicy) -> Staleness:
    """Whoever removes a tree holds its lock, and saw that nobody used it."""
    read = read_manifest(tree.root_fd, ephemeral=True)
    manifest = read.parsed.manifest
    if manifest is not None and manifest.removal_begun:
        verdict = Staleness(Death.PROVEN, ("its removal was begun and not finished", _FREE))
        return _without_strangers(tree, read, verdict)
    return _finished(tree, policy, read, "it is half consumed")


def _ready(tree: _Tree, policy: StalePolicy) -> Staleness:
    if not policy.ready:
        return Staleness(Death.NOT_STALE, ("a ready tree is only taken with --ready",))
    read = read_manifest(tree.root_fd, ephemeral=True)
    manifest = read.parsed.manifest
    if manifest is None or not manifest.producer_pid:
        return Staleness(Death.UNPROVEN, ("its manifest does not say who made it",))
    life, evidence = life_of(Producer(manifest.producer_pid, read.written_ns, manifest.producer))
    if life is not Life.DEAD:
        return Staleness(Death.LIVE if life is Life.ALIVE else Death.UNPROVEN, (evidence,))
    return _finished(tree, policy, read, evidence)


def _finished(tree: _Tree, policy: StalePolicy, read: ReadManifest, evidence: str) -> Staleness:
    verdict = _unused(tree, policy.grace(FINISHED_GRACE_NS), (evidence,))
    return _without_strangers(tree, read, verdict)


def _without_strangers(tree: _Tree, read: ReadManifest, verdict: Staleness) -> Staleness:
    """A tree that is to go by its manifest: what that does not list would be left of it."""
    if verdict.death is Death.PROVEN:
        obstacle = stranger.obstacle(tree.root_fd, read)
        if obstacle is not None:
            return Staleness(Death.UNPROVEN, (obstacle, *verdict.evidence))
    return verdict


def _unused(tree: _Tree, grace_ns: int, evidence: tuple[str, ...]) -> Staleness:
    """Whether nobody can be at work in a tree that no lock speaks for.

    Processes of other users are no doubt: kt-kernel and hwctl refuse a tree that is not their own.
    """
    files, owner = walk_stats(tree.root_fd, "."), tree.artifact.owner_uid
    life, clause = disuse(files, owner, grace_ns, tree.open_files, recent=Life.ALIVE)
    if life is Life.ALIVE:
        return Staleness(Death.LIVE, (clause, *evidence))
    if life is Life.UNKNOWN:
        return Staleness(Death.UNPROVEN, (*evidence, clause))
    return Staleness(Death.PROVEN, (*evidence, _FREE, clause))
