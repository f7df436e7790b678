"""Finds every expert's matrices among a checkpoint's tensors, and says what is wrong with those it finds.

Pure: names, shapes and dtypes from the headers are held against config.json, and a tensor too few, too many,
of another shape or without its scales is a finding. The two ways of storing a layer are ``single`` and
``fused``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hwctl.errors import Finding, Unsupported
from hwctl.weights.amx import Projection
from hwctl.weights.checkpoint import Checkpoint
from hwctl.weights.moe.config import CONFIG, MoeConfig
from hwctl.weights.moe.fused import fused_matrices
from hwctl.weights.moe.inventory import Inventory
from hwctl.weights.moe.matrix import Matrix
from hwctl.weights.moe.naming import Place, Role, layer_name, place_of
from hwctl.weights.moe.single import single_matrices


@dataclass(frozen=True, slots=True)
class Found:
    """Every matrix wanted, by layer, expert and projection, and the names of the tensors they lie in; or
    there are findings."""

    matrices: Mapping[tuple[int, int, Projection], Matrix]
    tensors: frozenset[str]
    findings: tuple[Finding, ...]


def search(checkpoint: Checkpoint, config: MoeConfig, layers: Sequence[int]) -> Found:
    """Look through a checkpoint for ``layers``, all of which have experts by config.

    A config.json that promises too much could ask for millions of findings: the search ends with the layer
    in which there are enough of them, and tells how many it did not keep. Raises Unsupported at the first
    tensor of a form not known.
    """
    inventory = Inventory(checkpoint, config)
    matrices: dict[tuple[int, int, Projection], Matrix] = {}
    places = _by_layer(inventory, frozenset(layers))
    for layer in layers:
        if inventory.findings.more:
            break
        there = places.get(layer, {})
        fused = {place for place in there if place.expert is None}
        if not there:
            words = f"{layer_name(layer)}: no experts, though {CONFIG} promises them"
            inventory.fault("missing-layer", words)
            continue
        if fused and len(fused) < len(there):
            name = there[min(fused, key=lambda place: there[place])]
            inventory.fault("tensor-unexpected", f"{name}: fused beside tensors of single experts", name)
            continue
        found = (fused_matrices if fused else single_matrices)(inventory, layer, there)
        matrices |= {(layer, expert, projection): matrix for expert, projection, matrix in found}
    told, more = inventory.findings.told, inventory.findings.more
    last = (Finding("more-findings", f"and at least {more} more"),) if more else ()
    return Found(matrices, frozenset(inventory.used), (*told, *last))


def _by_layer(inventory: Inventory, layers: frozenset[int]) -> dict[int, dict[Place, str]]:
    """Layer -> place -> tensor name, for the layers wanted. MTP layers, past the last, are left out."""
    config = inventory.config
    places: dict[int, dict[Place, str]] = defaultdict(dict)
    with_experts = frozenset(config.layers)
    for name in inventory.names:
        place = place_of(name, config.family)
        if place is None or place.layer >= config.hidden_layers:
            continue
        if place.layer not in with_experts:
            inventory.fault("tensor-unexpected", f"{name}: by {CONFIG} this layer has no experts", name)
        elif place.layer in layers:
            if place.role is Role.OTHER:
                raise Unsupported(f"{name}: experts stored in this form cannot be converted")
            other = places[place.layer].setdefault(place, name)
            if other != name:
                inventory.fault("tensor-ambiguous", f"{name} and {other} are the same matrix", name)
    return places
