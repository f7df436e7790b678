"""Other processes that hold a lock or a file, for tests that need a rival."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

_LOCK = """
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
fcntl.flock(fd, {"shared": fcntl.LOCK_SH, "exclusive": fcntl.LOCK_EX}[sys.argv[2]])
print("held", flush=True)
sys.stdin.read()
"""
_PASS = """
import fcntl, os, select, sys, time
fd = os.open(sys.argv[1], os.O_RDONLY)
fcntl.flock(fd, fcntl.LOCK_EX)
print("held", flush=True)
while not select.select([sys.stdin], [], [], 0)[0]:
    time.sleep(0.02)
    fcntl.flock(fd, fcntl.LOCK_UN)
    fcntl.flock(fd, fcntl.LOCK_EX)
"""
_MAP = """
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
mapped = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
os.close(fd)
print("mapped", flush=True)
sys.stdin.read()
print(mapped[:4].hex(), flush=True)
"""


@contextmanager
def _running(code: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", code, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline()
        yield process
    finally:
        process.communicate(timeout=10)


@contextmanager
def locked(path: Path, mode: str = "shared") -> Iterator[int]:
    """Another process holds a flock on a file or directory; its pid."""
    with _running(_LOCK, str(path), mode) as process:
        yield process.pid


@contextmanager
def passed_around(path: Path) -> Iterator[None]:
    """Three processes have a lock in turn, as programs that access a cache all the time: whenever one lets
    go, the others wait for it already."""
    with ExitStack() as running:
        for _ in range(3):
            running.enter_context(_running(_PASS, str(path)))
        yield


@contextmanager
def mapped(path: Path) -> Iterator[int]:
    """Another process has a file mapped, and nothing else; its pid."""
    with _running(_MAP, str(path)) as process:
        yield process.pid
