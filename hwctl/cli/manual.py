"""``python -m hwctl.cli.manual [FOLDER]``: write man/ and completions/ anew from the command tree.

The same tree gives the same bytes; a test regenerates both and compares.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from hwctl.cli import completions, manpages
from hwctl.cli.app import tree


def files() -> Mapping[str, str]:
    """Every generated file: its path relative to the project's root, and its text."""
    top = tree()
    found = {f"man/{'-'.join(verb.path)}.1": manpages.page(verb) for verb in top.walk()}
    found["completions/hwctl.bash"] = completions.bash(top)
    found["completions/_hwctl"] = completions.zsh(top)
    found["completions/hwctl.fish"] = completions.fish(top)
    return found


def main() -> None:
    words = sys.argv[1:]
    if len(words) > 1 or any(word.startswith("-") for word in words):
        sys.exit("usage: python -m hwctl.cli.manual [FOLDER]")
    root = Path(words[0]) if words else Path(__file__).resolve().parents[2]
    generated = files()
    for folder in ("man", "completions"):
        for path in (root / folder).glob("*"):
            if f"{folder}/{path.name}" not in generated:
                path.unlink()
    for name, text in generated.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
