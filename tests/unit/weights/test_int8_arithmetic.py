"""The quantiser against the arithmetic of the format, done once more in Python's integers and doubles.

Products and quotients of fp32 numbers are rounded through doubles here, which is exact: 53 bits are more
than twice 24 plus two.
"""

from __future__ import annotations

import random
import struct
import threading
from collections.abc import Iterator

import pytest
import torch

from hwctl.weights.int8 import NotFinite, Quantiser, one_thread

WIDTH = 64
EDGES = [
    0,
    1,
    0x7F,
    0x80,
    0x81,
    0x3FC,
    0x3FD,
    0x3FE,
    0x3FF,
    0x400,
    0x47F,
    0x480,
    0x481,
    0x3F80,
    0x7E80,
    0x7F7F,
]


@pytest.fixture(params=[False, True], ids=["plain", "flushing"], autouse=True)
def floating_point_mode(request: pytest.FixtureRequest) -> Iterator[None]:
    torch.set_flush_denormal(request.param)
    yield
    torch.set_flush_denormal(False)


def fp32(value: float) -> float:
    (rounded,) = struct.unpack("<f", struct.pack("<f", value))
    return float(rounded)


def of_pattern(pattern: int) -> float:
    """A bf16 pattern's value; computed from integers, as a flushing thread would lose subnormals."""
    exponent, mantissa = pattern >> 7 & 0xFF, pattern & 0x7F
    value = (mantissa | 0x80 if exponent else mantissa) * 2.0 ** (max(exponent, 1) - 134)
    return -value if pattern & 0x8000 else value


def reference(row: list[int]) -> tuple[float, list[int]]:
    """Scale and codes of one row of bf16 patterns, step by step as the format document has it."""
    largest = max(pattern & 0x7FFF for pattern in row)
    if largest < 0x03FE:
        return 0.0, [0] * len(row)
    (constant,) = struct.unpack("<f", struct.pack("<I", 0x3C010204))
    scale = fp32(of_pattern(largest) * constant)
    inverse = fp32(1.0 / scale)
    kept = [pattern if pattern & 0x7FFF >= 0x80 else 0 for pattern in row]
    products = [of_pattern(pattern) * inverse for pattern in kept]
    return scale, [round(fp32(p) if abs(p) > 1e-30 else 0.0) for p in products]


def tensor(rows: list[list[int]]) -> torch.Tensor:
    signed = [[p - 0x10000 if p >= 0x8000 else p for p in row] for row in rows]
    return torch.tensor(signed, dtype=torch.int16).view(torch.bfloat16)


def quantise(block: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    codes = torch.empty(block.shape, dtype=torch.int8)
    scales = torch.empty(block.shape[0])
    Quantiser().quantise(block, codes, scales)
    return codes, scales


def row_below(largest: int, generator: random.Random) -> list[int]:
    """A row whose largest magnitude is ``largest``, the others spread over the patterns below it."""
    spread = generator.choice([largest + 1, min(largest + 1, 1200), min(largest + 1, 130)])
    row = [largest - generator.randrange(spread) for _ in range(WIDTH)]
    row[generator.randrange(WIDTH)] = largest
    return [pattern | generator.choice([0, 0x8000]) for pattern in row]


def check(rows: list[list[int]]) -> None:
    codes, scales = quantise(tensor(rows))
    for index, row in enumerate(rows):
        scale, expected = reference(row)
        assert scales[index].view(torch.int32).item() == struct.unpack("<i", struct.pack("<f", scale))[0]
        assert codes[index].tolist() == expected


def test_edges_of_the_flushing_rules() -> None:
    generator = random.Random(3)
    check([row_below(largest, generator) for largest in EDGES for _ in range(8)])


def test_every_mantissa_of_a_maximum() -> None:
    """Multiplying by 1/127 and dividing by 127 differ for six of them."""
    generator = random.Random(4)
    check([row_below(0x3F80 + mantissa, generator) for mantissa in range(128)])


def test_rows_of_any_size() -> None:
    generator = random.Random(5)
    check([row_below(generator.randrange(0x7F80), generator) for _ in range(400)])


def test_a_midpoint_that_division_by_127_would_round_the_other_way() -> None:
    row = torch.zeros(1, WIDTH, dtype=torch.bfloat16)
    row[0, 0], row[0, 1] = 1.1171875, 0.55859375
    assert quantise(row)[0][0, :2].tolist() == [127, 64]


def test_columns_of_a_wider_block() -> None:
    wide = torch.randn(64, 256).to(torch.bfloat16)
    codes, scales = quantise(wide[:, 64:192])
    expected_codes, expected_scales = quantise(wide[:, 64:192].contiguous())
    assert torch.equal(codes, expected_codes)
    assert torch.equal(scales, expected_scales)


def test_a_larger_block_after_a_smaller_one() -> None:
    quantiser = Quantiser()
    for rows in (1, 64, 3):
        block = torch.randn(rows, 128).to(torch.bfloat16)
        codes, scales = torch.empty(rows, 128, dtype=torch.int8), torch.empty(rows)
        quantiser.quantise(block, codes, scales)
        assert torch.equal(codes, quantise(block)[0])


@pytest.mark.parametrize(
    ("pattern", "what"),
    [(0x7F80, "infinity"), (0xFF80, "infinity"), (0x7FC0, "NaN"), (0xFF81, "NaN"), (0x7FFF, "NaN")],
)
def test_not_finite(pattern: int, what: str) -> None:
    rows = [[0x3F80] * WIDTH for _ in range(4)]
    rows[2][17] = rows[2][40] = rows[3][1] = pattern
    with pytest.raises(NotFinite) as caught:
        quantise(tensor(rows))
    assert (caught.value.row, caught.value.column, caught.value.what) == (2, 17, what)


def test_one_thread_reaches_threads_started_inside_and_ends() -> None:
    before = torch.get_num_threads()
    seen: list[int] = []
    with one_thread():
        worker = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
        worker.start()
        worker.join()
    assert seen == [1]
    assert torch.get_num_threads() == before
