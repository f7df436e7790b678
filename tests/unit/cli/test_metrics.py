"""Prometheus text files: the format, hostile labels, and replacing as a whole."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from hwctl.cli.metrics import Gauge, of_run, render, write
from hwctl.errors import IoFailed, Refused

GAUGES = [
    *of_run("verify", 65, 1.23456),
    Gauge("store_bytes", "Bytes in the store.", 123, {"store": '/a "b"\\\n', "family": "ktint8"}),
    Gauge("store_bytes", "Bytes in the store.", 5, {"store": os.fsdecode(b"/\xff"), "family": "ktint8"}),
]


def test_promtool_agrees() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool (Debian package prometheus) is not installed")
    done = subprocess.run([promtool, "check", "metrics"], input=render(GAUGES), capture_output=True)
    assert done.returncode == 0, done.stderr.decode() + done.stdout.decode()


def test_families_stand_together_with_one_help() -> None:
    text = render([GAUGES[3], GAUGES[0], GAUGES[4]]).decode()
    assert text.count("# HELP hwctl_store_bytes ") == 1
    lines = [line for line in text.splitlines() if line.startswith("hwctl_store_bytes")]
    assert lines[0] == 'hwctl_store_bytes{store="/a \\"b\\"\\\\\\n",family="ktint8"} 123'
    assert text.index(lines[1]) < text.index("hwctl_run_exit_status")


def test_replaced_as_a_whole_and_readable_by_the_collector(tmp_path: Path) -> None:
    target = tmp_path / "hwctl.prom"
    target.write_text("old")
    before = target.stat().st_ino
    write(target, GAUGES)
    assert target.stat().st_ino != before
    assert target.stat().st_mode & 0o777 == 0o644
    assert os.listdir(tmp_path) == ["hwctl.prom"]


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(IoFailed, match="cannot write metrics"):
        write(tmp_path / "absent" / "x.prom", GAUGES)


def test_only_a_regular_file_is_replaced(tmp_path: Path) -> None:
    """As root a rename over /dev/stdout or a device would hold for the whole machine."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("fifo")
    for name, kind in (("fifo", "fifo"), ("link", "symbolic link")):
        before = os.lstat(tmp_path / name).st_ino
        with pytest.raises(Refused, match=f"it is a {kind}"):
            write(tmp_path / name, GAUGES)
        assert os.lstat(tmp_path / name).st_ino == before
    assert len(os.listdir(tmp_path)) == 2
