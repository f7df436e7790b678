"""Layers whose experts have a tensor for each projection, stored [output, input]. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hwctl.weights.amx import Projection
from hwctl.weights.moe.config import CONFIG
from hwctl.weights.moe.inventory import Inventory
from hwctl.weights.moe.matrix import Matrix
from hwctl.weights.moe.naming import Place, Role, expert_name


def single_matrices(
    inventory: Inventory, layer: int, there: Mapping[Place, str]
) -> Iterator[tuple[int, Projection, Matrix]]:
    """Every matrix of a layer that is as it must be; ``there`` are the layer's tensors by place."""
    left = dict(there)
    for expert in range(inventory.config.experts):
        for projection in Projection:
            name = left.pop(Place(layer, expert, projection, Role.WEIGHT), None)
            scales = left.pop(Place(layer, expert, projection, Role.SCALE), None)
            if name is None:
                inventory.missing(expert_name(layer, expert, projection))
                continue
            shape = inventory.config.shape(projection)
            if (entry := inventory.entry(name, [shape])) is not None:
                matrix = inventory.scaled(Matrix(name, entry.dtype, shape, *shape), scales, shape)
                if matrix is not None:
                    yield expert, projection, matrix
    for name in left.values():
        words = f"{name}: by {CONFIG} there are {inventory.config.experts} experts"
        inventory.fault("tensor-unexpected", words, name)
