"""Waiting for what another process has come to, instead of for some time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path


def until(found: Callable[[], object], seconds: float = 20) -> None:
    """Look again and again; AssertionError when it is not so by then."""
    end = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < end
        time.sleep(0.01)


def opened_by(pid: int) -> set[str]:
    """The paths of all that a process has open."""
    found = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found.add(os.readlink(fd))
        except FileNotFoundError:  # closed since it was listed
            continue
    return found


def opens_below(pid: int, path: Path) -> bool:
    """Whether a process has anything open in a folder, or the folder."""
    return any(name == str(path) or name.startswith(f"{path}/") for name in opened_by(pid))
