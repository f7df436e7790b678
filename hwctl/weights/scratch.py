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
        self._tensors: dict[tuple[object, ...], torch.Tensor] = {}

    @property
    def size(self) -> int:
        """Bytes held; when it has changed, earlier views show memory that nothing else uses any more."""
        return len(self._memory)

    def bytes(self, count: int) -> memoryview:
        """The first ``count`` bytes."""
        if len(self._memory) < count:
            self._memory = bytearray(count)
            self._tensors.clear()
        return memoryview(self._memory)[:count]

    def tensor(self, dtype: torch.dtype, *shape: int) -> torch.Tensor:
        """The same memory as a tensor of ``shape``, which must not be empty; for the same the same one."""
        import torch

        found = self._tensors.get((dtype, shape))
        if found is None:
            count = math.prod(shape)
            memory = self.bytes(count * dtype.itemsize)
            found = torch.frombuffer(memory, dtype=dtype, count=count).view(shape)
            self._tensors[dtype, shape] = found
        return found
