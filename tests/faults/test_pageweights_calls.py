"""The order of the calls that make a page durable, and what may change between two of them.

Every call is carried out; it is only written down on its way, with the name that its descriptor stands for.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import make_pageweights
import pytest
from holders import locked

from hwctl.errors import Damaged
from hwctl.fs.deadline import Deadline
from hwctl.stores.base import Level
from hwctl.stores.pageweights import loading, offers, publication, roots
from hwctl.stores.pageweights.authority import Authority, read_authority
from hwctl.stores.pageweights.checks import Verdict, check_page
from hwctl.stores.pageweights.eviction import evict_to_budget
from hwctl.stores.pageweights.reading import Pace
from hwctl.stores.pageweights.roots import Root

Call = tuple[str, str, object]
"""(call, the name of the file, more: a new name or mode)."""


@contextmanager
def recorded(patch: pytest.MonkeyPatch) -> Iterator[list[Call]]:
    """The calls that change a folder or make something durable, in their order."""
    calls: list[Call] = []

    def watch(name: str, told: Callable[..., tuple[str, object]]) -> None:
        real = getattr(os, name)

        def call(*args: Any, **more: Any) -> object:
            calls.append((name, *told(*args)))
            return real(*args, **more)

        patch.setattr(os, name, call)

    with patch.context():
        watch("pwrite", lambda fd, *_: (name_of(fd), None))
        watch("fsync", lambda fd: (name_of(fd), None))
        watch("fchmod", lambda fd, mode: (name_of(fd), mode))
        watch("rename", lambda src, dst: (kind_of(src), kind_of(dst)))
        watch("unlink", lambda name: (kind_of(name), None))
        yield calls
    patch.undo()


def name_of(fd: int) -> str:
    if stat.S_ISDIR(os.fstat(fd).st_mode):
        return "root"
    return kind_of(os.path.basename(os.readlink(f"/proc/self/fd/{fd}")))


def kind_of(name: str) -> str:
    """What a name is, without the digests and numbers in it."""
    if name.endswith(".tmp"):
        return "document's temporary" if ".json." in name else "artifact's temporary"
    return next((word for word in ("locator", "receipt", "safetensors", "lock") if word in name), name)


def authority(number: int = 7) -> Authority:
    found = read_authority(make_pageweights.authority(number))
    assert isinstance(found, Authority)
    return found


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return make_pageweights.make_store(tmp_path / "cache")


@pytest.fixture
def page(tmp_path: Path) -> Path:
    path = tmp_path / "page.safetensors"
    path.write_bytes(make_pageweights.artifact_bytes(7, 8))
    return path


def publish(cache: Path, page: Path) -> None:
    with offers.from_file(page) as offer, roots.writable(cache) as root:
        publication.publish(root, authority(), offer, wait=Deadline.now())


def changes(calls: list[Call]) -> list[Call]:
    """What happened to names, and what was synced; that bytes were written is left out."""
    return [call for call in calls if call[0] != "pwrite" and call[1] != "lock"]


def test_each_name_stands_only_for_what_is_durable(
    cache: Path, page: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The artifact is synced after its final mode, then named, and the folder after each name."""
    make_pageweights.put_eviction_lock(cache)
    publish(make_pageweights.make_store(cache.parent / "warm"), page)  # what is loaded at first use
    with recorded(monkeypatch) as calls:
        publish(cache, page)
    last_write = max(n for n, call in enumerate(calls) if call[:2] == ("pwrite", "artifact's temporary"))
    done = [call for call in changes(calls[last_write:]) if call[0] != "unlink"]
    assert done[:4] == [
        ("fchmod", "artifact's temporary", 0o400),
        ("fsync", "artifact's temporary", None),
        ("rename", "artifact's temporary", "safetensors"),
        ("fsync", "root", None),
    ]
    document = [
        ("fsync", "document's temporary", None),
        ("fchmod", "document's temporary", 0o600),
        ("fsync", "document's temporary", None),
    ]
    assert done[4:] == [
        *document,
        ("rename", "document's temporary", "receipt"),
        ("fsync", "root", None),
        *document,
        ("rename", "document's temporary", "locator"),
        ("fsync", "root", None),
    ]


def test_a_page_goes_locator_first_and_the_folder_is_synced(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(2):
        make_pageweights.make_artifact(cache, number)
        make_pageweights.put_lock(cache, number)
    with roots.writable(cache) as root, recorded(monkeypatch) as calls:
        assert len(evict_to_budget(root, 1, Deadline.now()).evicted) == 2
    one = [("unlink", "locator", None), ("unlink", "receipt", None), ("unlink", "safetensors", None)]
    assert changes(calls) == [*one, ("fsync", "root", None)] * 2


def test_what_a_crash_left_of_a_page_is_gone_for_good_before_the_new_one(
    cache: Path, page: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(cache, page)
    next(cache.glob("*.receipt.json")).unlink()
    with recorded(monkeypatch) as calls:
        publish(cache, page)
    unlinked = [n for n, call in enumerate(calls) if call[0] == "unlink" and "temporary" not in call[1]]
    assert [calls[n][1] for n in unlinked] == ["locator", "safetensors"]
    assert calls[unlinked[-1] + 1] == ("fsync", "root", None)


@pytest.mark.parametrize("level", [Level.SIZE, Level.FULL])
def test_a_file_that_changes_while_it_is_read_is_not_believed(
    level: Level, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Section 10, step 11: the bytes are the right ones, and yet somebody was at them."""
    make_pageweights.make_artifact(cache, 7)
    artifact = next(cache.glob("*.safetensors"))
    real = os.preadv

    def touched(*args: Any) -> int:
        os.utime(artifact, ns=(10**18, 10**18))
        return real(*args)

    monkeypatch.setattr(os, "preadv", touched)
    with roots.opened(cache) as root:
        verdict = check_page(root.place, authority().prefix, authority(), level, Pace())
    assert [finding.code for finding in verdict.findings] == ["changed"]


def test_without_a_lock_file_damage_is_looked_at_twice(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eviction and republication may pass between two opens of a reader that holds no lock."""
    locator = make_pageweights.make_artifact(cache, 7)
    (cache / f".{authority().prefix}.lock").unlink()
    sound = locator.read_bytes()
    locator.write_bytes(sound[:100])
    real = loading.find_page

    def then_whole(root: Root, wanted: Authority, pace: Pace, *, keep: bool = False) -> Verdict:
        try:
            return real(root, wanted, pace, keep=keep)
        finally:
            locator.write_bytes(sound)

    monkeypatch.setattr(loading, "find_page", then_whole)
    with roots.opened(cache) as root:
        assert loading.load(root, authority(), wait=Deadline.now()) is not None
        locator.write_bytes(sound[:100])
        make_pageweights.put_lock(cache, 7)
        with pytest.raises(Damaged):  # under the lock nothing passes
            loading.load(root, authority(), wait=Deadline.now())


def test_an_eviction_leaves_a_page_alone_that_is_held(cache: Path) -> None:
    for number in range(2):
        make_pageweights.make_artifact(cache, number)
        make_pageweights.put_lock(cache, number)
        make_pageweights.set_last_use(cache, number, 10**18 + number)
    held = make_pageweights.prefix_of(0)
    with roots.writable(cache) as root, locked(cache / f".{held}.lock"):
        done = evict_to_budget(root, 1, Deadline.now())
    assert done.evicted == (make_pageweights.prefix_of(1),)
    assert (cache / f"{held}.locator.json").exists()
