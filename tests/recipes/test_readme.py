"""The README's commands run as they stand, and the wheel brings what it says."""

from __future__ import annotations

import os
import re
import site
import subprocess
import sys
from pathlib import Path

import make_ktint8
import pytest
from recipes import README, Place

ROOT = README.parent
TINY = ROOT / "tests" / "data" / "tiny-llama"


def unnamed_blocks(section: str) -> list[str]:
    """The shell blocks without a name of one section."""
    text = README.read_text().partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    return re.findall(r"^```sh\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def test_the_five_commands_run(place: Place) -> None:
    blocks = unnamed_blocks("Five commands")
    assert len(blocks) == 5
    dead = make_ktint8.make_staging(place.base, "stale-run", process=make_ktint8.dead_process())
    for block in blocks:
        for path, here in {"~/models/Qwen3-8B": TINY, **place.paths}.items():
            block = block.replace(path, str(here))
        done = place.run(block)
        assert done.returncode == 0, (block, done)
    assert dead.exists(), "-n changes nothing"


def test_the_first_run_does_the_main_job(place: Place) -> None:
    (install, tests, path) = unnamed_blocks("Start")
    assert install.endswith("&& sh tests/first_run .venv/bin/hwctl\n")
    assert tests == "sh tests/run\n"
    completed = place.run(f"cd {ROOT} && bash -c '{path.strip()} && complete -p hwctl'")
    assert (completed.returncode, "hwctl" in completed.stdout) == (0, True), completed
    script, hwctl = ROOT / "tests" / "first_run", place.folder / "bin" / "hwctl"
    done = place.run(f"TMPDIR={place.folder} sh {script} {hwctl}", timeout=120)
    assert done.returncode == 0, done
    assert "all valid" in done.stdout
    assert done.stdout.splitlines()[-1].startswith(str(place.folder))
    assert not list(place.folder.glob("tmp.*"))


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment of its own with the wheel in it, and nothing else."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    subprocess.run([*pip, "wheel", "--no-deps", "-w", folder, ROOT], check=True, timeout=300)
    (wheel,) = folder.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", folder / "env"], check=True, timeout=120)
    python = folder / "env" / "bin" / "python"
    subprocess.run([python, *pip[1:], "install", "--no-deps", wheel], check=True, timeout=120)
    return folder / "env"


def test_the_wheel_brings_pages_and_completions(installed: Path) -> None:
    share = installed / "share"
    pages = sorted(path.name for path in (share / "man" / "man1").glob("hwctl*.1"))
    assert pages == sorted(path.name for path in (ROOT / "man").iterdir())
    completions = {
        "bash-completion/completions/hwctl": "hwctl.bash",
        "zsh/site-functions/_hwctl": "_hwctl",
        "fish/vendor_completions.d/hwctl.fish": "hwctl.fish",
    }
    for place, source in completions.items():
        assert (share / place).read_bytes() == (ROOT / "completions" / source).read_bytes()


def test_the_wheel_runs(installed: Path) -> None:
    env = os.environ | {"PYTHONPATH": ":".join(site.getsitepackages())}
    command = [installed / "bin" / "hwctl", "--version"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, cwd="/", check=False)
    assert (done.returncode, done.stdout.split()[0]) == (0, "hwctl")
