"""Publishing when things go wrong half-way: sources that move, interruptions, and memory."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from hwctl.core.publish_hostweights import Request, foresee, publish
from hwctl.core.publish_material import Work
from hwctl.core.publishing import Publishing
from hwctl.errors import Refused
from hwctl.weights.safetensors_file import build_header

TINY = Path(__file__).parents[2] / "data" / "tiny-llama"
SHARD = "model-00002-of-00002.safetensors"


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return Path(shutil.copytree(TINY, tmp_path / "tiny"))


class At:
    """An Advance that does something once, when so many bytes were worked through."""

    def __init__(self, threshold: int, action: Callable[[], None]) -> None:
        self._left = threshold
        self._action: Callable[[], None] | None = action

    def __call__(self, count: int) -> None:
        self._left -= count
        if self._left <= 0 and self._action is not None:
            action, self._action = self._action, None
            action()


def hashed(folder: Path) -> int:
    """Bytes that the first pass goes through."""
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def rewrite(path: Path) -> None:
    path.write_bytes(path.read_bytes())


def replace(path: Path) -> None:
    shutil.copy2(path, path.with_suffix(".new"))
    path.with_suffix(".new").rename(path)


def shorten(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 8)


def nothing_left(store: Path) -> bool:
    folders = [store / name for name in ("artifacts", "tmp", "quarantine")]
    return all(not folder.exists() or not os.listdir(folder) for folder in folders)


@pytest.mark.parametrize("change", [rewrite, replace, shorten, Path.unlink])
@pytest.mark.parametrize("moment", ["first pass", "between", "second pass"])
def test_a_source_that_changes_is_refused(
    change: Callable[[Path], None], moment: str, tiny: Path, tmp_path: Path
) -> None:
    total = hashed(tiny)
    threshold = {"first pass": 1, "between": total, "second pass": total + 500}[moment]
    advance = At(threshold, lambda: change(tiny / SHARD))
    with pytest.raises(Refused) as caught:
        publish(Request(tiny, tmp_path / "store", work=Work(advance=advance)))
    assert caught.value.details["code"] == "source-changed"
    assert SHARD in caught.value.message
    assert nothing_left(tmp_path / "store")


class Stop(BaseException):
    """Raised in the main thread, as a signal is."""


def stop() -> None:
    raise Stop


@pytest.mark.parametrize("moment", range(0, 11000, 1000))
def test_an_interruption_leaves_nothing_and_no_thread(moment: int, tiny: Path, tmp_path: Path) -> None:
    before = threading.active_count()
    with pytest.raises(Stop):
        publish(Request(tiny, tmp_path / "store", work=Work(advance=At(moment, stop))))
    assert nothing_left(tmp_path / "store")
    assert threading.active_count() == before
    assert publish(Request(tiny, tmp_path / "store")).outcome is Publishing.PUBLISHED


def test_progress_is_told_the_whole_and_then_exactly_that_much(tiny: Path, tmp_path: Path) -> None:
    told: list[int] = []
    expected: list[tuple[int, tuple[str, ...]]] = []

    def expect(total: int, /, *passes: str) -> None:
        expected.append((total, passes))

    publish(Request(tiny, tmp_path / "store", work=Work(advance=told.append, expect=expect)))
    ((total, passes),) = expected
    assert passes == ("hashing", "writing")
    # What is written has other headers than what was read; that may make a difference of a percent.
    assert sum(told) == pytest.approx(2 * total, rel=0.1)


def test_a_plan_and_the_publication_agree(tiny: Path, tmp_path: Path) -> None:
    planned = foresee(Request(tiny, tmp_path / "store"))
    done = publish(Request(tiny, tmp_path / "store"))
    assert (planned.key, planned.path, planned.bytes, planned.files) == (
        done.key,
        done.path,
        done.bytes,
        done.files,
    )


PROGRAM = """
import sys
from pathlib import Path
from hwctl.core.publish_hostweights import Request, publish
def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) >> 10
before = peak()
result = publish(Request(Path(sys.argv[1]), Path(sys.argv[2])))
print(result.outcome, peak() - before, "torch" in sys.modules)
"""


def run(source: Path, store: Path) -> tuple[str, int, bool]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(source), str(store)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    outcome, peak, torch = done.stdout.split()
    return outcome, int(peak), torch == "True"


def test_memory_does_not_grow_with_the_model(tmp_path: Path) -> None:
    """One tensor of 400 MiB: written in blocks, within a fraction of its size, and without torch."""
    source = tmp_path / "model.safetensors"
    header, _ = build_header([("w", "U8", (400 << 20,))], None)
    with source.open("wb") as file:
        file.write(header)
        file.truncate(len(header) + (400 << 20))
    outcome, peak, torch = run(source, tmp_path / "store")
    assert (outcome, torch) == ("published", False)
    assert peak < 100


def test_memory_per_tensor(tmp_path: Path) -> None:
    """At most 1 KiB a tensor beyond what any publication may take."""
    count = 30_000
    source = tmp_path / "model.safetensors"
    names = [f"model.layers.{n // 1000}.mlp.experts.{n}.down_proj.weight" for n in range(count)]
    header, entries = build_header([(name, "BF16", (7, 3)) for name in names], None)
    source.write_bytes(header + bytes(entries[-1].end))
    outcome, peak, _torch = run(source, tmp_path / "store")
    assert outcome == "published"
    assert peak < 100 + count // 1024
