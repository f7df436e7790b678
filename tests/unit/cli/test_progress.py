"""The progress line: passes by name, time left, and what it leaves out where there is no room."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hwctl.cli.output import Stream
from hwctl.cli.progress import Pace, Progress

MIB = 1 << 20
Shown = Callable[[], list[str]]


@pytest.fixture
def stream(tmp_path: Path) -> Iterator[tuple[Stream, Shown]]:
    """Where progress is painted, and the lines that were painted there so far."""
    path = tmp_path / "painted"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    painted = Stream(fd, colour=False)

    def shown() -> list[str]:
        painted.flush()
        return path.read_bytes().decode().split("\r\x1b[K")[1:]

    yield painted, shown
    os.close(fd)


def run(progress: Progress, steps: int, count: int) -> None:
    for _ in range(steps):
        time.sleep(0.11)
        progress.advance(count)


def test_each_pass_is_named_and_counted(stream: tuple[Stream, Shown]) -> None:
    painted, shown = stream
    progress = Progress(painted, "publish", None)
    progress.expect(3 * MIB, "hashing", "writing")
    run(progress, 6, MIB)
    lines = shown()
    assert [line.split(" [")[0] for line in lines] == [
        *["publish 1/2 hashing"] * 2,
        *["publish 2/2 writing"] * 4,
    ]
    assert [line.partition("] ")[2].split("  ")[0] for line in lines] == [
        f"{done} of 3.00 MiB" for done in ("1.00 MiB", "2.00 MiB", "0 B", "1.00 MiB", "2.00 MiB", "3.00 MiB")
    ]
    assert lines[-1].endswith("  finishing")
    assert not any("finishing" in line for line in lines[:-1])


def test_the_time_left_is_never_nothing(stream: tuple[Stream, Shown]) -> None:
    painted, shown = stream
    progress = Progress(painted, "verify", 16 * MIB)
    run(progress, 15, MIB)
    told = [line for line in shown() if line.endswith(" left")]
    assert told
    assert not any(line.endswith(" 0s left") for line in told)


def test_the_last_bytes_are_shown_however_soon_they_come(stream: tuple[Stream, Shown]) -> None:
    painted, shown = stream
    progress = Progress(painted, "verify", 2 * MIB)
    run(progress, 1, MIB)
    progress.advance(MIB)
    progress.advance(0)
    assert [line.partition("] ")[2].split("  ")[0] for line in shown()] == [
        "1.00 MiB of 2.00 MiB",
        "2.00 MiB of 2.00 MiB",
    ]


@pytest.mark.parametrize("columns", [40, 60, 80, 120])
def test_the_numbers_outlive_the_bar(
    stream: tuple[Stream, Shown], monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    painted, shown = stream
    progress = Progress(painted, "publish", None)
    progress.expect(1536 * MIB, "hashing", "writing")
    run(progress, 12, 50 * MIB)
    last = shown()[-1]
    assert len(last) < columns
    assert last.startswith("publish 1/2 hashing")
    assert "600 MiB of 1.50 GiB" in last
    assert ("s left" in last) == (columns >= 60)
    assert ("/s" in last) == (columns >= 60)
    assert ("#" in last) == (columns >= 80)


def test_the_pace_is_that_of_late() -> None:
    """A cache that served the first gigabytes in no time says nothing about the rest."""
    pace = Pace(0.0)
    for second in range(1, 11):
        pace.add(1000, float(second))
    assert pace.rate == pytest.approx(1000)
    for second in range(11, 26):
        pace.add(100, float(second))
    assert pace.rate == pytest.approx(100, rel=0.1)
    assert Pace(5.0).rate == 0
