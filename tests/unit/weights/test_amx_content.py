"""The content rules, on packed bytes with one thing wrong."""

from __future__ import annotations

import struct

import pytest
import torch

from hwctl.errors import Finding
from hwctl.weights import amx
from hwctl.weights.amx_content import ContentCheck

ROWS, COLUMNS = 128, 192


def sound(rows: int = ROWS, columns: int = COLUMNS) -> tuple[torch.Tensor, list[float]]:
    """Codes with a single full one in every row, now positive and now negative, and scales."""
    codes = torch.randint(-126, 127, (rows, columns), dtype=torch.int8)
    for row in range(rows):
        codes[row, (row * 37) % columns] = 127 if row % 2 else -127
    return codes, [2.0**-126 if row == 3 else 0.01 * (row + 1) for row in range(rows)]


def judge(
    codes: torch.Tensor, scales: list[float] | bytes, check: ContentCheck | None = None
) -> list[Finding]:
    check = check or ContentCheck()
    packed = torch.empty(codes.numel(), dtype=torch.int8)
    amx.Packing(codes, packed).pack()
    data = bytearray(packed.numpy().tobytes())
    stretch = check.start(*codes.shape)
    for begin in range(0, len(data), stretch):
        check.feed(memoryview(data)[begin : begin + stretch])
    raw = scales if isinstance(scales, bytes) else struct.pack(f"<{len(scales)}f", *scales)
    return list(check.finish(raw))


@pytest.mark.parametrize("shape", [(64, 64), (128, 3648), (192, 7168), (2048, 768)])
def test_sound(shape: tuple[int, int]) -> None:
    assert judge(*sound(*shape)) == []


def test_zero_rows_are_sound() -> None:
    codes, scales = sound()
    codes[5] = 0
    scales[5] = 0.0
    assert judge(codes, scales) == []


@pytest.mark.parametrize("row", [0, 17, 63, 64, 127])
@pytest.mark.parametrize("column", [0, 3, 63, 64, 191])
def test_a_code_of_minus_128(row: int, column: int) -> None:
    codes, scales = sound()
    codes[row, column] = -128
    (finding,) = judge(codes, scales)
    assert finding.code == "code-out-of-range"
    assert finding.message.startswith(f"row {row}:")


@pytest.mark.parametrize("row", [0, 31, 32, 127])
def test_a_row_without_a_full_code(row: int) -> None:
    codes, scales = sound()
    codes[row].clamp_(-126, 126)
    (finding,) = judge(codes, scales)
    assert (finding.code, finding.message.split(":")[0]) == ("row-not-full", f"row {row}")


def test_scale_zero_over_codes() -> None:
    codes, scales = sound()
    scales[9] = 0.0
    (finding,) = judge(codes, scales)
    assert (finding.code, finding.message.split(":")[0]) == ("row-not-zero", "row 9")


def test_zero_codes_under_a_scale() -> None:
    codes, scales = sound()
    codes[9] = 0
    assert [finding.code for finding in judge(codes, scales)] == ["row-not-full"]


@pytest.mark.parametrize(
    "pattern",
    [0x8000_0000, 0x0000_0001, 0x007F_FFFF, 0x7F80_0000, 0x7FC0_0000, 0xFF80_0000, 0xBF80_0000, 0xFFFF_FFFF],
)
def test_scales_that_are_not_sound(pattern: int) -> None:
    codes, scales = sound()
    raw = bytearray(struct.pack(f"<{ROWS}f", *scales))
    struct.pack_into("<I", raw, 4 * 70, pattern)
    (finding,) = judge(codes, bytes(raw))
    assert (finding.code, finding.message.split(":")[0]) == ("scale-not-sound", "row 70")


def test_largest_finite_scale_is_sound() -> None:
    codes, scales = sound()
    raw = bytearray(struct.pack(f"<{ROWS}f", *scales))
    struct.pack_into("<I", raw, 0, 0x7F7F_FFFF)
    assert judge(codes, bytes(raw)) == []


def test_several_rows_are_one_finding() -> None:
    codes, scales = sound()
    codes[10:14].clamp_(-126, 126)
    (finding,) = judge(codes, scales)
    assert finding.message.startswith("row 10 and 3 more:")


def test_one_check_for_files_of_all_sizes() -> None:
    """Nothing of a file stays for the next."""
    check = ContentCheck()
    large, scales = sound(2048, 768)
    large[1] = -128
    assert [finding.code for finding in judge(large, scales, check)] == ["code-out-of-range"]
    assert judge(*sound(64, 64), check) == []
    assert judge(*sound(192, 7168), check) == []


def test_scales_of_another_count() -> None:
    codes, scales = sound()
    with pytest.raises(ValueError, match="bytes of scales"):
        judge(codes, scales[:-1])


def test_stretches_must_be_whole() -> None:
    check = ContentCheck()
    stretch = check.start(ROWS, COLUMNS)
    with pytest.raises(ValueError, match="come next"):
        check.feed(bytearray(stretch - 64))
    with pytest.raises(ValueError, match="0 stretches"):
        check.finish(bytes(4 * ROWS))
