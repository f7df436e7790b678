"""From packed codes and scales back to weights: what the kernels compute with, as fp32.

Owns the arithmetic for a stretch of whole row blocks: RN32(code * scale), one rounding, nothing guessed
about the weights before quantisation. Which files the bytes come from is the caller's business.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hwctl.weights.amx import Packing
from hwctl.weights.scratch import Scratch

if TYPE_CHECKING:
    import torch


class Dequantiser:
    """Dequantises stretches in buffers made once. One per thread."""

    def __init__(self) -> None:
        self._codes = Scratch()

    def rows(self, packed: memoryview, scales: memoryview, out: torch.Tensor) -> None:
        """``packed`` codes of whole row blocks and their fp32 ``scales`` into fp32 ``out`` [rows, k].

        ``out`` may be some columns of a wider tensor. Both buffers must be writable; they are not written.
        """
        import torch

        rows, columns = out.shape
        codes = self._codes.tensor(torch.int8, rows, columns)
        Packing(codes, torch.frombuffer(packed, dtype=torch.int8)).unpack()
        out.copy_(codes)
        out.mul_(torch.frombuffer(scales, dtype=torch.float32).unsqueeze(1))
