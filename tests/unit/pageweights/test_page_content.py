"""Finiteness against torch's own answer, for every dtype a page can have."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwctl.stores.pageweights import content
from hwctl.stores.pageweights.geometry import LOADABLE, torch_name

torch = pytest.importorskip("torch")
WIDTHS = {"F16": 2, "BF16": 2, "F32": 4, "F64": 8, "C64": 8, "F8_E5M2": 1, "F8_E8M0": 1}


def says(code: str, raw: bytes | bytearray) -> bool:
    test = content.finite_test(code)
    assert test is not None
    return test(memoryview(bytearray(raw)))


def truth(code: str, raw: bytes) -> bool:
    values = torch.frombuffer(bytearray(raw), dtype=getattr(torch, torch_name(code)))
    return bool(torch.isfinite(values).all())


@pytest.mark.parametrize("code", ["F16", "BF16", "F8_E5M2", "F8_E8M0"])
def test_every_bit_pattern_of_the_narrow_types(code: str) -> None:
    width = WIDTHS[code]
    for pattern in range(256**width):
        raw = pattern.to_bytes(width, "little")
        if width == 1 or pattern % 97 == 0 or pattern & 0x7C00 == 0x7C00:
            assert says(code, raw) == truth(code, raw), hex(pattern)


@pytest.mark.parametrize("code", sorted(WIDTHS))
@settings(max_examples=60, deadline=None)
@given(raw=st.binary(min_size=8, max_size=64))
def test_any_bytes_are_judged_as_torch_judges_them(code: str, raw: bytes) -> None:
    raw = raw[: len(raw) - len(raw) % WIDTHS[code]]
    assert says(code, raw) == truth(code, raw)


@pytest.mark.parametrize("code", ["F32", "F64", "F16", "BF16", "C64", "F8_E5M2"])
@pytest.mark.parametrize("special", [float("nan"), float("inf"), -float("inf")])
def test_one_bad_value_is_found_wherever_it_stands(code: str, special: float) -> None:
    count = 3 * 32767 + 5
    values = torch.zeros(count, dtype=getattr(torch, torch_name(code)))
    raw = values.view(torch.uint8)
    assert says(code, bytes(raw.tolist()))
    for at in (0, 32766, 32767, 65533, 65534, count - 1):
        values[at] = special
        assert not says(code, bytes(raw.tolist())), at
        values[at] = 0


def test_zeros_subnormals_and_extremes_are_finite() -> None:
    patterns = (0x80000000, 0x00000001, 0x807FFFFF, 0x7F7FFFFF, 0xFF7FFFFF)
    assert says("F32", struct.pack("<5I", *patterns))
    assert not says("F32", struct.pack("<I", 0x7F800001))  # a signalling NaN
    assert not says("F32", struct.pack("<2I", 0, 0xFFFFFFFF))


@pytest.mark.parametrize("code", sorted(LOADABLE))
def test_an_empty_block_is_finite(code: str) -> None:
    assert says(code, b"")


@pytest.mark.parametrize("code", sorted(LOADABLE - set(WIDTHS) | {"F8_E8M0"}))
def test_types_without_infinities_are_finite_whatever_their_bits(code: str) -> None:
    assert says(code, b"\xff" * 64)


def test_a_block_may_start_anywhere_in_memory() -> None:
    memory = memoryview(bytearray(4 * 1000 + 3))
    test = content.finite_test("F32")
    assert test is not None and test(memory[3:])


def test_torch_keeps_its_threads() -> None:
    before = torch.get_num_threads()
    says("F32", bytes(1 << 20))
    assert torch.get_num_threads() == before
