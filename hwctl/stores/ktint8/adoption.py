"""Finishing a staging tree that somebody else wrote: kt-kernel's converter, or a process that is no more.

Owns the questions before such a tree may be published: is it ours to take, is it whole, are its bytes what
they must be. Everything is read and judged under the lock on the root, and until the very end not a byte of
it is changed, so that after a refusal it can be repaired and published, or reclaimed.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path

from hwctl.errors import Damaged, Finding, Refused, Usage, from_os_error
from hwctl.fs.deadline import Deadline
from hwctl.fs.liveness import Process
from hwctl.fs.lock_table import Mode
from hwctl.fs.openfiles import OpenFiles
from hwctl.fs.walk import inode_of
from hwctl.stores.base import Advance, Artifact, Death, Family, StalePolicy, State, silent
from hwctl.stores.ktint8 import content, layout, manifest_text, staged, staleness
from hwctl.stores.ktint8.documents import ReadLease, read_lease, read_manifest
from hwctl.stores.ktint8.expect import Expectation
from hwctl.stores.ktint8.finished import unsound
from hwctl.stores.ktint8.manifest import Schema
from hwctl.stores.ktint8.publish import Published, publish, require_free
from hwctl.stores.ktint8.root_lock import LockedRoot, open_root
from hwctl.stores.ktint8.staging import layer_digest
from hwctl.stores.ktint8.tree import Plan, drop, judge_root, judge_tree, own_temporaries
from hwctl.weights.amx import Geometry
from hwctl.weights.torch_here import torch_loads


@dataclass(frozen=True, slots=True)
class Adoption:
    """How a foreign staging tree may be taken: ``dead_producers`` says that one whose producer is proven
    dead, or that nobody speaks for, is wanted too; without it only the caller's own."""

    expected: Expectation = field(default_factory=Expectation)
    dead_producers: bool = False
    workers: int = 1
    wait: Deadline | None = None
    advance: Advance = silent
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Adopted:
    """The tree that was found whole; ``published`` is None after a dry run."""

    geometry: Geometry
    layers: tuple[int, ...]
    published: Published | None


def publish_staging(path: Path, run_id: str, adoption: Adoption) -> Adopted:
    """Check the staging tree at ``path`` whole and publish it as the ready root of its run.

    Raises Busy while its producer holds the lock, Refused when it is not ours or the ready name is taken,
    Damaged with every finding when it is not whole; the tree is as it was then.
    """
    layout.require_run_id(run_id)
    if path.name != layout.staging_name(run_id):
        raise Usage(f"the staging root of run {run_id} is named {layout.staging_name(run_id)}", path=path)
    # A dry run keeps nobody out who only looks.
    mode = Mode.SHARED if adoption.dry_run else Mode.EXCLUSIVE
    wait = adoption.wait or Deadline.now()
    with open_root(path, mode, wait, judge=lambda st: judge_root(st, os.geteuid())) as root:
        try:
            return _publish(root, run_id, adoption)
        except OSError as exc:
            # Whatever it was, a file of the tree that went meanwhile too: the root is there, under its lock.
            raise from_os_error(exc, "cannot publish it", path) from exc


def _publish(root: LockedRoot, run_id: str, adoption: Adoption) -> Adopted:
    path, root_fd, final = root.path, root.fd, layout.ready_name(run_id)
    lease = read_lease(root_fd, run_id)
    _require_ours(path, root_fd, run_id, lease, adoption)
    leftovers = own_temporaries(root_fd)
    plan = _whole(path, root_fd, lease, adoption.expected, leftovers | _unfinished(root_fd))
    require_free(root, final)
    if adoption.dry_run:
        return Adopted(plan.geometry, plan.whole, None)
    digests = _digests(path, root_fd, plan, lease, adoption)
    texts = {layer: manifest_text.layer_text(plan.geometry, layer, digests[layer]) for layer in plan.whole}
    source = lease.lease.progress.source if lease.lease and lease.lease.progress else None
    origin = manifest_text.Origin(run_id, os.geteuid(), Process.current(), source)
    data = manifest_text.ephemeral_text(plan.geometry, texts, origin)
    drop(root_fd, leftovers)
    published = publish(root, final, Schema.EPHEMERAL, data)
    return Adopted(plan.geometry, plan.whole, published)


def _require_ours(path: Path, root_fd: int, run_id: str, read: ReadLease, adoption: Adoption) -> None:
    """The lease must name this very process, or somebody proven dead where the caller asked for that."""
    if read.present and read.lease is None:
        raise Damaged(f"{path}: {read.findings[0].message}", read.findings, path=path)
    own = read.lease is not None and read.lease.producer_pid == os.getpid()
    if own and read.lease is not None and read.lease.producer in (None, Process.current()):
        return
    if not adoption.dead_producers:
        who = "no lease" if read.lease is None else f"the lease of process {read.lease.producer_pid}"
        raise Refused(f"{path} has {who}; only this process's own is published unasked", path=path)
    st = os.fstat(root_fd)
    artifact = Artifact(
        Family.KTINT8, path.parent, run_id, path, State.STAGING, inode=inode_of(st), owner_uid=st.st_uid
    )
    # Named by the caller: nobody has to wait for the grace time, and the name stands for --leaseless.
    verdict = staleness.judge(artifact, StalePolicy(older_than=0, leaseless=True), OpenFiles.read)
    if verdict.death is not Death.PROVEN:
        raise Refused(f"{path} may still be in work: {'; '.join(verdict.evidence)}", path=path)


def _unfinished(root_fd: int) -> frozenset[str]:
    """The manifest of a publication of ours that was killed before its rename; it will be written anew."""
    manifest = read_manifest(root_fd, ephemeral=True).parsed.manifest
    if manifest is None or manifest.producer is None:
        return frozenset()
    return frozenset({Schema.EPHEMERAL.document})


def _whole(
    path: Path, root_fd: int, read: ReadLease, expected: Expectation, documents: frozenset[str]
) -> Plan:
    """The plan that the tree fulfils exactly, by names, kinds, owners and sizes."""
    plan, findings = staged.plan_of(root_fd, expected)
    if plan is not None:
        findings += judge_tree(root_fd, replace(plan, documents=plan.documents | documents))
    progress = read.lease.progress if read.lease is not None else None
    if plan is not None and progress is not None:
        # What hwctl was converting when it died: only what is on record is more than reserved room.
        findings += [
            Finding("layer-unfinished", "the layer is not on record as finished", layout.layer_dir(layer))
            for layer in plan.whole
            if layer not in progress.layers
        ]
    if findings or plan is None:
        raise unsound(path, findings)
    return plan


def _digests(
    path: Path, root_fd: int, plan: Plan, read: ReadLease, adoption: Adoption
) -> dict[int, tuple[bytes, ...]]:
    """Every byte read once: digests for the manifest, and the content rules."""
    by_layer: dict[int, dict[int, bytes]] = {layer: {} for layer in plan.whole}
    findings: list[Finding] = []
    for batch in content.read_tree(
        root_fd, plan.geometry, plan.whole, workers=adoption.workers, rules=torch_loads()
    ):
        adoption.advance(batch.batch.size)
        findings += batch.findings
        by_layer[batch.batch.layer] |= batch.digests
    if findings:
        raise unsound(path, findings)
    slots = range(plan.geometry.layer_files)
    digests = {layer: tuple(found[slot] for slot in slots) for layer, found in by_layer.items()}
    progress = read.lease.progress if read.lease is not None else None
    recorded = progress.layers if progress is not None else {}
    changed = [
        Finding("digest-mismatch", "the layer is not as it was when it was finished", layout.layer_dir(layer))
        for layer in digests
        if layer in recorded and recorded[layer] != layer_digest(digests[layer])
    ]
    if changed:
        raise unsound(path, changed)
    return digests
