"""Memory that is made once and used again, as torch tensors and as bytes.

Tensors made for every block of a conversion would cost more than the arithmetic, and their sum would be
what bounds memory. Bytes come first here, since torch can look at a buffer but without numpy cannot give one.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


class Scratch:
    """One stretch of memory, grown when more is asked for. A new use overwrites the one before."""

    def __init__(self) -> None:
        self._memory = bytearray()

    def bytes(self, count: int) -> memoryview:
        """The first ``count`` bytes."""
        if len(self._memory) < count:
            self._memory = bytearray(count)
        return memoryview(self._memory)[:count]

    def tensor(self, dtype: torch.dtype, *shape: int) -> torch.Tensor:
        """The same memory as a tensor of ``shape``, which must not be empty."""
        import torch

        count = math.prod(shape)
        return torch.frombuffer(self.bytes(count * dtype.itemsize), dtype=dtype, count=count).view(shape)
