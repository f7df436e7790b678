"""Running hwctl as a real process at a terminal of a given width."""

from __future__ import annotations

import os
import pty
import select
import subprocess
from collections.abc import Mapping
from pathlib import Path

import run_hwctl


def on_a_terminal(
    *words: str | Path,
    env: Mapping[str, str] | None = None,
    columns: int = 80,
    typed: bytes = b"",
    status: int = 0,
) -> str:
    """Everything a terminal would have been sent; what is ``typed`` waits there from the start."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        run_hwctl.command(*words),
        stdin=follower,
        stdout=follower,
        stderr=follower,
        env=run_hwctl.environment({"TERM": "xterm-256color", "COLUMNS": str(columns), **(env or {})}),
    )
    os.close(follower)
    os.write(leader, typed)
    data = b""
    while select.select([leader], [], [], 60)[0]:
        try:
            piece = os.read(leader, 65536)
        except OSError:
            break
        if not piece:
            break
        data += piece
    os.close(leader)
    assert process.wait(30) == status
    return data.decode().replace("\r\n", "\n")
