"""What a caller says must be there: a model's shape and layers, or part of it.

Owns comparing an expectation with a tree's geometry. A loader that opens a tree made for another model or
another part count would find files missing, or weights that are not its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from hwctl.errors import Finding
from hwctl.weights.amx import Geometry
from hwctl.weights.ranges import ranges


@dataclass(frozen=True, slots=True)
class Expectation:
    """None leaves a property open. ``layers`` are the model's layer numbers, ascending."""

    layers: tuple[int, ...] | None = None
    parts: int | None = None
    experts: int | None = None
    hidden: int | None = None
    intermediate: int | None = None

    @classmethod
    def of(cls, geometry: Geometry, layers: tuple[int, ...]) -> Expectation:
        return cls(layers, geometry.parts, geometry.experts, geometry.hidden, geometry.intermediate)


def judge(expected: Expectation, geometry: Geometry, layers: tuple[int, ...]) -> list[Finding]:
    """Every property in which a tree differs from what was expected of it."""
    found = []
    for what, wanted, actual in (
        ("threadpool_count", expected.parts, geometry.parts),
        ("expert_num", expected.experts, geometry.experts),
        ("hidden_size", expected.hidden, geometry.hidden),
        ("intermediate_size", expected.intermediate, geometry.intermediate),
    ):
        if wanted is not None and wanted != actual:
            found.append(_not_expected(f"{what} is {actual} where {wanted} was expected", wanted, actual))
    if expected.layers is not None and set(expected.layers) != set(layers):
        missing = sorted(set(expected.layers) - set(layers))
        extra = sorted(set(layers) - set(expected.layers))
        words = [
            f"{verb} {ranges(which)}" for verb, which in (("lacks", missing), ("has also", extra)) if which
        ]
        text = f"the tree {' and '.join(words)} of the layers expected"
        found.append(_not_expected(text, sorted(expected.layers), sorted(layers)))
    return found


def _not_expected(message: str, expected: object, actual: object) -> Finding:
    return Finding("not-expected", message, None, expected, actual)
