"""The one escaping function: nothing read from disk moves a cursor or begins a line (CLI-02)."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwctl.cli.escape import escape


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("plain/name-1.safetensors", "plain/name-1.safetensors"),
        ("", ""),
        ("größe 模型", "größe 模型"),
        ("\x1b[2J", "\\x1b[2J"),
        ("a\nb\rc\td", "a\\nb\\rc\\td"),
        ("\x7f\x80\x9b", "\\x7f\\x80\\x9b"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("\u2066\u2069\u200f", "\\u2066\\u2069\\u200f"),
        ("zero\u200bwidth\ufeff", "zero\\u200bwidth\\ufeff"),
        ("\u2028\u2029", "\\u2028\\u2029"),
        ("\udcff\udc80", "\\xff\\x80"),
        ("\ud800", "\\ud800"),
        ("\U000e0041", "\\U000e0041"),
        ("[b]not markup[/b]", "[b]not markup[/b]"),
    ],
)
def test_spelled(raw: str, shown: str) -> None:
    assert escape(raw) == shown


@given(st.text(st.characters(codec=None, categories=None)))
def test_always_one_printable_encodable_line(raw: str) -> None:
    shown = escape(raw)
    assert shown.isprintable()
    assert len(shown.splitlines()) <= 1
    shown.encode("utf-8")
    assert not {unicodedata.category(char) for char in shown} & {"Cc", "Cf", "Cs", "Zl", "Zp"}


@given(st.binary())
def test_bytes_of_a_name_survive_to_be_read(raw: bytes) -> None:
    assert escape(raw.decode("utf-8", "surrogateescape")).isprintable()
