"""A lock that stays is seen once, however many others come and go while the kernel's table is read."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

from hwctl.fs.lock_table import LockTable

_CHURN = """
import fcntl, os, sys, time
fds = [os.open(f"{sys.argv[1]}/{n}", os.O_CREAT | os.O_RDWR) for n in range(40)]
print("ready", flush=True)
end = time.monotonic() + 30
while time.monotonic() < end:
    for fd in fds:
        fcntl.flock(fd, fcntl.LOCK_EX)
        time.sleep(0.001)
    for fd in fds:
        fcntl.flock(fd, fcntl.LOCK_UN)
"""


def test_a_steady_lock_is_listed_once(tmp_path: Path) -> None:
    held = os.open(tmp_path / "held", os.O_CREAT | os.O_RDWR)
    fcntl.flock(held, fcntl.LOCK_SH)
    st = os.fstat(held)
    command = [sys.executable, "-S", "-c", _CHURN, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as churn:
        try:
            assert churn.stdout is not None and churn.stdout.readline()
            seen = [len(LockTable.read().entries((st.st_dev, st.st_ino))) for _ in range(300)]
        finally:
            churn.kill()
            os.close(held)
    assert seen == [1] * 300
