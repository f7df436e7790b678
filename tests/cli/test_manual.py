"""Man pages and completions: fresh, clean, and at work in real shells."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

import hwctl
from hwctl.cli.app import tree
from hwctl.cli.manual import files

ROOT = Path(hwctl.__file__).parent.parent
PAGES = sorted((ROOT / "man").glob("*.1"))
VERBS = [verb.path[1] for verb in tree().walk() if len(verb.path) == 2]


def tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def checked(*command: str | Path, **options: object) -> str:
    done = subprocess.run(
        list(map(str, command)),
        capture_output=True,
        text=True,
        timeout=60,
        **options,  # type: ignore[call-overload]
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return str(done.stdout + done.stderr)


def test_the_committed_files_are_fresh() -> None:
    """``python -m hwctl.cli.manual`` writes them."""
    generated = files()
    committed = {
        f"{folder}/{path.name}": path.read_text()
        for folder in ("man", "completions")
        for path in (ROOT / folder).iterdir()
    }
    assert committed.keys() == generated.keys()
    for name, text in generated.items():
        assert committed[name] == text, f"{name} is stale: run python -m hwctl.cli.manual"


def test_the_same_tree_gives_the_same_bytes(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        env = os.environ | {
            "PYTHONHASHSEED": (folder == "one" and "1") or "2",
            "COLUMNS": str(len(folder) * 20),
        }
        checked(sys.executable, "-m", "hwctl.cli.manual", tmp_path / folder, env=env, cwd=ROOT)
    one, two = (sorted((tmp_path / folder).rglob("*.*")) for folder in ("one", "two"))
    assert one and [path.read_bytes() for path in one] == [path.read_bytes() for path in two]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_are_clean(page: Path) -> None:
    assert checked(tool("mandoc"), "-T", "lint", "-W", "style", page) == ""
    assert checked(tool("groff"), "-ww", "-man", "-Tutf8", "-z", page) == ""
    assert page.read_bytes().isascii()


def test_pages_say_what_an_operator_needs() -> None:
    shown = {}
    for page in PAGES:
        env = os.environ | {"MANWIDTH": "90", "MAN_KEEP_FORMATTING": "0"}
        shown[page.stem] = re.sub(r".\x08", "", checked(tool("man"), "-l", page, env=env))
    for name, text in shown.items():
        for chapter in ("NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXIT STATUS", "ENVIRONMENT", "FILES"):
            assert f"\n{chapter}\n" in text, (name, chapter)
        assert "65 damaged" in text
    for chapter in ("WORDS", "COMPLETION"):
        assert f"\n{chapter}\n" in shown["hwctl"]
    for word in ("artifact", "lease", "run id", "denied", "locator"):
        assert re.search(rf"^ +{word}( |$)", shown["hwctl"], re.MULTILINE), word
    for name in ("hwctl-admission.lock", ".hwctl-quarantine", ".eviction.lock"):
        assert name in shown["hwctl"]
    assert "mode 0700" in shown["hwctl-publish-hostweights"]
    assert "\nFINDING CODES\n" in shown["hwctl-verify"]
    assert "lfs-pointer" in shown["hwctl-verify"]


def test_help_is_as_wide_as_asked() -> None:
    """COLUMNS counts; else a pipe to a pager has the width of the terminal beside it, else it is 80."""

    def widest(text: str) -> int:
        return max(len(line) for line in text.splitlines() if not line.startswith(("Usage:", " ")))

    def shown(columns: str | None, stderr: int) -> int:
        env = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
        env |= {} if columns is None else {"COLUMNS": columns}
        words = [sys.executable, "-m", "hwctl", "verify", "--help"]
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=stderr, env=env, cwd=ROOT, timeout=60)
        return widest(done.stdout.decode())

    leader, follower = pty.openpty()
    try:
        termios.tcsetwinsize(follower, (24, 95))
        assert 86 < shown(None, follower) < 95
        assert shown("60", follower) < 60
        assert 72 < shown(None, subprocess.DEVNULL) < 80
    finally:
        os.close(leader)
        os.close(follower)


def test_whatis_finds_every_page() -> None:
    for page in PAGES:
        assert f'"{page.stem} - ' in checked(tool("lexgrog"), page)


def test_man_finds_a_sub_page(tmp_path: Path) -> None:
    """As in a virtual environment: bin beside share, bin on the PATH."""
    (tmp_path / "bin").mkdir()
    shutil.copytree(ROOT / "man", tmp_path / "share" / "man" / "man1")
    env = {name: value for name, value in os.environ.items() if name != "MANPATH"}
    env["PATH"] = f"{tmp_path / 'bin'}:{env['PATH']}"
    found = checked(tool("man"), "-w", "hwctl", "verify", env=env)
    assert str(tmp_path / "share/man/man1/hwctl-verify.1") in found


@pytest.mark.parametrize(
    ("shell", "name"), [("bash", "hwctl.bash"), ("zsh", "_hwctl"), ("fish", "hwctl.fish")]
)
def test_completions_parse(shell: str, name: str) -> None:
    assert checked(tool(shell), "-n", ROOT / "completions" / name) == ""


def bash(line: str, folder: Path) -> set[str]:
    """What bash offers at the end of a line."""
    script = f"""
        source {ROOT}/completions/hwctl.bash
        COMP_LINE={line!r}; COMP_POINT=${{#COMP_LINE}}
        read -ra COMP_WORDS <<< "$COMP_LINE"
        [[ $COMP_LINE == *' ' ]] && COMP_WORDS+=('')
        COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
        _hwctl
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    return set(checked(tool("bash"), "-c", script, cwd=folder).split())


def fish(line: str, folder: Path) -> set[str]:
    script = f"source {ROOT}/completions/hwctl.fish; complete -C {line!r}"
    env = os.environ | {"HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    offered = checked(tool("fish"), "--no-config", "-c", script, cwd=folder, env=env)
    return {row.split("\t")[0] for row in offered.splitlines()}


@pytest.mark.parametrize("complete", [bash, fish])
def test_completions_offer_what_fits(complete: object, tmp_path: Path) -> None:
    offer = complete
    assert callable(offer)
    (tmp_path / "store").mkdir()
    (tmp_path / "a file").write_text("")
    assert set(VERBS) <= offer("hwctl ", tmp_path)
    assert offer("hwctl ver", tmp_path) == {"verify"}
    assert {"hostweights", "ktint8", "pageweights"} <= offer("hwctl publish ", tmp_path)
    assert offer("hwctl verify --level ", tmp_path) == {"marker", "size", "full"}
    assert offer("hwctl verify --wai", tmp_path) == {"--wait"}
    assert "--max-size" not in offer("hwctl verify --m", tmp_path)
    assert offer("hwctl publish ktint8 --run", tmp_path) == {"--run-id"}
    assert set() != offer("hwctl verify -q st", tmp_path) <= {"store", "store/"}
    assert set() != offer("hwctl verify --identity st", tmp_path) <= {"store", "store/"}
    assert offer("hwctl publish hostweights --scope ", tmp_path) == {"node", "numa"}
    for option in ("publish hostweights --from", "publish ktint8 --from", "quarantine --restore"):
        assert set() != offer(f"hwctl {option} st", tmp_path) <= {"store", "store/"}, option


def test_zsh_completes(tmp_path: Path) -> None:
    (tmp_path / "store-of-weights").mkdir()
    leader, follower = pty.openpty()
    env = os.environ | {"TERM": "dumb", "ZDOTDIR": str(tmp_path), "PS1": "> "}
    process = subprocess.Popen(
        [tool("zsh"), "-f", "-i"], stdin=follower, stdout=follower, stderr=follower, env=env, cwd=tmp_path
    )
    os.close(follower)

    def typed(text: str, wanted: str) -> str:
        os.write(leader, text.encode())
        seen, end = "", time.monotonic() + 30
        while wanted not in seen and time.monotonic() < end:
            if select.select([leader], [], [], 0.2)[0]:
                seen += os.read(leader, 65536).decode("utf-8", "replace")
        return seen

    try:
        setup = f"fpath=({ROOT}/completions $fpath); autoload -Uz compinit; compinit -u -D; echo rea''dy\n"
        assert "ready" in typed(setup, "ready")
        assert "hwctl verify " in typed("hwctl veri\t", "hwctl verify ")
        assert "--level" in typed("--lev\t", "--level")
        assert "marker" in typed(" ma\t", "marker")
        assert "--run-id" in typed("\x15hwctl publish ktint8 --run\t", "--run-id")
        assert "numa" in typed("\x15hwctl publish hostweights --scope nu\t", "numa")
        assert "store-of-weights" in typed(" --from sto\t", "store-of-weights")
    finally:
        process.kill()
        process.wait(10)
        os.close(leader)
