"""Every dtype that expert weights are published in, as bf16, with exactly one rounding rule per dtype.

Owns the conversions and nothing about files. Like ``int8`` it must not depend on the floating-point mode
of the calling thread, so the one product that can leave the normal range is done another way there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

SMALLEST_PLAIN_SCALE = 0x05000000
"""fp32 pattern of 2^-117: from here on the smallest e4m3 code (2^-9) still gives a normal product."""
_MAGNITUDE = 0x7FFFFFFF
_FIRST_NORMAL = 0x00800000


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

    products.copy_(codes)
    factors = scales.to(torch.float32)
    tiny = bool(_is_tiny(factors.view(torch.int32)).any())
    rows, columns = codes.shape
    row = 0
    while row < rows:
        block_row = (origin[0] + row) // block[0]
        until = min(rows, (block_row + 1) * block[0] - origin[0])
        factor = factors[block_row].repeat_interleave(block[1])[origin[1] : origin[1] + columns]
        if tiny:
            out[row:until] = _exact_product(products[row:until], factor)
        else:
            out[row:until].copy_(products[row:until].mul_(factor))
        row = until


def _is_tiny(pattern: torch.Tensor) -> torch.Tensor:
    magnitude = pattern & _MAGNITUDE
    return (magnitude != 0) & (magnitude < SMALLEST_PLAIN_SCALE)


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
