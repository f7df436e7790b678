"""Packed codes and scales back to weights, a stretch of rows at a time."""

from __future__ import annotations

import torch

from hwctl.weights import amx
from hwctl.weights.dequantise import Dequantiser


def packed(codes: torch.Tensor) -> memoryview:
    out = torch.empty(codes.numel(), dtype=torch.int8)
    amx.Packing(codes, out).pack()
    return memoryview(bytearray(out.numpy().tobytes()))


def test_a_matrix_in_stretches() -> None:
    codes = torch.randint(-127, 128, (192, 3712), dtype=torch.int8)
    scales = torch.rand(192) + 0.1
    data, raw = packed(codes), memoryview(bytearray(scales.numpy().tobytes()))
    out = torch.empty(192, 3712)
    dequantiser = Dequantiser()
    for first, last in ((0, 128), (128, 192)):
        stretch = data[first * 3712 : last * 3712]
        dequantiser.rows(stretch, raw[4 * first : 4 * last], out[first:last])
    assert torch.equal(out, codes.float() * scales[:, None])


def test_parts_side_by_side_in_one_tensor() -> None:
    """As the parts of a down matrix are put together."""
    out = torch.empty(64, 384)
    whole = []
    dequantiser = Dequantiser()
    for part in range(2):
        codes = torch.randint(-127, 128, (64, 192), dtype=torch.int8)
        scales = torch.rand(64) + 0.1
        raw = memoryview(bytearray(scales.numpy().tobytes()))
        dequantiser.rows(packed(codes), raw, out[:, part * 192 : (part + 1) * 192])
        whole.append(codes.float() * scales[:, None])
    assert torch.equal(out, torch.cat(whole, 1))


def test_the_smallest_scale_and_a_row_of_zeros() -> None:
    codes = torch.zeros(64, 64, dtype=torch.int8)
    codes[0] = -127
    scales = torch.zeros(64)
    scales[0] = 2.0**-126
    out = torch.empty(64, 64)
    raw = memoryview(bytearray(scales.numpy().tobytes()))
    Dequantiser().rows(packed(codes), raw, out)
    assert torch.equal(out[0], torch.full((64,), -127 * 2.0**-126))
    assert not out[1:].any()
