"""The element types a safetensors header may name: their widths, and what torch calls them.

Widths are in bits, because the 4- and 6-bit types have no whole number of bytes an element. Nothing here
needs torch or numpy: a dtype is a string (INS-04).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

DTYPE_BITS: Mapping[str, int] = MappingProxyType(
    {
        "BOOL": 8,
        "F4": 4,
        "F6_E2M3": 6,
        "F6_E3M2": 6,
        "U8": 8,
        "I8": 8,
        "F8_E5M2": 8,
        "F8_E4M3": 8,
        "F8_E8M0": 8,
        "F8_E4M3FNUZ": 8,
        "F8_E5M2FNUZ": 8,
        "I16": 16,
        "U16": 16,
        "F16": 16,
        "BF16": 16,
        "I32": 32,
        "U32": 32,
        "F32": 32,
        "C64": 64,
        "F64": 64,
        "I64": 64,
        "U64": 64,
    }
)
"""Every code of safetensors 0.8 with its width in bits."""

TORCH_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "BOOL": "torch.bool",
        "F4": "torch.float4_e2m1fn_x2",
        "U8": "torch.uint8",
        "I8": "torch.int8",
        "F8_E5M2": "torch.float8_e5m2",
        "F8_E4M3": "torch.float8_e4m3fn",
        "F8_E8M0": "torch.float8_e8m0fnu",
        "F8_E4M3FNUZ": "torch.float8_e4m3fnuz",
        "F8_E5M2FNUZ": "torch.float8_e5m2fnuz",
        "I16": "torch.int16",
        "U16": "torch.uint16",
        "F16": "torch.float16",
        "BF16": "torch.bfloat16",
        "I32": "torch.int32",
        "U32": "torch.uint32",
        "F32": "torch.float32",
        "C64": "torch.complex64",
        "F64": "torch.float64",
        "I64": "torch.int64",
        "U64": "torch.uint64",
    }
)
"""Code -> the text torch prints. The 6-bit types have no torch dtype and so no entry."""

CODES: Mapping[str, str] = MappingProxyType({torch: code for code, torch in TORCH_NAMES.items()})
"""The text torch prints -> code."""
