"""Publish a kt-int8 tree: from a checkpoint, from a staging tree, or as a persistent store from either.

Owns what a publication is made of and in which order: plan, stage, fill, check, publish. How files are
written and named is ``stores.ktint8``, what their bytes are ``weights.moe``. Whatever ends it early, a
signal too, its own staging is removed on the way out (PUB-07).
"""

from __future__ import annotations

import enum
import hashlib
import json
import os
import threading
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from hwctl.core.ktint8_filling import PieceMaker, fill
from hwctl.errors import Damaged, Finding, Refused, Unsupported, from_os_error
from hwctl.fs import space
from hwctl.fs.deadline import Deadline
from hwctl.fs.paths import opened_dir
from hwctl.stores.base import Advance, silent
from hwctl.stores.ktint8 import layout
from hwctl.stores.ktint8.adoption import Adoption, publish_staging
from hwctl.stores.ktint8.copying import TreeSource, opened_source
from hwctl.stores.ktint8.expect import Expectation
from hwctl.stores.ktint8.finished import judge_documents, plan_of
from hwctl.stores.ktint8.manifest import Manifest, Schema
from hwctl.stores.ktint8.publish import Published, publish_staged
from hwctl.stores.ktint8.roots import Kind, Root
from hwctl.stores.ktint8.staging import Order
from hwctl.stores.ktint8.staging_root import begin
from hwctl.stores.ktint8.tree import judge_tree
from hwctl.weights.amx import Geometry, Piece, Projection
from hwctl.weights.checkpoint import open_checkpoint
from hwctl.weights.int8 import one_thread
from hwctl.weights.moe.convert import Converter
from hwctl.weights.moe.crew import crew_of
from hwctl.weights.moe.plan import MoePlan, plan_conversion
from hwctl.weights.tensor_reader import TensorReader
from hwctl.weights.torch_here import torch_loads


class Outcome(enum.StrEnum):
    """What became of a publication; JOINED when another process published the same meanwhile."""

    PUBLISHED = "published"
    ALREADY = "already-published"
    JOINED = "joined"
    PLANNED = "planned"


@dataclass(frozen=True, slots=True)
class Target:
    """Where a tree is to lie: ``final`` below ``base``, staged under ``run_id``."""

    base: Path
    run_id: str
    final: str
    schema: Schema

    @classmethod
    def ephemeral(cls, base: Path, run_id: str) -> Target:
        return cls(base, layout.require_run_id(run_id), layout.ready_name(run_id), Schema.EPHEMERAL)

    @classmethod
    def persistent(cls, path: Path) -> Target:
        """A store at ``path``. Its staging lies beside it under the name of a run, which the name of the
        store gives: so that two at once meet, one that was killed is gone on with, and reclaim knows it."""
        digest = hashlib.sha256(os.fsencode(path.name)).hexdigest()
        return cls(path.parent, f"persistent-{digest[:32]}", path.name, Schema.PERSISTENT)

    @property
    def path(self) -> Path:
        return self.base / self.final

    @property
    def root(self) -> Root:
        """What is to stand there."""
        if self.schema is Schema.PERSISTENT:
            return Root(Kind.PERSISTENT, self.final, self.final)
        return Root(Kind.EPHEMERAL, self.final, self.run_id)


@dataclass(frozen=True, slots=True)
class Work:
    """How to go about it. ``wait`` bounds waiting for another process at the same run; ``expect`` is told how
    many bytes ``advance`` will tell of, once that is known."""

    jobs: int = 1
    wait: Deadline = field(default_factory=Deadline.now)
    advance: Advance = silent
    expect: Advance = silent
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Publication:
    """What was published, or would be. ``kept`` counts the layers an interrupted conversion had finished."""

    outcome: Outcome
    path: Path
    geometry: Geometry
    layers: tuple[int, ...]
    manifest_sha256: str | None = None
    kept: int = 0

    @property
    def bytes(self) -> int:
        return self.geometry.layer_bytes * len(self.layers)

    @property
    def files(self) -> int:
        return self.geometry.layer_files * len(self.layers)


def require_torch() -> None:
    """Raise Unsupported unless torch can be loaded: bytes that nobody can look at are not published."""
    if not torch_loads():
        raise Unsupported("publishing a kt-int8 tree needs torch, which cannot be loaded here")


def plan_checkpoint(path: Path, parts: int, layers: Container[int] | None) -> MoePlan:
    """Open a checkpoint and find every matrix; Damaged with all findings, Unsupported, Usage."""
    return plan_conversion(open_checkpoint(path), parts, layers)


def from_checkpoint(plan: MoePlan, target: Target, work: Work) -> Publication:
    """Convert a checkpoint and publish the tree.

    Raises Busy, Refused (the name is taken by something else), NoRoom, IoFailed, and Damaged for weights
    that are not finite; nothing of ours is left then.
    """
    require_torch()
    order = _order(target, plan.geometry, plan.layers, source_of(plan))
    crew = crew_of(plan, work.jobs)
    work = replace(work, jobs=crew.workers)
    work.expect(plan.geometry.layer_bytes * len(plan.layers))
    with TensorReader(plan.checkpoint) as tensors, one_thread():
        return _publish(order, target, _converting(plan, tensors, crew.block), work)


def _converting(plan: MoePlan, tensors: TensorReader, block: int) -> PieceMaker:
    """A conversion in which every worker has its own buffers."""
    local = threading.local()

    def make(layer: int, expert: int, projection: Projection) -> Iterator[Piece]:
        converter = getattr(local, "converter", None)
        if not isinstance(converter, Converter):
            converter = local.converter = Converter(plan, tensors, block)
        yield from converter.matrix(layer, expert, projection)

    return make


def from_tree(path: Path, target: Target, parts: int | None, work: Work) -> Publication:
    """Copy a ready or persistent tree, whose every byte is checked on its way.

    Raises what ``from_checkpoint`` raises, and Damaged with what is wrong with the tree.
    """
    require_torch()
    with opened_source(path, work.wait) as tree:
        geometry = tree.manifest.geometry
        if parts is not None and parts != geometry.parts:
            words = f"has part count {geometry.parts}; another one needs the checkpoint"
            raise Refused(words, path=path)
        order = _order(target, geometry, tree.manifest.indices, tree.manifest.source or tree.identity)
        work.expect(geometry.layer_bytes * len(order.layers))
        with one_thread():
            return _publish(order, target, tree.matrix, work, tree)


def from_staging(path: Path, run_id: str, expected: Expectation, work: Work) -> Publication:
    """Finish a staging tree that another converter, or a dead process, left.

    Raises Busy, Refused while its producer may live, Damaged with every finding; it is unchanged then.
    """
    require_torch()
    work.expect(_size(path))
    adoption = Adoption(expected, True, work.jobs, work.wait, work.advance, work.dry_run)
    adopted = publish_staging(path, run_id, adoption)
    published = adopted.published
    return Publication(
        Outcome.PLANNED if published is None else Outcome.PUBLISHED,
        path.with_name(layout.ready_name(run_id)),
        adopted.geometry,
        adopted.layers,
        None if published is None else published.manifest_sha256,
    )


def _size(path: Path) -> int:
    """The bytes of a tree, about; 0 where nobody can tell, which is for publishing to say."""
    try:
        with opened_dir(path.parent) as base_fd:
            return space.usage(base_fd, path.name).bytes
    except OSError:
        return 0


def source_of(plan: MoePlan) -> str:
    """A text that names what a conversion reads: the weight files as they lie there now, and config.json.

    It stands in the manifest and in the lease, where it tells an interrupted conversion of the same source
    from one of another.
    """
    shards = {shard.name: shard.identity for shard in plan.checkpoint.shards}
    facts = [[name, *shards[name]] for name in plan.shards]
    config = json.dumps(plan.checkpoint.config, sort_keys=True)
    digest = hashlib.sha256(json.dumps([facts, config]).encode()).hexdigest()
    return f"checkpoint:{digest}"


def _order(target: Target, geometry: Geometry, layers: tuple[int, ...], source: str) -> Order:
    shared = target.schema is Schema.PERSISTENT
    return Order(target.run_id, target.final, geometry, layers, source, shared)


def _publish(
    order: Order, target: Target, make: PieceMaker, work: Work, tree: TreeSource | None = None
) -> Publication:
    found = _existing(target, order)
    if found is not None:
        return _publication(Outcome.ALREADY, target, order, found)
    if work.dry_run:
        need = order.geometry.layer_bytes * len(order.layers)
        space.require(
            target.base, need, order.geometry.layer_files * len(order.layers), what=str(target.path)
        )
        return Publication(Outcome.PLANNED, target.path, order.geometry, order.layers)
    _make_base(target.base)
    staging = begin(target.base, order, work.wait, workers=work.jobs)
    if staging is None:
        joined = _existing(target, order)
        if joined is None:
            raise Refused(f"{target.path} was published and consumed by others meanwhile", path=target.path)
        return _publication(Outcome.JOINED, target, order, joined)
    with staging:
        kept = len(staging.done)
        work.advance(order.geometry.layer_bytes * kept)
        fill(staging, make, jobs=work.jobs, advance=work.advance)
        if tree is not None:
            for layer, digests in staging.done.items():
                tree.require_digests(layer, digests)
        published = publish_staged(staging, target.schema)
    return _publication(Outcome.PUBLISHED, target, order, published, kept)


def _publication(
    outcome: Outcome, target: Target, order: Order, published: Published, kept: int = 0
) -> Publication:
    digest = published.manifest_sha256
    return Publication(outcome, target.path, order.geometry, order.layers, digest, kept)


def _existing(target: Target, order: Order) -> Published | None:
    """What stands under the final name already, if it is the very same and nothing in it is missing or of
    another size; Damaged if something is, Refused if it is something else."""
    if not os.path.lexists(target.path):
        return None
    try:
        with opened_dir(target.path) as root_fd:
            found = judge_documents(root_fd, target.root)
            manifest = found.manifest
            if manifest is not None and not found.findings and _is_of(manifest, order):
                findings = tuple(judge_tree(root_fd, plan_of(manifest)))
                if not findings:
                    return Published(target.path, found.read.sha256)
                if judge_documents(root_fd, target.root).read.sha256 == found.read.sha256:
                    raise _damaged(target.path, findings)
                # Files go, and the manifest says so first: somebody has begun to consume it.
    except NotADirectoryError:
        pass  # a file or a link has the name
    except OSError as exc:
        raise from_os_error(exc, "cannot look at what has the name already", target.path) from exc
    words = f"{target.path} exists already and was not made from this source; nothing was published"
    raise Refused(words, path=target.path)


def _is_of(manifest: Manifest, order: Order) -> bool:
    found = (manifest.source, manifest.geometry, manifest.indices)
    return found == (order.source, order.geometry, order.layers)


def _damaged(path: Path, findings: Sequence[Finding]) -> Damaged:
    first = findings[0]
    message = f"{path} is there already and damaged ({first.file}: {first.message}); quarantine it to publish"
    return Damaged(message, findings, path=path)


def _make_base(base: Path) -> None:
    try:
        if os.path.lexists(base):
            os.stat(os.path.join(base, "."))  # a file or a circle of links is named, which mkdir would not do
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as exc:
        raise from_os_error(exc, "cannot make the folder", base) from exc
