"""Layers with one tensor for gate and up of all experts and one for down, either way round. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from hwctl.errors import Unsupported
from hwctl.weights.amx import Projection
from hwctl.weights.moe.config import MoeConfig
from hwctl.weights.moe.families import Fused
from hwctl.weights.moe.inventory import Inventory
from hwctl.weights.moe.matrix import Matrix
from hwctl.weights.moe.naming import Place, Role, layer_name

_Halves = dict[Projection | None, str]
"""The tensor of gate and up under None, that of down under its projection."""


def fused_matrices(
    inventory: Inventory, layer: int, there: Mapping[Place, str]
) -> Iterator[tuple[int, Projection, Matrix]]:
    """Every matrix of a layer that is as it must be; ``there`` are the layer's tensors by place."""
    names = {place.projection: name for place, name in there.items() if place.role is Role.WEIGHT}
    scales = {place.projection: name for place, name in there.items() if place.role is Role.SCALE}
    for half, spelling in ((None, "gate_up_proj"), (Projection.DOWN, "down_proj")):
        if half not in names:
            inventory.missing(f"{layer_name(layer)}.{spelling}")
    if len(names) < 2 or (way := _orientation(inventory, names)) is None:
        return
    for projection in Projection:
        half = projection if projection is Projection.DOWN else None
        matrix = _first(inventory, names[half], scales.get(half), projection, way)
        if matrix is not None:
            for expert in range(inventory.config.experts):
                yield expert, projection, replace(matrix, expert=expert)


def _orientation(inventory: Inventory, names: _Halves) -> Fused | None:
    """Which way round two fused tensors are stored: as both shapes have it.

    The model library saves a family's tensors the other way round than they were published, so the
    shapes have the last word. Gate and up of a family whose form is not known must tell by themselves.
    """
    config = inventory.config
    shapes = {half: inventory.header(name).shape for half, name in names.items()}
    fitting = [way for way in Fused if all(shapes[half] == _shape(config, half, way) for half in names)]
    known = config.family.fused
    if not fitting:
        for half, name in names.items():
            inventory.entry(name, [_shape(config, half, way) for way in Fused if known in (None, way)])
        return None
    if known is None and shapes[None] == _shape(config, None, Fused.INPUT_FIRST) == (
        _shape(config, None, Fused.OUTPUT_FIRST)
    ):
        raise Unsupported(
            f"{names[None]}: with shape {list(shapes[None])} it may be stored either way round, and no"
            f" orientation is known of model family {config.family.name or '(none stated)'}"
        )
    inventory.used.update(names.values())
    return fitting[0]


def _shape(config: MoeConfig, half: Projection | None, way: Fused) -> tuple[int, int, int]:
    hidden, intermediate = config.hidden, config.intermediate
    rows, columns = (hidden, intermediate) if half else (2 * intermediate, hidden)
    ends = (rows, columns) if way is Fused.OUTPUT_FIRST else (columns, rows)
    return (config.experts, *ends)


def _first(
    inventory: Inventory, name: str, scales: str | None, projection: Projection, way: Fused
) -> Matrix | None:
    """The first expert's matrix of one projection in a fused tensor; None where its scales are wrong."""
    entry = inventory.header(name)
    slab = entry.shape[1], entry.shape[2]
    rows, columns = inventory.config.shape(projection)
    begin = rows if projection is Projection.UP else 0
    transposed = way is Fused.INPUT_FIRST
    matrix = Matrix(
        name,
        entry.dtype,
        slab,
        rows,
        columns,
        expert=0,
        origin=(0, begin) if transposed else (begin, 0),
        transposed=transposed,
    )
    return inventory.scaled(matrix, scales, (inventory.config.experts, *slab))
