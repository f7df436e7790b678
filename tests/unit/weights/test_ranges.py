"""Numbers as people write them."""

from __future__ import annotations

from hwctl.weights.ranges import ranges


def test_ranges() -> None:
    assert ranges([0, 1, 2, 3, 7, 9, 10]) == "0-3,7,9-10"
    assert ranges([]) == ""
