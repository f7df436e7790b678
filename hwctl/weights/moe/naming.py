"""From a tensor's name to the place it holds among a model's experts. Pure.

Owns the naming schemes: one tensor per expert and projection, as ``mlp`` or as ``block_sparse_moe``, or two
fused ones for all experts of a layer. Whether a tensor belongs there is judged by ``plan``.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

from hwctl.weights.amx import Projection
from hwctl.weights.moe.families import Family


class Role(enum.Enum):
    """What a tensor under a layer's experts is; OTHER is one that no known scheme has."""

    WEIGHT = "weight"
    SCALE = "weight_scale_inv"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Place:
    """``expert`` and ``projection`` of a tensor; both None for a fused gate-and-up tensor of all experts,
    and only ``expert`` None for a fused down tensor."""

    layer: int
    expert: int | None
    projection: Projection | None
    role: Role


_NUMBER = "(0|[1-9][0-9]*)"
_EXPERTS = re.compile(rf"model\.layers\.{_NUMBER}\.(?:mlp|block_sparse_moe)\.experts\.(.+)", re.DOTALL)
_SINGLE = re.compile(rf"{_NUMBER}\.(gate_proj|up_proj|down_proj|w1|w3|w2)\.(weight|weight_scale_inv)")
_PROJECTIONS = {
    "gate_proj": Projection.GATE,
    "up_proj": Projection.UP,
    "down_proj": Projection.DOWN,
    "w1": Projection.GATE,
    "w3": Projection.UP,
    "w2": Projection.DOWN,
}
_FUSED = {
    "gate_up_proj": (None, Role.WEIGHT),
    "down_proj": (Projection.DOWN, Role.WEIGHT),
    "gate_up_proj_scale_inv": (None, Role.SCALE),
    "down_proj_scale_inv": (Projection.DOWN, Role.SCALE),
}


def place_of(name: str, family: Family) -> Place | None:
    """Where a tensor belongs, or None for one that is not below any layer's experts."""
    found = _EXPERTS.fullmatch(name.replace("language_model.", "").removeprefix(family.prefix))
    if found is None:
        return None
    layer, rest = int(found[1]), found[2]
    if (single := _SINGLE.fullmatch(rest)) is not None:
        return Place(layer, int(single[1]), _PROJECTIONS[single[2]], Role(single[3]))
    if rest in _FUSED:
        return Place(layer, None, *_FUSED[rest])
    return Place(layer, None, None, Role.OTHER)


def expert_name(layer: int, expert: int, projection: Projection) -> str:
    """How a finding calls a tensor that ought to be there, in the most common scheme."""
    return f"model.layers.{layer}.mlp.experts.{expert}.{projection}_proj.weight"


def layer_name(layer: int) -> str:
    """How a finding calls the experts of a layer."""
    return f"model.layers.{layer}.mlp.experts"
