"""Every dtype that expert weights are published in, as bf16, with exactly one rounding rule per dtype.

Owns the conversions and nothing about files. Like ``int8`` it must not depend on the floating-point mode
of the calling thread, so the one product that can leave the normal range is done another way there.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_MAGNITUDE = 0x7FFFFFFF
_FIRST_NORMAL = 0x00800000
_FIRST_PLAIN = 0x05000000
"""fp32 pattern of 2^-117: from here on the smallest e4m3 code (2^-9) still gives a normal product."""
_FIRST_LARGE = 0x7B800000
"""2^120: from here on 256 times the scale is no number any more."""
_NAN_CODE = 0x7F


def from_fp16(stored: torch.Tensor, out: torch.Tensor, wide: torch.Tensor) -> None:
    """fp16 to bf16, ties to even; by way of fp32 ``wide``, for which there are fast conversions."""
    wide.copy_(stored)
    out.copy_(wide)


def dequantise_blocks(
    codes: torch.Tensor,
    scales: torch.Tensor,
    block: tuple[int, int],
    origin: tuple[int, int],
    out: torch.Tensor,
    products: torch.Tensor,
) -> None:
    """e4m3 ``codes`` [rows, columns] times their block's scale, into bf16 ``out`` of the same shape.

    The codes are a cut-out of a matrix, beginning at ``origin``; ``scales`` [block rows, block columns],
    fp32 or bf16, are those of the whole matrix, cut into ``block`` from its first element, the last block
    of a row or column being partial. ``products`` is fp32 scratch of the codes' shape. The rule is that of
    kt-kernel's Triton kernel: the fp32 product rounded once, then rounded to bf16.
    """
    import torch

    factors = scales.to(torch.float32)
    magnitudes = factors.view(torch.int32) & _MAGNITUDE
    plain = (magnitudes >= _FIRST_PLAIN) & (magnitudes < _FIRST_LARGE) | (magnitudes == 0)
    exact = not bool(plain.all())
    _widen(codes, out, products)
    rows, columns = codes.shape
    row = 0
    while row < rows:
        block_row = (origin[0] + row) // block[0]
        until = min(rows, (block_row + 1) * block[0] - origin[0])
        factor = factors[block_row].repeat_interleave(block[1])[origin[1] : origin[1] + columns]
        if exact:
            out[row:until] = _exact_product(products[row:until] * 256, factor)
        else:
            out[row:until].copy_(products[row:until].mul_(factor * 256))
        row = until


def _widen(codes: torch.Tensor, out: torch.Tensor, products: torch.Tensor) -> None:
    """A 256th of each code's value into ``products``; ``out`` is scratch.

    torch converts e4m3 one by one. As fp16 the same bits, moved, mean a 256th, subnormals included, which
    leaves a conversion that processors have and that no floating-point mode touches. Only NaN differs.
    """
    import torch

    signed, halves = codes.view(torch.int8), out.view(torch.int16)
    halves.copy_(signed).mul_(128).bitwise_and_(~0x4000)
    products.copy_(halves.view(torch.float16))
    if _largest_code(signed, out) == _NAN_CODE:
        products.masked_fill_((signed & _NAN_CODE) == _NAN_CODE, math.nan)


def _largest_code(signed: torch.Tensor, out: torch.Tensor) -> int:
    """The largest code without its sign; the memory of ``out`` is scratch."""
    import torch

    magnitudes = out.view(torch.int8).view(-1)[: signed.numel()].view(signed.shape)
    torch.bitwise_and(signed, _NAN_CODE, out=magnitudes)
    return int(magnitudes.amax())


def _exact_product(values: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """The same rule where a product may be subnormal: exact in float64, in units of 2^-149.

    Rounded to a whole number of units it is what fp32 without flushing holds; bf16's subnormals are the
    multiples of 2^16 units, so a whole number of those is already the pattern.
    """
    import torch

    pattern = factor.view(torch.int32)
    subnormal = (pattern & _MAGNITUDE) < _FIRST_NORMAL
    mantissa = (pattern & (_FIRST_NORMAL - 1)).to(torch.float64)
    units = torch.where(subnormal, mantissa.copysign(factor), factor.to(torch.float64) * 2.0**149)
    product = values.to(torch.float64) * units
    small = product.abs() < 2.0**23
    patterns = (product.abs().round() / 2.0**16).round().to(torch.int16)
    negative = torch.signbit(product)
    patterns = torch.where(negative, patterns | -0x8000, patterns)
    # A normal product needs no care beyond its two roundings; 1 stands in for the others on the way.
    plain = (product * 2.0**-149).masked_fill(small, 1.0).to(torch.float32)
    return torch.where(small, patterns.view(torch.bfloat16), plain.to(torch.bfloat16))
