"""Whether weights are finite, looked at in small blocks with torch where it is installed.

Owns the arithmetic only. Which bytes belong to which tensor is known to the caller, which has them in
memory anyway for hashing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from hwctl.weights.torch_here import torch_loads

FiniteTest = Callable[[memoryview], bool]
"""Told a writable block of whole elements, says whether all of them are finite. May be empty."""

# From 32768 elements on torch spreads a reduction over its thread pool, which spins: on a shared node that
# made the same check slower by far, and a library has no business setting the caller's thread count.
_SERIAL_ELEMENTS = 32767

# float8_e8m0fnu has a NaN, but torch 2.13 calls it finite, and a page is judged as its own program judges it.
_NO_NONFINITE = frozenset({"BOOL", "U8", "I8", "I16", "U16", "I32", "U32", "I64", "U64", "F8_E8M0"})
_BY_RANGE = {
    "F16": ("float16", 2),
    "BF16": ("bfloat16", 2),
    "F32": ("float32", 4),
    "F64": ("float64", 8),
    "C64": ("float32", 4),  # finite when both its parts are
}
_E5M2_EXPONENT = 0x7C


def finite_test(code: str) -> FiniteTest | None:
    """The test for a safetensors dtype code, or None when it needs torch and torch is not installed.

    Negative zero and subnormals are finite. Raises KeyError for a dtype the cache cannot hold.
    """
    if code in _NO_NONFINITE:
        return _always
    if not torch_loads():
        return None
    import torch

    if code == "F8_E5M2":
        return lambda block: all(
            int((torch.frombuffer(part, dtype=torch.uint8) & _E5M2_EXPONENT).max()) != _E5M2_EXPONENT
            for part in _parts(block, 1)
        )
    name, width = _BY_RANGE[code]
    dtype: torch.dtype = getattr(torch, name)

    def by_range(block: memoryview) -> bool:
        # A NaN anywhere makes both ends NaN, and an infinity is an end: two numbers tell all.
        for part in _parts(block, width):
            low, high = torch.aminmax(torch.frombuffer(part, dtype=dtype))
            if not (math.isfinite(low.item()) and math.isfinite(high.item())):
                return False
        return True

    return by_range


def load_for(code: str | None) -> None:
    """Load now what the test of a dtype needs, so that nobody waits for it with a page's lock in hand: the
    first import of torch takes seconds, and the cache's own program waits for that lock at every access."""
    if code in _BY_RANGE or code == "F8_E5M2":
        torch_loads()


def _parts(block: memoryview, width: int) -> Iterator[memoryview]:
    step = _SERIAL_ELEMENTS * width
    for start in range(0, len(block), step):
        yield block[start : start + step]


def _always(_block: memoryview) -> bool:
    return True
