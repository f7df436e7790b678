"""Numbers and tables for people."""

from __future__ import annotations

import pytest

from hwctl.cli import text
from hwctl.cli.output import Style, Styled
from hwctl.cli.tables import Column, table
from hwctl.errors import Finding
from hwctl.stores.base import Holders


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (12_900, "12.6 KiB"),
        (999 * 1024, "999 KiB"),
        (1023 * 1024, "1.00 MiB"),
        (200 << 30, "200 GiB"),
        (1 << 70, "1024 EiB"),
    ],
)
def test_sizes(count: int, words: str) -> None:
    assert text.size(count) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0s"),
        (59.9, "59s"),
        (60, "1min"),
        (3661, "1h 1min"),
        (3600, "1h"),
        (90000, "1d 1h"),
        (6e6, "9w 6d"),
    ],
)
def test_spans(seconds: float, words: str) -> None:
    assert text.span(seconds) == words


def test_ages_admit_what_nobody_knows() -> None:
    now = 10**18
    assert text.age(None) == "-"
    assert text.age(now - 2 * 86400 * 10**9, now) == "2d"
    assert text.age(now + 10**12, now) == "in the future"


def test_a_bar_shows_a_sliver_and_never_overflows() -> None:
    assert text.bar(0, 10, 10) == "[----------]"
    assert text.bar(1, 10**9, 10) == "[#---------]"
    assert text.bar(5, 10, 10) == "[#####-----]"
    assert text.bar(50, 10, 10) == "[##########]"
    assert text.bar(5, 0, 4) == "[####]"


def test_holders() -> None:
    assert text.holders(Holders()) == "-"
    assert text.holders(Holders(2, 0, (4711, 4712))) == "2 shared (pid 4711, 4712)"
    assert text.holders(Holders(0, 1)) == "locked"


def test_a_finding_does_not_say_things_twice() -> None:
    told = text.finding(Finding("size", "has 3 bytes, 4 belong", "f", 4, 3))
    assert "expected" not in str(told)
    untold = text.finding(Finding("mode", "is writable", "f", "0444", "0644"))
    assert "expected 0444, actual 0644" in str(untold)


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_a_table_fits_the_terminal_and_escapes(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    titles = (Column("STATE"), Column("KEY", shrinks=True, least=12), Column("SIZE", "right"))
    rows = [(Styled("ready", Style.GOOD), "a" * 64, "1 B"), ("damaged", "\x1b[2J[b]\n\u202e", "12.3 GiB")]
    drawn = table(titles, rows, colour=False)
    lines = drawn.splitlines()
    assert len(lines) == 3
    assert max(map(len, lines)) <= columns
    assert "\x1b" not in drawn
    assert "\u202e" not in drawn
    assert "\\x1b[2J[b]" in drawn or columns == 40
    assert lines[2].endswith("12.3 GiB")
    coloured = table(titles, rows, colour=True)
    assert "\x1b[32mready" in coloured
    assert "\x1b[2J" not in coloured
