"""Lines that fit a terminal: broken at words, colours left alone, paths left whole."""

from __future__ import annotations

import pytest

from hwctl.cli.paragraphs import NO_BREAK, fold, wrapped

PATH = "/srv/weights/artifacts/" + "a" * 64


@pytest.fixture(autouse=True)
def sixty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")


def test_short_lines_stay_as_they_are() -> None:
    assert fold("  two  blanks  ") == ["  two  blanks  "]
    assert fold("") == [""]


def test_long_lines_hang_and_keep_numbers_with_their_units() -> None:
    line = "    half-consumed manifest.json: is half consumed: 1 of 2 layers of 4.00 MiB are left"
    assert fold(line) == [
        "    half-consumed manifest.json: is half consumed: 1 of 2",
        "        layers of 4.00 MiB are left",
    ]


def test_a_path_stays_whole_beside_the_word_that_it_belongs_to() -> None:
    assert fold(f"damaged {PATH}: not there") == [f"damaged {PATH}:", "    not there"]
    assert fold(f"a sentence that comes before {PATH} ends") == [
        "a sentence that comes before",
        f"    {PATH}",
        "    ends",
    ]


def test_what_must_stay_whole_is_not_broken_at_its_blanks() -> None:
    path = "/srv/my models/of last year/" + "a" * 50
    (line, rest) = fold(f"valid {path.replace(' ', NO_BREAK)} and more")
    assert (line.replace(NO_BREAK, " "), rest) == (f"valid {path}", "    and more")


def test_colours_take_no_cells() -> None:
    green = "\x1b[32mvalid\x1b[0m"
    assert fold(f"{green} " + "x" * 54) == [f"{green} " + "x" * 54]
    assert fold("\x1b[1m" + "word " * 13 + "end\x1b[0m") == [
        "\x1b[1m" + " ".join(["word"] * 12),
        "    word end\x1b[0m",
    ]


def test_what_comes_from_a_store_is_escaped_and_limited() -> None:
    assert wrapped("a\x1bb", indent="  ") == ["  a\\x1bb"]
    lines = wrapped("word " * 60, indent="  ", limit=2)
    assert len(lines) == 2 and lines[1].endswith(" …") and all(len(line) <= 60 for line in lines)
