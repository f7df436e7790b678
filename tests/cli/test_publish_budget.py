"""``hwctl publish pageweights --budget``: what goes, what never does, and that a dry run tells both.

Pages of integers, whose finiteness needs no torch.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import make_pageweights
import private_mounts
import pytest
from holders import locked
from run_hwctl import Run, hwctl_, start

FUTURE = 4 * 10**18


def offer(folder: Path, number: int = 7) -> tuple[Path, Path]:
    """The file of a page and its authority."""
    raw = make_pageweights.artifact_bytes(number, 8)
    length = struct.unpack_from("<Q", raw)[0]
    page, authority = folder / f"page{number}.safetensors", folder / f"page{number}.json"
    page.write_bytes(raw[:8] + raw[8 : 8 + length].replace(b"F32", b"I32") + raw[8 + length :])
    record = {**make_pageweights.authority(number), "materializedDtype": "int32"}
    authority.write_text(json.dumps(record))
    return page, authority


def prefix_of(number: int = 7) -> str:
    return make_pageweights.digest({**make_pageweights.authority(number), "materializedDtype": "int32"})


@pytest.fixture
def publish(tmp_path: Path) -> Callable[..., Run]:
    def run(cache: Path, *words: str | Path, number: int = 7) -> Run:
        page, authority = offer(tmp_path, number)
        return hwctl_(
            *("publish", "pageweights", "--page", page, "--cache", cache, "--authority", authority),
            *(*words, "--json"),
        )

    return run


def size(pages: Path) -> int:
    return next(pages.glob("*.safetensors")).stat().st_size


def located(cache: Path) -> set[str]:
    return {path.name[:64] for path in cache.glob("*.locator.json")}


def orphan(cache: Path, number: int, floats: int) -> str:
    """An artifact that no locator names, as a crash leaves it with its page's lock; prefix.key."""
    make_pageweights.put_lock(cache, number)
    return make_pageweights.make_artifact(cache, number, floats, locator=False).stem


def result(run: Run) -> dict[str, Any]:
    (row,) = run.results
    return row


def test_orphans_go_before_any_page(pages: Path, publish: Callable[..., Run]) -> None:
    garbage, before = orphan(pages, 8, 2048), located(pages)
    words = ("--budget", "20KB")
    plan, run = publish(pages, *words, "-n"), publish(pages, *words)
    for one in (plan, run):
        assert (one.status, result(one)["evicted"], result(one)["reclaimed"]) == (0, [], [garbage])
    assert located(pages) == {*before, prefix_of()}
    assert sum(path.stat().st_size for path in pages.glob("*.safetensors")) <= 20_000


def test_the_page_that_was_just_published_stays(pages: Path, publish: Callable[..., Run]) -> None:
    """Others' clocks are in the future: by clocks alone the new page would be the first to go."""
    for number in range(3):
        make_pageweights.set_last_use(pages, number, FUTURE + number)
    run = publish(pages, "--budget", str(2 * size(pages)))
    assert run.status == 0 and prefix_of() in located(pages)
    assert result(run)["evicted"] == [make_pageweights.prefix_of(number) for number in (0, 1)]
    with locked(pages / f".{make_pageweights.prefix_of(2)}.lock") as pid:
        run = publish(pages, "--budget", str(size(pages)), number=8)
    assert run.status == 0 and {prefix_of(8), make_pageweights.prefix_of(2)} == located(pages)
    held, over = run.document["warnings"]
    assert str(pid) in held and "over its budget" in over


def test_a_page_without_a_lock_file_is_no_garbage(pages: Path, publish: Callable[..., Run]) -> None:
    """Whoever locked it before the file went may be writing it (EVI-08)."""
    young = make_pageweights.make_artifact(pages, 8, 2048, locator=False)
    run = publish(pages, "--budget", "20KB")
    assert run.status == 0 and result(run)["reclaimed"] == [] and young.exists()
    assert prefix_of() in located(pages)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_a_dry_run_names_what_would_go(rank: int, pages: Path, publish: Callable[..., Run]) -> None:
    for number in range(3):
        make_pageweights.set_last_use(pages, number, 10**18 + number)
    before, words = located(pages), ("--budget", str((4 - rank) * size(pages)))
    with locked(pages / f".{make_pageweights.prefix_of(0)}.lock"):
        plan = publish(pages, *words, "-n")
        assert located(pages) == before and plan.status == 0
        run = publish(pages, *words)
    wanted = [make_pageweights.prefix_of(number) for number in (1, 2)][:rank]
    assert result(plan)["evicted"] == result(run)["evicted"] == wanted
    page, authority = offer(pages.parent, 8)
    shown = hwctl_(
        *("publish", "pageweights", "-n", "--page", page, "--cache", pages, "--authority", authority),
        *("--budget", str(size(pages))),
    )
    assert f"will be evicted: page {make_pageweights.prefix_of(0)}" in shown.err


def link(lock: Path) -> None:
    lock.symlink_to(lock.parent / "elsewhere")


def folder(lock: Path) -> None:
    lock.mkdir()


@pytest.mark.parametrize("spoil", [link, folder])
def test_the_page_stands_whatever_becomes_of_the_eviction(
    spoil: Callable[[Path], None], pages: Path, publish: Callable[..., Run]
) -> None:
    spoil(pages / ".eviction.lock")
    run = publish(pages, "--budget", str(size(pages)))
    assert (run.status, result(run)["outcome"]) == (0, "published")
    (warning,) = run.document["warnings"]
    assert "nothing was evicted" in warning and ".eviction.lock" in warning
    assert len(located(pages)) == 4


def test_a_busy_eviction_holds_no_page(pages: Path, tmp_path: Path) -> None:
    """While a publisher waits for the eviction lock, anybody gets its page (section 8, order)."""
    make_pageweights.put_eviction_lock(pages)
    page, authority = offer(tmp_path)
    words = ("publish", "pageweights", "--page", page, "--cache", pages, "--authority", authority)
    with locked(pages / ".eviction.lock", "exclusive"):
        process = start(*words, "--budget", str(size(pages)), "--json")
        locator = pages / f"{prefix_of()}.locator.json"
        while not locator.exists() and process.poll() is None:
            pass
        assert process.poll() is None
        # Publishing is over but for the check of what was made, which takes a moment.
        run = hwctl_("verify", locator, "--wait", "20s", "--json")
        assert run.status == 0 and run.document["warnings"] == []
        with locked(pages / f".{prefix_of()}.lock", "exclusive"):
            assert process.poll() is None
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert json.loads(out)["results"][0]["evicted"]


@pytest.fixture
def memory(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A small file system in memory, with the options a test asks for."""
    if reason := private_mounts.why_not():
        pytest.skip(reason)
    with private_mounts.tmpfs(tmp_path / "memory", getattr(request, "param", "size=1m,mode=0700")) as point:
        yield point


def test_a_dry_run_sees_what_refuses_the_run(memory: Path, publish: Callable[..., Run]) -> None:
    cache = memory / "cache"
    assert publish(cache, number=1).status == 0
    cache.chmod(0o755)
    assert publish(cache, "-n").status == publish(cache).status == 12
    cache.chmod(0o700)
    free = os.statvfs(memory).f_bavail * os.statvfs(memory).f_frsize
    (memory / "filler").write_bytes(
        b"x" * (free - (32 << 10))
    )  # room for the page, not for what is beside it
    for run in (publish(cache, "-n"), publish(cache)):
        assert run.status == 14
        assert f"hwctl evict {cache} --min-free" in run.error["message"]
    (memory / "filler").unlink()
    private_mounts.mount("-o", "remount,ro", memory)
    assert publish(cache, "-n").status == publish(cache).status == 15
    for words in ((), ("-n",)):
        there = publish(cache, *words, number=1)
        assert (there.status, result(there)["outcome"]) == (0, "already-published")
    private_mounts.mount("-o", "remount,rw", memory)
    assert publish(cache, "--budget", "100", "-n").status == publish(cache, "--budget", "100").status == 14


@pytest.mark.parametrize("memory", ["size=1m,nr_inodes=8,mode=0700"], indirect=True)
def test_without_inodes_pages_can_still_be_evicted(memory: Path, publish: Callable[..., Run]) -> None:
    cache = memory / "cache"
    assert publish(cache, number=1).status == 0
    for run in (publish(cache, "-n"), publish(cache)):
        assert run.status == 14 and f"hwctl evict {cache} --keep N" in run.error["message"]
    for number in range(8 - len(list(cache.rglob("*"))) - 2):
        (memory / f"filler{number}").touch()
    assert os.statvfs(memory).f_favail == 0
    assert hwctl_("evict", cache, "--all", "-y").status == 0
    assert located(cache) == set()


def test_links_are_followed_and_pipes_are_named(pages: Path, tmp_path: Path) -> None:
    """A snapshot of a hub is a folder of links."""
    page, authority = offer(tmp_path)
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    for path in (page, authority):
        (snapshot / path.name).symlink_to(path)
    words = ("publish", "pageweights", "--cache", pages)
    run = hwctl_(*words, "--page", snapshot / page.name, "--authority", snapshot / authority.name)
    assert run.status == 0, run.err
    source = ("--source-format-revision", "1", "--page-id", "7")
    run = hwctl_(*words, "--page", page, "--source", snapshot / page.name, *source)
    assert run.status == 0, run.err
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for given, status in (
        (("--page", pipe, "--authority", authority), 12),
        (("--page", page, "--authority", pipe), 2),
        (("--page", page, "--source", pipe, *source), 12),
    ):
        run = hwctl_(*words, *given)
        assert run.status == status and f"{pipe} is a fifo" in run.err
    page.unlink()
    run = hwctl_(*words, "--page", snapshot / page.name, "--authority", authority)
    assert run.status == 10 and str(page) in run.err
