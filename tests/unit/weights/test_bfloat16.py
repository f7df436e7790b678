"""e4m3 blocks against the authoritative rule in exact fractions, in both floating-point modes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from fractions import Fraction

import pytest
import torch

from hwctl.weights.bfloat16 import dequantise_blocks


@pytest.fixture(params=[False, True], ids=["plain", "flushing"], autouse=True)
def floating_point_mode(request: pytest.FixtureRequest) -> Iterator[None]:
    torch.set_flush_denormal(request.param)
    yield
    torch.set_flush_denormal(False)


CODES = [code for code in range(256) if code & 0x7F != 0x7F]


def value_of(bits: int, exponent_bits: int, mantissa_bits: int) -> Fraction:
    """A small float's value from its pattern; infinities and NaN do not come up."""
    exponent = bits >> mantissa_bits & ((1 << exponent_bits) - 1)
    mantissa = bits & ((1 << mantissa_bits) - 1)
    bias = (1 << (exponent_bits - 1)) - 1
    whole = mantissa | (1 << mantissa_bits) if exponent else mantissa
    value = whole * Fraction(2) ** (max(exponent, 1) - bias - mantissa_bits)
    return -value if bits >> (exponent_bits + mantissa_bits) else value


def rounded(value: Fraction, bits: int) -> Fraction:
    """To ``bits`` of mantissa, ties to even, with fp32's exponent range (which bf16 shares)."""
    if not value:
        return value
    exponent = -126
    while Fraction(2) ** (exponent + 1) <= abs(value):
        exponent += 1
    unit = Fraction(2) ** (exponent - bits + 1)
    return round(value / unit) * unit


def dequantised(codes: list[int], scale: int) -> list[int]:
    """bf16 patterns of a row of codes under one fp32 scale pattern."""
    stored = torch.tensor([codes], dtype=torch.uint8).view(torch.float8_e4m3fn)
    signed = scale - (1 << 32) if scale >> 31 else scale
    scales = torch.tensor([[signed]], dtype=torch.int32).view(torch.float32)
    out = torch.empty(1, len(codes), dtype=torch.bfloat16)
    dequantise_blocks(stored, scales, (128, 256), (0, 0), out, torch.empty(1, len(codes)))
    return [pattern & 0xFFFF for pattern in out.view(torch.int16)[0].tolist()]


def scale_patterns() -> list[int]:
    """Subnormal, about the smallest normal product, about 1, and large ones; some exact, some negative."""
    generator = random.Random(8)
    patterns = [0, 1, 0x8000_0001, 0x007F_FFFF, 0x0080_0000, 0x04FF_FFFF, 0x0500_0000]
    for exponent in (0, 1, 2, 5, 8, 9, 10, 11, 20, 112, 127, 140):
        for mantissa in (0, 0x7FFFFF, generator.getrandbits(23), generator.getrandbits(11) << 12):
            patterns.append(generator.getrandbits(1) << 31 | exponent << 23 | mantissa)
    return patterns


def test_one_rounding_to_fp32_then_one_to_bf16() -> None:
    for scale in scale_patterns():
        for code, pattern in zip(CODES, dequantised(CODES, scale), strict=True):
            product = value_of(code, 4, 3) * value_of(scale, 8, 23)
            assert value_of(pattern, 8, 7) == rounded(rounded(product, 24), 8), (hex(scale), hex(code))


@pytest.mark.parametrize("scale", [0x3F80_0000, 0x0010_0000], ids=["plain", "tiny"])
def test_nan_codes_stay_nan(scale: int) -> None:
    assert all(pattern & 0x7FFF > 0x7F80 for pattern in dequantised([0x7F, 0xFF], scale))


def test_a_product_beyond_bf16_is_infinite() -> None:
    assert dequantised([0x7E], 0x7F00_0000) == [0x7F80]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("origin", [(0, 0), (64, 0), (100, 40), (128, 128)])
def test_blocks_of_a_cut_out(dtype: torch.dtype, origin: tuple[int, int]) -> None:
    """The blocks are those of the whole matrix, whose last ones are partial, wherever the cut begins."""
    rows, columns, block = 300, 200, (128, 96)
    codes = torch.randint(0, 0x7F, (rows, columns), dtype=torch.uint8).view(torch.float8_e4m3fn)
    scales = (torch.rand(3, 3) + 0.5).to(dtype)
    full = scales.float().repeat_interleave(128, 0)[:rows].repeat_interleave(96, 1)[:, :columns]
    expected = (codes.float() * full).to(torch.bfloat16)[origin[0] :, origin[1] :]
    cut = codes[origin[0] :, origin[1] :]
    out = torch.empty(cut.shape, dtype=torch.bfloat16)
    dequantise_blocks(cut, scales, block, origin, out, torch.empty(cut.shape))
    assert torch.equal(out, expected)
