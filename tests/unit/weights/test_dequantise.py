"""Packed parts back to whole matrices."""

from __future__ import annotations

import pytest
import torch

from hwctl.weights import amx
from hwctl.weights.amx import Geometry, Kind, Projection
from hwctl.weights.dequantise import Dequantiser, Dtype, full_shape


@pytest.mark.parametrize("dtype", list(Dtype))
@pytest.mark.parametrize("parts", [1, 2, 4])
@pytest.mark.parametrize("projection", list(Projection))
def test_parts_are_joined(projection: Projection, parts: int, dtype: Dtype) -> None:
    geometry = Geometry(hidden=192, intermediate=3072, experts=1, parts=parts)
    n, k = geometry.shape(projection)
    files: dict[tuple[int, Kind], bytes] = {}
    plain = []
    for part in range(parts):
        codes = torch.randint(-127, 128, (n, k), dtype=torch.int8)
        scales = torch.rand(n, 1) + 0.1
        packed = torch.empty(n * k, dtype=torch.int8)
        amx.pack(codes, packed)
        files[part, Kind.QUANT] = packed.numpy().tobytes()
        files[part, Kind.SCALE] = scales.numpy().tobytes()
        plain.append(codes.float() * scales)

    def read(part: int, kind: Kind, offset: int, buffer: memoryview) -> None:
        buffer[:] = files[part, kind][offset : offset + len(buffer)]

    stretches = Dequantiser(geometry, dtype).rows(projection, read)
    data = bytearray(b"".join([bytes(stretch) for stretch in stretches]))
    whole = torch.cat(plain, 1 if projection is Projection.DOWN else 0)
    torch_dtype = torch.bfloat16 if dtype is Dtype.BF16 else torch.float32
    assert full_shape(geometry, projection) == whole.shape
    assert torch.equal(torch.frombuffer(data, dtype=torch_dtype).view(whole.shape), whole.to(torch_dtype))
