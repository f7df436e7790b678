"""A conversion that can be carried out: every matrix found and judged before any weight is read.

Owns the order of the judging: config.json, then the shape rule, then the tensors of the layers asked for.
Only headers are looked at. Reading the matrices is ``rows``, converting them ``convert``.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field

from hwctl.errors import Damaged, Usage
from hwctl.weights.amx import Geometry, Projection, require_shape
from hwctl.weights.checkpoint import Checkpoint
from hwctl.weights.moe.config import MoeConfig, read_config
from hwctl.weights.moe.matrix import Matrix
from hwctl.weights.moe.search import search
from hwctl.weights.ranges import ranges


@dataclass(frozen=True, slots=True)
class MoePlan:
    """What a conversion reads and how it is cut. ``layers`` ascending.

    ``shards`` names the weight files that matrices come from, sorted.
    """

    checkpoint: Checkpoint
    config: MoeConfig
    geometry: Geometry
    layers: tuple[int, ...]
    shards: tuple[str, ...]
    _matrices: Mapping[tuple[int, int, Projection], Matrix] = field(repr=False)

    @property
    def family(self) -> str:
        """The model_type whose rules were followed, empty when config.json states none."""
        return self.config.family.name

    @property
    def transposes(self) -> bool:
        """Whether matrices lie input feature first, which takes larger buffers."""
        return any(matrix.transposed for matrix in self._matrices.values())

    def matrix(self, layer: int, expert: int, projection: Projection) -> Matrix:
        return self._matrices[layer, expert, projection]


def plan_conversion(checkpoint: Checkpoint, parts: int, layers: Container[int] | None = None) -> MoePlan:
    """Find every matrix of ``checkpoint``, to be stored in ``parts`` slices; ``layers`` limits the layers.

    Raises Unsupported (model family, quantisation or shape), Usage (part count or layers that do not fit
    the model) and Damaged with every finding (config.json or tensors).
    """
    config = read_config(checkpoint.config)
    geometry = Geometry(config.hidden, config.intermediate, config.experts, parts)
    require_shape(geometry)
    chosen = tuple(layer for layer in config.layers if layers is None or layer in layers)
    if not chosen:
        raise Usage(f"none of the layers asked for has experts; those that have are {ranges(config.layers)}")
    found = search(checkpoint, config, chosen)
    if found.findings:
        words = f"not the checkpoint of a whole model: {found.findings[0].message}"
        raise Damaged(words, found.findings, path=checkpoint.path)
    shards = tuple(sorted({checkpoint.weight_map[name] for name in found.tensors}))
    return MoePlan(checkpoint, config, geometry, chosen, shards, found.matrices)
