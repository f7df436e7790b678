"""Every finding code in the source is explained in hwctl-verify(1), and nothing else is."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import hwctl
from hwctl.cli.finding_codes import CODES

CODE = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
COMPOSED = {"lease-file", "manifest-file"}
"""Put together where they are raised, of the document's name and what is wrong with it."""
MAKERS = {"Finding", "Malformed", "BadDocument", "_fault"}


def test_codes_in_the_source_are_explained() -> None:
    missing = {}
    for path in sorted(Path(hwctl.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            name = ast.unparse(node.func).split(".")[-1]
            words = [keyword.value for keyword in node.keywords if keyword.arg == "code"]
            if name in MAKERS or (name == "add" and len(node.args) > 1):
                words += node.args[:1]
            for word in words:
                if isinstance(word, ast.Constant) and isinstance(word.value, str):
                    assert CODE.fullmatch(word.value), f"{path}:{node.lineno}"
                    if word.value not in CODES:
                        missing[word.value] = f"{path}:{node.lineno}"
    assert not missing


def test_explained_codes_are_in_the_source() -> None:
    text = "\n".join(
        path.read_text()
        for path in Path(hwctl.__file__).parent.rglob("*.py")
        if path.name != "finding_codes.py"
    )
    assert {code for code in CODES if f'"{code}"' not in text} == COMPOSED


def test_explanations_are_sentences() -> None:
    for code, words in CODES.items():
        assert CODE.fullmatch(code)
        assert words[0].isupper() or words.startswith("config.json")
        assert words.endswith(".")
