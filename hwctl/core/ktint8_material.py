"""What a kt-int8 tree is made of: a checkpoint that is converted, or a finished tree that is copied.

Owns opening either one and naming it, so that an interrupted publication of the same source is told from
one of another. What the bytes are is ``weights.moe``; nothing is written here.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hwctl.core.ktint8_filling import PieceMaker
from hwctl.core.ktint8_target import Target
from hwctl.errors import Refused, Unsupported
from hwctl.fs.deadline import Deadline
from hwctl.stores.ktint8.copying import TreeSource, opened_source
from hwctl.stores.ktint8.staging import Order
from hwctl.weights.amx import Piece, Projection
from hwctl.weights.checkpoint import open_checkpoint
from hwctl.weights.int8 import one_thread
from hwctl.weights.moe.convert import Converter
from hwctl.weights.moe.crew import crew_of
from hwctl.weights.moe.plan import MoePlan, plan_conversion
from hwctl.weights.tensor_reader import TensorReader
from hwctl.weights.torch_here import torch_loads


@dataclass(frozen=True, slots=True)
class Material:
    """An open source and where its tree is to lie. ``make`` is run by ``jobs`` workers; ``tree`` is what is
    copied, None for a conversion."""

    target: Target
    order: Order
    make: PieceMaker
    jobs: int
    tree: TreeSource | None = None

    @property
    def bytes(self) -> int:
        return self.order.geometry.layer_bytes * len(self.order.layers)

    @property
    def files(self) -> int:
        return self.order.geometry.layer_files * len(self.order.layers)


def require_torch() -> None:
    """Raise Unsupported unless torch can be loaded: bytes that nobody can look at are not published."""
    if not torch_loads():
        raise Unsupported("publishing a kt-int8 tree needs torch, which cannot be loaded here")


def plan_checkpoint(path: Path, parts: int, layers: Container[int] | None) -> MoePlan:
    """Open a checkpoint and find every matrix; Damaged with all findings, Unsupported, Usage."""
    return plan_conversion(open_checkpoint(path), parts, layers)


@contextmanager
def from_checkpoint(plan: MoePlan, target: Target, jobs: int) -> Iterator[Material]:
    """A checkpoint to be converted. Using it raises Damaged for weights that are not finite."""
    require_torch()
    order = target.order(plan.geometry, plan.layers, source_of(plan))
    crew = crew_of(plan, jobs)
    with TensorReader(plan.checkpoint) as tensors, one_thread():
        yield Material(target, order, _converting(plan, tensors, crew.block), crew.workers)


def _converting(plan: MoePlan, tensors: TensorReader, block: int) -> PieceMaker:
    """A conversion in which every worker has its own buffers."""
    local = threading.local()

    def make(layer: int, expert: int, projection: Projection) -> Iterator[Piece]:
        converter = getattr(local, "converter", None)
        if not isinstance(converter, Converter):
            converter = local.converter = Converter(plan, tensors, block)
        yield from converter.matrix(layer, expert, projection)

    return make


@contextmanager
def from_tree(path: Path, target: Target, parts: int | None, jobs: int, wait: Deadline) -> Iterator[Material]:
    """A ready or persistent tree to be copied, whose every byte is checked on its way.

    Raises Busy, NotFound, Refused for another part count, and Damaged with what is wrong with the tree.
    """
    require_torch()
    with opened_source(path, wait) as tree, one_thread():
        manifest = tree.manifest
        if parts is not None and parts != manifest.geometry.parts:
            words = f"has part count {manifest.geometry.parts}; another one needs the checkpoint"
            raise Refused(words, path=path)
        order = target.order(manifest.geometry, manifest.indices, manifest.source or tree.identity)
        yield Material(target, order, tree.matrix, jobs, tree)


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
