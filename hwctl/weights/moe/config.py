"""What config.json says about a model's experts: their number, their shape, and which layers have them.

Pure: takes the parsed object, gives a typed value or raises with a finding for every key at fault. Which
keys a family has, and their defaults, is the table in ``families``. What must be in the checkpoint follows
from here alone, never from what is found there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hwctl.errors import Damaged, Finding, Unsupported
from hwctl.weights.amx import Projection
from hwctl.weights.moe.families import Family, find_family

CONFIG = "config.json"
EXPERT_KEYS = ("n_routed_experts", "num_experts", "num_local_experts")
"""Names of the expert count; a library may rename it when it saves a model, so each is read in any family."""
_LARGEST = 2**31 - 1
_MOST_LAYERS = 1 << 14
_MOST_EXPERTS = 1 << 16


@dataclass(frozen=True, slots=True)
class MoeConfig:
    """Sizes in elements. ``block`` is the [rows, columns] an e4m3 scale stands for, None where not stated."""

    family: Family
    hidden: int
    intermediate: int
    experts: int
    hidden_layers: int
    layers: tuple[int, ...]
    block: tuple[int, int] | None

    def shape(self, projection: Projection) -> tuple[int, int]:
        """[rows, columns] of an expert's matrix, a row being an output feature."""
        if projection is Projection.DOWN:
            return self.hidden, self.intermediate
        return self.intermediate, self.hidden


def read_config(config: Mapping[str, object] | None) -> MoeConfig:
    """Judge a parsed config.json. Raises Unsupported for the family or its quantisation, else Damaged."""
    if config is None:
        missing = Finding(
            "config-missing", "config.json, which says what experts there are, is missing", CONFIG
        )
        raise Damaged("the checkpoint has no config.json", [missing])
    family = find_family(config)
    text = _nested(config, family)
    block_value = _quantisation(family, text, config)
    keys = _Keys(text)
    hidden = keys.integer("hidden_size", 1)
    intermediate = keys.one_of(family.width_keys)
    experts = keys.agreed(EXPERT_KEYS, _MOST_EXPERTS)
    count = keys.integer("num_hidden_layers", 1, _MOST_LAYERS)
    layers = _moe_layers(family, keys, count)
    block = keys.block(block_value)
    if not keys.findings and not layers:
        keys.fault("num_hidden_layers", "no layer with experts is left by the rules of this model family")
    if keys.findings:
        raise Damaged(f"{CONFIG}: {keys.findings[0].message}", keys.findings)
    return MoeConfig(family, hidden, intermediate, experts, count, layers, block)


def _nested(config: Mapping[str, object], family: Family) -> Mapping[str, object]:
    for key in family.nesting:
        inner = config.get(key)
        if isinstance(inner, Mapping):
            config = inner
    return config


def _quantisation(family: Family, *configs: Mapping[str, object]) -> object:
    """The stated weight_block_size, whatever it is; a method other than block fp8 is refused by name."""
    for config in configs:
        stated = config.get("quantization_config")
        if isinstance(stated, Mapping):
            method = stated.get("quant_method")
            if method not in (None, "fp8"):
                raise Unsupported(
                    f"model family {family.name or 'unnamed'} quantised with {method}: not convertible"
                )
            return stated.get("weight_block_size")
    return None


def _moe_layers(family: Family, keys: _Keys, count: int) -> tuple[int, ...]:
    rule = family.layers
    if rule.mlp_layer_types and (kinds := keys.layer_kinds(count)) is not None:
        return tuple(layer for layer, kind in enumerate(kinds) if kind == "sparse")
    first = keys.optional("first_k_dense_replace", rule.first_k_dense_replace, 0, neutral=0)
    every = keys.optional("moe_layer_freq", rule.moe_layer_freq, 1, neutral=1)
    step = keys.optional("decoder_sparse_step", rule.decoder_sparse_step, 1, neutral=1)
    dense = keys.layer_list("mlp_only_layers", rule.mlp_only_layers)
    return tuple(
        layer
        for layer in range(first, count)
        if layer % every == 0 and (layer + 1) % step == 0 and layer not in dense
    )


class _Keys:
    """Reads typed values out of one JSON object and collects what is wrong with them. Null is absent.

    After a fault a harmless stand-in is returned, so that every key is judged before anything is raised.
    """

    def __init__(self, config: Mapping[str, object]) -> None:
        self._config = config
        self.findings: list[Finding] = []

    def fault(self, key: str, message: str, actual: object = None) -> None:
        self.findings.append(Finding("config-key", f"{key}: {message}", CONFIG, actual=actual))

    def integer(self, key: str, least: int, most: int = _LARGEST) -> int:
        value = self._config.get(key)
        if value is None:
            self.fault(key, "missing")
            return least
        if type(value) is not int or not least <= value <= most:
            self.fault(key, f"must be an integer from {least} to {most}", value)
            return max(least, 1)
        return value

    def optional(self, key: str, default: int | None, least: int, *, neutral: int) -> int:
        if default is None:
            return neutral
        return default if self._config.get(key) is None else self.integer(key, least)

    def one_of(self, names: tuple[str, ...]) -> int:
        """The first of several keys that is there."""
        return self.integer(next((key for key in names if self._config.get(key) is not None), names[0]), 1)

    def agreed(self, names: tuple[str, ...], most: int) -> int:
        """A value that may stand under several names, which must not contradict each other."""
        there = [key for key in names if self._config.get(key) is not None]
        values = {self.integer(key, 1, most) for key in there}
        if not there:
            self.fault(" or ".join(names), "missing")
        elif len(values) > 1:
            self.fault(" and ".join(there), "contradict each other", sorted(values))
        return min(values, default=1)

    def layer_list(self, key: str, default: tuple[int, ...] | None) -> frozenset[int]:
        value = self._config.get(key)
        if default is None or value is None:
            return frozenset(default or ())
        if not isinstance(value, list) or any(type(layer) is not int for layer in value):
            self.fault(key, "must be a list of layer numbers", value)
            return frozenset()
        return frozenset(value)

    def layer_kinds(self, count: int) -> list[object] | None:
        key = "mlp_layer_types"
        value = self._config.get(key)
        if value is None:
            return None
        if (
            not isinstance(value, list)
            or len(value) != count
            or any(v not in ("dense", "sparse") for v in value)
        ):
            self.fault(key, f'must be a list of {count} times "dense" or "sparse"', value)
            return None
        return value

    def block(self, value: object) -> tuple[int, int] | None:
        if value is None:
            return None
        if isinstance(value, list) and len(value) == 2 and all(type(v) is int and v > 0 for v in value):
            return value[0], value[1]
        self.fault("quantization_config.weight_block_size", "must be a list of two positive integers", value)
        return None
