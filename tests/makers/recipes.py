"""A place to run the README's recipes in: a store, a base for staging, and programs found by PATH."""

from __future__ import annotations

import os
import re
import shlex
import stat
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import make_hostweights
import run_hwctl

README = Path(__file__).parents[2] / "README.md"


def named_blocks() -> dict[str, str]:
    """The README's blocks that carry a name, by that name."""
    blocks = re.findall(r"^```\w+ (\S+)\n(.*?)^```$", README.read_text(), re.DOTALL | re.MULTILINE)
    found = dict(blocks)
    assert len(found) == len(blocks), "two recipes of one name"
    return found


@dataclass(frozen=True, slots=True)
class Place:
    """``store`` stands for /srv/weights, ``base`` for /dev/shm; ``artifacts`` are what the store holds."""

    folder: Path
    store: Path
    base: Path
    artifacts: list[Path] = field(default_factory=list)

    def recipe(self, name: str) -> str:
        """A recipe with its paths moved into this place; what is asked for must be in it."""
        text = named_blocks()[name]
        for path, here in self.paths.items():
            text = text.replace(path, str(here))
        return text

    @property
    def paths(self) -> Mapping[str, Path]:
        return {
            "/srv/weights/artifacts/KEY": self.artifacts[0],
            "/srv/weights": self.store,
            "/dev/shm": self.base,
            "/var/lib/prometheus/node-exporter": self.folder,
            "/usr/local/bin/hwctl": self.folder / "bin" / "hwctl",
        }

    def program(self, name: str, script: str) -> Path:
        """An executable shell script on the recipes' PATH."""
        path = self.folder / "bin" / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return path

    @property
    def environment(self) -> dict[str, str]:
        env = run_hwctl.environment()
        return env | {"PATH": f"{self.folder / 'bin'}:{env['PATH']}"}

    def run(
        self, script: str, env: Mapping[str, str] | None = None, timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["/bin/sh", "-c", script],
            capture_output=True,
            text=True,
            cwd=self.folder,
            env=self.environment | dict(env or {}),
            timeout=timeout,
            check=False,
        )

    def damage(self) -> None:
        """Cut a byte off the first artifact's payload."""
        payload = self.artifacts[0] / "model.safetensors"
        payload.chmod(stat.S_IMODE(payload.stat().st_mode) | 0o200)
        os.truncate(payload, payload.stat().st_size - 1)
        payload.chmod(0o444)


def make_place(folder: Path) -> Place:
    (folder / "bin").mkdir()
    base = folder / "shm"
    base.mkdir()
    store = make_hostweights.make_store(folder / "weights")
    made = Place(folder, store, base, [make_hostweights.make_artifact(store, n) for n in (0, 1)])
    command = " ".join(shlex.quote(word) for word in run_hwctl.command())
    python_path = shlex.quote(run_hwctl.environment()["PYTHONPATH"])
    made.program("hwctl", f'PYTHONPATH={python_path} exec {command} "$@"')
    return made
