"""Offsets, packing and the shape rule of the tile layout."""

from __future__ import annotations

import pytest
import torch

from hwctl.errors import Unsupported, Usage
from hwctl.weights import amx
from hwctl.weights.amx import Geometry, Kind, Projection


@pytest.mark.parametrize(
    ("element", "shape", "offset"),
    [
        ((0, 0), (64, 64), 0),
        ((0, 1), (64, 64), 1),
        ((0, 4), (64, 64), 64),
        ((1, 0), (64, 64), 4),
        ((16, 0), (64, 64), 1024),
        ((32, 0), (64, 64), 2048),
        ((63, 63), (64, 64), 4095),
        ((0, 64), (64, 128), 2048),
        ((32, 0), (64, 128), 4096),
        ((64, 0), (128, 128), 8192),
        ((0, 3584), (64, 3712), 229376),
        ((33, 3600), (64, 3712), 233732),
        ((100, 3650), (128, 3712), 473106),
    ],
)
def test_published_offsets(element: tuple[int, int], shape: tuple[int, int], offset: int) -> None:
    assert amx.offset(*element, *shape) == offset


@pytest.mark.parametrize("shape", [(64, 64), (128, 192), (192, 3584), (64, 3648), (128, 7296)])
def test_packing_goes_by_the_offsets_and_back(shape: tuple[int, int]) -> None:
    codes = torch.randint(-127, 128, shape, dtype=torch.int8)
    packed = torch.zeros(codes.numel(), dtype=torch.int8)
    amx.Packing(codes, packed).pack()
    seen = torch.randint(0, codes.numel(), (300,)).tolist()
    for row, column in ((at // shape[1], at % shape[1]) for at in [0, *seen, codes.numel() - 1]):
        assert packed[amx.offset(row, column, *shape)] == codes[row, column]
    back = torch.zeros_like(codes)
    amx.Packing(back, packed).unpack()
    assert torch.equal(back, codes)


def test_every_offset_is_taken_once() -> None:
    rows, columns = 128, 3648
    offsets = {amx.offset(row, column, rows, columns) for row in range(rows) for column in range(columns)}
    assert offsets == set(range(rows * columns))


def test_row_blocks_follow_each_other() -> None:
    """What lets a matrix be packed stretch by stretch."""
    codes = torch.randint(-127, 128, (192, 3712), dtype=torch.int8)
    whole, parts = torch.zeros(codes.numel(), dtype=torch.int8), torch.zeros(codes.numel(), dtype=torch.int8)
    amx.Packing(codes, whole).pack()
    for row in (0, 64, 128):
        amx.Packing(codes[row : row + 64], parts[row * 3712 : (row + 64) * 3712]).pack()
    assert torch.equal(whole, parts)


def test_sizes() -> None:
    geometry = Geometry(hidden=128, intermediate=384, experts=5, parts=2)
    assert geometry.shape(Projection.UP) == (192, 128)
    assert geometry.shape(Projection.DOWN) == (128, 192)
    assert geometry.file_bytes(Projection.DOWN, Kind.QUANT) == 128 * 192
    assert geometry.file_bytes(Projection.GATE, Kind.SCALE) == 4 * 192
    assert geometry.layer_files == 60
    assert geometry.layer_bytes == 2 * 5 * (3 * 128 * 192 + 8 * 192 + 4 * 128)


@pytest.mark.parametrize(
    ("intermediate", "allowed"),
    [
        (2048, (1, 2, 4, 8, 16, 32)),
        (1536, (1, 2, 3, 4, 6, 8, 12, 24)),
        (1408, (1, 2, 11, 22)),
        (768, (1, 2, 3, 4, 6, 12)),
        (512, (1, 2, 4, 8)),
        (96, ()),
    ],
)
def test_part_counts(intermediate: int, allowed: tuple[int, ...]) -> None:
    assert amx.allowed_parts(intermediate) == allowed


@pytest.mark.parametrize(
    ("hidden", "intermediate", "parts", "refusal"),
    [
        (96, 128, 1, Unsupported),
        (128, 96, 1, Unsupported),
        (128, 128, 3, Usage),
        (128, 192, 2, Usage),
        (128, 128, 0, Usage),
        (128, 128, -1, Usage),
    ],
)
def test_shape_rule(hidden: int, intermediate: int, parts: int, refusal: type[Exception]) -> None:
    with pytest.raises(refusal):
        amx.require_shape(Geometry(hidden, intermediate, 1, parts))


def test_shape_rule_is_met() -> None:
    amx.require_shape(Geometry(128, 384, 1, 3))
