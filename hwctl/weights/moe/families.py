"""The table of model families whose experts can be converted, and those refused with a reason.

Owns what is known about a family before its files are looked at: which config keys say which layers have
experts, which key holds an expert's width, and which way round its fused tensors are published. Reading
the values is ``config``; tensor names are ``naming``. Layer rules and defaults are those of the families'
config classes.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from hwctl.errors import Unsupported


class Fused(enum.Enum):
    """Which way round the tensors of all experts of a layer are stored."""

    OUTPUT_FIRST = "[E, 2I, H] and [E, H, I]"
    INPUT_FIRST = "[E, H, 2I] and [E, I, H]"


@dataclass(frozen=True, slots=True)
class LayerRule:
    """Which layers have experts: the config keys that say so, each with the family's default.

    None means that the family does not know the key; whatever config.json says under it is ignored.
    """

    first_k_dense_replace: int | None = None
    moe_layer_freq: int | None = None
    decoder_sparse_step: int | None = None
    mlp_only_layers: tuple[int, ...] | None = None
    mlp_layer_types: bool = False


@dataclass(frozen=True, slots=True)
class Family:
    """One row of the table. ``prefix`` stands before ``model.`` in its tensor names, ``nesting`` leads from
    the whole of config.json to the text model's part of it, as far as those keys are there."""

    name: str
    layers: LayerRule
    width_keys: tuple[str, ...] = ("moe_intermediate_size",)
    fused: Fused | None = None
    prefix: str = ""
    nesting: tuple[str, ...] = ("text_config",)


EVERY_LAYER = LayerRule()
SPARSE_STEP = LayerRule(decoder_sparse_step=1, mlp_only_layers=())


def _after_dense(first: int) -> LayerRule:
    return LayerRule(first_k_dense_replace=first, moe_layer_freq=1)


def _after_dense_or_listed(first: int) -> LayerRule:
    return LayerRule(first_k_dense_replace=first, moe_layer_freq=1, mlp_layer_types=True)


_FAMILIES = (
    Family("deepseek_v2", _after_dense(0)),
    Family("deepseek_v3", _after_dense(3)),
    Family("deepseek_v32", _after_dense_or_listed(3)),
    Family("kimi_k2", _after_dense(3)),
    Family("glm4_moe", _after_dense(1)),
    Family("glm4v_moe", _after_dense(1)),
    Family("glm4_moe_lite", _after_dense_or_listed(1)),
    Family("glm_moe_dsa", _after_dense_or_listed(3)),
    Family("qwen2_moe", SPARSE_STEP),
    Family("qwen3_moe", SPARSE_STEP),
    Family("qwen3_next", SPARSE_STEP),
    Family("qwen3_vl_moe", SPARSE_STEP, fused=Fused.INPUT_FIRST),
    Family("qwen3_omni_moe", SPARSE_STEP, prefix="thinker.", nesting=("thinker_config", "text_config")),
    Family("qwen3_5_moe", EVERY_LAYER, fused=Fused.OUTPUT_FIRST),
    Family("minimax", EVERY_LAYER, width_keys=("intermediate_size",)),  # M2 was first published so
    Family("minimax_m2", EVERY_LAYER, width_keys=("intermediate_size",)),
    Family("mixtral", EVERY_LAYER, width_keys=("intermediate_size",)),
)

FAMILIES: Mapping[str, Family] = MappingProxyType({family.name: family for family in _FAMILIES})

UNNAMED = Family(
    "",
    LayerRule(0, 1, 1, (), mlp_layer_types=True),
    width_keys=("moe_intermediate_size", "intermediate_size"),
)
"""A config.json without a model_type: every rule it states is followed, and no orientation is known."""

_REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "gpt_oss": "its experts have biases and a clamped activation, which this layout cannot hold",
        "deepseek_v4": "its experts are MXFP4, which kt-kernel serves in a format of its own",
    }
)


def find_family(config: Mapping[str, object]) -> Family:
    """The family of a config.json, by its own model_type or else by that of its text model.

    Raises Unsupported, naming the model_type, for a family that cannot be converted or is not known.
    """
    named = [name for part in (config, *_text_parts(config)) if (name := part.get("model_type")) is not None]
    if not named:
        return UNNAMED
    for name in named:
        for known in (str(name), str(name).removesuffix("_text")):
            if known in _REFUSED:
                raise Unsupported(f"model family {known} cannot be converted: {_REFUSED[known]}")
            if known in FAMILIES:
                return FAMILIES[known]
    raise Unsupported(
        f"model family {named[0]} is not one whose experts hwctl knows how to convert;"
        f" known are {' '.join(FAMILIES)}"
    )


def _text_parts(config: Mapping[str, object]) -> list[Mapping[str, object]]:
    part = config.get("text_config")
    return [part] if isinstance(part, Mapping) else []
