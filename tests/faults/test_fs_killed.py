"""SIGKILL between any two calls of a replacement: the old or the new document, always whole.

A forked child counts the calls that touch the disk and kills itself before the Nth, for every N; a killed
write has written half. The order of the calls is looked at too, since a kill does not lose what was not
synced, as a power cut would.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from hwctl.fs.atomic import create_document, replace_document
from hwctl.fs.paths import opened_dir

OLD, NEW = b"old" * 40_000, b"new" * 50_000
CALLS = ("open", "pwrite", "fsync", "fchmod", "close", "rename", "unlink")


def wrap(before: Callable[[str, tuple[object, ...]], None]) -> None:
    """Have ``before`` told of every call that touches the disk."""
    for name in CALLS:
        real = getattr(os, name)

        def call(
            *args: object, _name: str = name, _real: Callable[..., object] = real, **named: object
        ) -> object:
            before(_name, args)
            return _real(*args, **named)

        setattr(os, name, call)


def in_child(work: Callable[[], None]) -> int:
    """Run in a forked child; the wait status."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def killed_before(nth: int, write: Callable[[], None]) -> int:
    real_pwrite = os.pwrite

    def work() -> None:
        count = 0

        def before(name: str, args: tuple[object, ...]) -> None:
            nonlocal count
            count += 1
            if count == nth:
                if name == "pwrite":
                    fd, data, offset = args
                    real_pwrite(fd, data[: len(data) // 2], offset)  # type: ignore[index, arg-type]
                os.kill(os.getpid(), signal.SIGKILL)

        wrap(before)
        write()

    return in_child(work)


@pytest.mark.parametrize("existing", [True, False])
def test_a_replacement_is_old_or_new(tmp_path: Path, existing: bool) -> None:
    seen = set()
    for nth in range(1, 100):
        place = tmp_path / str(nth)
        place.mkdir()
        if existing:
            (place / "doc").write_bytes(OLD)
        with opened_dir(place) as fd:
            ended = killed_before(nth, lambda fd=fd: replace_document(fd, "doc", NEW))  # type: ignore[misc]
        found = (place / "doc").read_bytes() if (place / "doc").exists() else None
        assert found in ((OLD if existing else None), NEW)
        seen.add(found)
        # What is left over is a temporary by name, for a later reclaim to recognise.
        left = set(os.listdir(place)) - {"doc"}
        assert len(left) <= 1 and all(name.startswith(".doc.") and name.endswith(".tmp") for name in left)
        if ended == 0:
            assert not left
            break
        assert ended == -signal.SIGKILL
    assert nth > 6 and len(seen) == 2


def test_a_created_document_is_final_only_when_whole(tmp_path: Path) -> None:
    for nth in range(1, 100):
        place = tmp_path / str(nth)
        place.mkdir()
        with opened_dir(place) as fd:
            ended = killed_before(nth, lambda fd=fd: create_document(fd, "READY", NEW, 0o444))  # type: ignore[misc]
        if (place / "READY").exists() and (place / "READY").stat().st_mode & 0o777 == 0o444:
            assert (place / "READY").read_bytes() == NEW
        if ended == 0:
            break
    assert (place / "READY").read_bytes() == NEW


def test_everything_is_synced_before_it_counts(tmp_path: Path) -> None:
    reading, writing = os.pipe()

    def work() -> None:
        names: list[str] = []
        wrap(lambda name, _args: names.append(name))
        with opened_dir(tmp_path) as fd:
            replace_document(fd, "doc", NEW)
        os.write(writing, " ".join(names).encode())

    assert in_child(work) == 0
    names = os.read(reading, 10_000).decode().split()
    os.close(reading)
    os.close(writing)
    assert names[1:-1] == ["open", "pwrite", "fsync", "fchmod", "fsync", "close", "rename", "fsync"]
