"""A publisher that dies between any two system calls, or finds no room, harms nobody who comes after it.

The publisher is a forked child that kills itself before its Nth call, for N = 1, 2, 3 ... until it gets
through. What it leaves must never be taken for a page, never be in the way, and be reclaimable.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import make_pageweights
import pytest
from run_hwctl import hwctl_, start

from hwctl.errors import NoRoom
from hwctl.fs import space
from hwctl.fs.deadline import Deadline
from hwctl.fs.lock_table import Mode
from hwctl.stores.base import Artifact, CheckOptions, Death, Level, StalePolicy, State
from hwctl.stores.pageweights import offers, publication, roots
from hwctl.stores.pageweights.authority import Authority, read_authority
from hwctl.stores.pageweights.loading import load
from hwctl.stores.pageweights.store import open_store

CALLS = ("open", "pwrite", "fsync", "fchmod", "rename", "unlink", "utime", "stat", "close")
MIB = 1 << 20


def authority() -> Authority:
    found = read_authority(make_pageweights.authority(7))
    assert isinstance(found, Authority)
    return found


def write_page(path: Path, value: float, floats: int = 8) -> Path:
    raw = make_pageweights.artifact_bytes(7, floats)
    path.write_bytes(raw[:-4] + struct.pack("<f", value))
    return path


def publish(root: Path, page: Path) -> None:
    with offers.from_file(page) as offer, roots.writable(root, create=True) as opened:
        publication.publish(opened, authority(), offer, wait=Deadline.after(30))


def killed_at(nth: int, work: Callable[[], None]) -> bool:
    """Run ``work`` in a child that is killed before its Nth call; whether it was."""
    pid = os.fork()
    if pid == 0:
        left = nth

        def counted(real: Callable[..., object]) -> Callable[..., object]:
            def call(*args: object, **more: object) -> object:
                nonlocal left
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*args, **more)

            return call

        for name in CALLS:
            setattr(os, name, counted(getattr(os, name)))
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    status = os.waitpid(pid, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


def weights_of(root: Path) -> bytes | None:
    """The data section that a reader gets, None for a miss. Damage is raised."""
    with roots.opened(root) as opened:
        page = load(opened, authority(), wait=Deadline.now())
    return None if page is None else bytes(page.data)


def data_of(page: Path) -> bytes:
    raw = page.read_bytes()
    return raw[8 + struct.unpack_from("<Q", raw)[0] :]


def leftovers(root: Path) -> list[Artifact]:
    return [entry for entry in open_store(root).scan() if entry.state is not State.READY]


def reclaim(root: Path) -> None:
    store = open_store(root)
    for entry in leftovers(root):
        assert store.stale(entry, StalePolicy()).death is Death.PROVEN, entry
        with store.lease(entry, Mode.EXCLUSIVE, Deadline.now()):
            store.remove(entry)


@pytest.mark.parametrize(
    ("before", "value"),
    [("nothing", 7.5), ("nothing", 1.25), ("half a page", 1.25), ("a pair", 7.5)],
    ids=["nothing-same-bytes", "nothing-other-bytes", "half-a-page-other-bytes", "a-pair-same-bytes"],
)
def test_a_publisher_killed_anywhere_is_replaced(before: str, value: float, tmp_path: Path) -> None:
    first, second = write_page(tmp_path / "first", 7.5), write_page(tmp_path / "second", value)
    deaths = 0
    for nth in range(1, 300):
        root = tmp_path / f"cache-{nth}"
        if before != "nothing":
            publish(root, first)
            gone = "*.receipt.json" if before == "half a page" else "*.locator.json"
            next(root.glob(gone)).unlink()
        if not killed_at(nth, lambda root=root: publish(root, first)):  # type: ignore[misc]
            break
        deaths += 1
        if not root.exists():
            continue
        found = weights_of(root)
        assert found in (None, data_of(first))
        if found is None:
            publish(root, second)
            assert weights_of(root) == data_of(second)
        reclaim(root)
        assert leftovers(root) == []
        (page,) = open_store(root).scan()
        assert open_store(root).check(page, Level.FULL, CheckOptions()).valid
        shutil.rmtree(root)
    else:
        pytest.fail("the publisher never got through")
    assert deaths >= 25


def test_the_caches_own_program_goes_on_after_a_kill(tmp_path: Path) -> None:
    """The oracle rebuilds or hits whatever a killed hwctl left."""
    pytest.importorskip("torch")
    script = tmp_path / "use.py"
    script.write_text(
        "import json, sys, torch\n"
        "from pathlib import Path\n"
        "torch.set_num_threads(1)\n"
        f"sys.path.insert(0, {str(Path(__file__).parents[1] / 'interop')!r})\n"
        "from page_oracle import NAMES, OracleCache\n"
        "weights = {name: torch.full((1, 8), 7.5) for name in NAMES[1:]}\n"
        "weights['page_ids_t'] = torch.tensor([7])\n"
        "for root in sys.argv[2:]:\n"
        "    cache = OracleCache(Path(root), 1 << 40)\n"
        "    found = cache.load_or_build(json.loads(sys.argv[1]), lambda: weights)\n"
        "    assert all(torch.equal(found[name], weights[name]) for name in weights)\n"
    )
    page, left = write_page(tmp_path / "page", 7.5), []
    for nth in range(1, 300):
        root = tmp_path / f"cache-{nth}"
        died = killed_at(nth, lambda root=root: publish(root, page))  # type: ignore[misc]
        if root.exists():
            left.append(str(root))
        if not died:
            break
    words = [json.dumps(make_pageweights.authority(7)), *left]
    done = subprocess.run(
        [sys.executable, str(script), *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    for root in left:
        assert weights_of(Path(root)) == data_of(page)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system in memory that holds 8 MiB."""
    where = tmp_path / "small"
    where.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m,mode=0700", "hwctl-test", str(where)],
        capture_output=True,
        check=False,
    )
    if done.returncode != 0:
        pytest.skip("no file system can be mounted here")
    try:
        yield where
    finally:
        subprocess.run(["umount", str(where)], check=True)


def test_a_page_that_does_not_fit_is_refused_before_a_byte(small: Path, tmp_path: Path) -> None:
    page = write_page(tmp_path / "page", 7.5, floats=MIB // 4)  # ten MiB
    root = small / "cache"
    with pytest.raises(NoRoom) as no_room:
        publish(root, page)
    assert "tmpfs" in no_room.value.message and "--shm-size" in no_room.value.message
    assert [path for path in root.iterdir() if not path.name.endswith(".lock")] == []


@pytest.mark.parametrize("spare", [0, 64 << 10, 2 * MIB, 5 * MIB])
def test_room_that_runs_out_on_the_way_leaves_nothing(
    spare: int, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others write too: the check before passes, and ENOSPC comes in the middle."""
    page = write_page(tmp_path / "page", 7.5, floats=MIB // 8)  # five MiB
    root = small / "cache"
    roots.make(root)
    monkeypatch.setattr(space, "require", lambda *_args, **_more: None)
    with (small / "filler").open("wb") as filler:
        free = os.statvfs(small).f_bavail * os.statvfs(small).f_frsize
        filler.write(b"x" * (free - spare))
    with pytest.raises(NoRoom):
        publish(root, page)
    assert [path for path in root.iterdir() if not path.name.endswith(".lock")] == []
    (small / "filler").unlink()
    publish(root, page)
    assert weights_of(root) == data_of(page)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_removes_the_own_temporary(signum: signal.Signals, tmp_path: Path) -> None:
    """PUB-07: the process dies of that signal, and the cache is as before or complete."""
    page, root = write_page(tmp_path / "page", 7.5, floats=4 * MIB), tmp_path / "cache"
    presented = tmp_path / "page.json"
    presented.write_text(json.dumps(make_pageweights.authority(7)))
    words = ("publish", "pageweights", "--page", page, "--cache", root, "--authority", presented)
    process = start(*words)
    until = time.monotonic() + 60
    while time.monotonic() < until and process.poll() is None and not list(tmp_path.glob("cache/.*.tmp")):
        time.sleep(0.001)
    process.send_signal(signum)
    process.communicate(timeout=60)
    assert process.returncode in (-signum, 0)
    if process.returncode:
        assert [path for path in root.iterdir() if not path.name.endswith(".lock")] == []
    assert hwctl_(*words).status == 0
    assert len([path for path in root.iterdir() if not path.name.endswith(".lock")]) == 3
