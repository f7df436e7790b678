"""Small file systems for tests, mounted where only this process sees them.

The test process moves into a mount namespace of its own once, so that a crash leaves no mount behind and
nothing on the machine is covered. Needs the right to mount; a test that gets a reason instead skips with it.
"""

from __future__ import annotations

import ctypes
import functools
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_CLONE_NEWNS = 0x20000


@functools.cache
def why_not() -> str | None:
    """The reason why nothing can be mounted here; None once this process has its own mount namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS) != 0:
        return f"cannot make a mount namespace: {os.strerror(ctypes.get_errno())}"
    done = subprocess.run(["mount", "--make-rprivate", "/"], capture_output=True, text=True)
    return done.stderr.strip() or None if done.returncode else None


def mount(*words: str | Path) -> None:
    subprocess.run(["mount", *words], check=True, capture_output=True, text=True)


@contextmanager
def tmpfs(point: Path, options: str) -> Iterator[Path]:
    """A tmpfs of the given options at ``point``, which is made if need be."""
    point.mkdir(exist_ok=True)
    mount("-t", "tmpfs", "-o", options, "hwctl-test", point)
    try:
        yield point
    finally:
        subprocess.run(["umount", "-l", point], check=True)
