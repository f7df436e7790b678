"""Sizes, durations, rates, ranges: what is taken, and what is refused with which hint."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from hwctl.cli import units
from hwctl.errors import Usage


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("1", 1),
        ("4096", 4096),
        ("12B", 12),
        ("200GiB", 200 << 30),
        ("200Gi", 200 << 30),
        ("200GB", 200 * 10**9),
        ("1kB", 1000),
        ("1KB", 1000),
        ("1Ki", 1024),
        ("1.5MiB", 3 << 19),
        ("0.5TB", 5 * 10**11),
        ("3 GiB", 3 << 30),
        ("7EiB", 7 << 60),
    ],
)
def test_sizes(text: str, count: int) -> None:
    assert units.size(text) == count
    assert units.size_or_share(text).of(whole=10) == count


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("200G", "200GiB (2^30) or 200GB (10^9)"),
        ("1.5m", "1.5MiB (2^20) or 1.5MB (10^6)"),
        ("2K", "2KiB (2^10) or 2KB (10^3)"),
        ("10gib", "unknown unit 'gib'; write 10GiB (2^30)"),
        ("10Gb", "unknown unit 'Gb'; write 10GiB (2^30) or 10GB (10^9)"),
        ("10xb", "unknown unit 'xb'; write for example 200GiB"),
        ("0", "zero"),
        ("0GiB", "zero"),
        ("0.0000000001", "no number of bytes"),
        ("0.1B", "no number of bytes"),
        ("-1", "not a size"),
        ("nan", "not a size"),
        ("inf", "not a size"),
        ("1e9", "unknown unit"),
        ("ten", "not a size"),
        ("", "not a size"),
        ("GiB", "not a size"),
        ("\u0661\u0662", "not a size"),
        ("9EiB", "no number of bytes"),
        ("1GiB\n", "unknown unit"),
        ("80%", "no whole is known"),
    ],
)
def test_sizes_refused(text: str, hint: str) -> None:
    with pytest.raises(typer.BadParameter) as caught:
        units.size(text)
    assert hint in caught.value.message


def test_shares_of_a_whole() -> None:
    assert units.size_or_share("80%").of(1000) == 800
    assert units.size_or_share("0.5%").of(1000) == 5
    assert units.size_or_share("0.001%").of(1000) == 1
    assert units.size_or_share("100%").of(7) == 7
    for text in ("0%", "-1%", "101%", "%", "nan%", "1e1%"):
        with pytest.raises(typer.BadParameter):
            units.size_or_share(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("15min", 900),
        ("6h", 21600),
        ("2d", 172800),
        ("1w", 604800),
        ("1h30min", 5400),
        ("1d 12h", 129600),
        ("1.5s", 1.5),
        ("0.001s", 0.001),
        ("0.5h0.5min", 1830),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert units.duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("5m", "5min"),
        ("5M", "5min"),
        ("90", "no unit"),
        ("0s", "zero"),
        ("0", "no unit"),
        ("-5s", "not a duration"),
        ("nan", "not a duration"),
        ("infs", "not a duration"),
        ("5y", "unknown unit"),
        ("5S", "unknown unit"),
        ("h", "not a duration"),
        ("", "empty"),
        (" ", "not a duration"),
        ("1h-5min", "not a duration"),
        ("1e3s", "unknown unit"),
        ("9999999w", "hundred years"),
    ],
)
def test_durations_refused(text: str, hint: str) -> None:
    with pytest.raises(typer.BadParameter) as caught:
        units.duration(text)
    assert hint in caught.value.message


def test_rates_may_say_per_second() -> None:
    assert units.rate("200MB") == units.rate("200MB/s") == 200 * 10**6
    with pytest.raises(typer.BadParameter):
        units.rate("200MB/min")


def test_ranges_are_inclusive_and_may_be_open() -> None:
    chosen = units.spans("0-3,7,10-")
    assert [number for number in range(13) if number in chosen] == [0, 1, 2, 3, 7, 10, 11, 12]
    assert 10**9 in chosen
    assert "3" not in chosen
    assert units.spans("3,1-2").numbers() == (1, 2, 3)
    with pytest.raises(Usage, match="no end"):
        chosen.numbers()
    with pytest.raises(Usage, match="too long"):
        units.spans("0-99999999").numbers()


@pytest.mark.parametrize("text", ["", ",", "1,", "-3", "3-1", "a", "1--2", "1-2-3", "1 ,2", "\u0663", "1.5"])
def test_ranges_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        units.spans(text)


@pytest.mark.parametrize(
    ("parse", "bad"),
    [
        (units.count, ["", "0", "-1", "1.5", "ten", "1e3", " 1", "\u0661"]),
        (units.path, [""]),
        (units.word, ["", " ", "\n"]),
        (units.glob, [""]),
    ],
)
def test_empty_values_and_rubbish_are_refused(parse: Callable[[str], object], bad: list[str]) -> None:
    for text in bad:
        with pytest.raises(typer.BadParameter):
            parse(text)


def test_plain_values() -> None:
    assert units.count("12") == 12
    assert units.path("/a b") == Path("/a b")
    assert units.word("why") == "why"


@pytest.mark.parametrize(
    "word", ["KiB", "kib", "KB", "MB", "GiB", "g", "%", "d", "h", "min", "weeks", "MiB/s"]
)
def test_a_unit_on_its_own_is_no_path(word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert units.operand(word) == Path(word), "it is no half of a size"
    monkeypatch.setattr(sys, "argv", ["hwctl", "evict", "store", "--max-size", "1.5", word])
    with pytest.raises(typer.BadParameter, match="in one word"):
        units.operand(word)
    assert units.operand(f"./{word}") == Path(word)
    if "/" not in word:
        (tmp_path / word).touch()
        assert units.operand(word) == Path(word)
    assert units.operand("kt-int8-d") == Path("kt-int8-d")
