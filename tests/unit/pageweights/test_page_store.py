"""What a cache's entries are taken for, and which root and entry a path means."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import make_pageweights
import private_mounts
import pytest
from holders import locked

from hwctl.errors import IoFailed, NotFound, Refused
from hwctl.fs.deadline import Deadline
from hwctl.fs.lock_table import Mode
from hwctl.fs.pace import TimedOut
from hwctl.stores.base import Artifact, CheckOptions, Death, Family, Level, StalePolicy, State
from hwctl.stores.pageweights import layout, verification
from hwctl.stores.pageweights.locating import recognise
from hwctl.stores.pageweights.store import PageStore, open_store

OTHER_KEY = "0" * 64


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = make_pageweights.make_store(tmp_path / "cache")
    for number in range(3):
        make_pageweights.make_artifact(made, number)
    return made


def put(path: Path, data: bytes = b"x" * 100, mode: int = 0o600) -> Path:
    path.write_bytes(data)
    path.chmod(mode)
    return path


def by_name(store: PageStore) -> dict[str, Artifact]:
    return {artifact.path.name: artifact for artifact in store.scan()}


def locator(root: Path, number: int) -> Path:
    return root / f"{make_pageweights.prefix_of(number)}.locator.json"


def named(store: PageStore, path: Path) -> Artifact:
    match = recognise(path)
    assert match is not None and match.key is not None and match.root == store.root
    return Artifact(Family.PAGEWEIGHTS, match.root, match.key, match.path, State.ABSENT)


@contextmanager
def mounted_on(path: Path) -> Iterator[None]:
    private_mounts.mount("--bind", path, path)
    try:
        yield
    finally:
        subprocess.run(["umount", path], check=True)


def test_pages_carry_their_source_and_sizes(root: Path) -> None:
    make_pageweights.set_last_use(root, 1, 10**18 + 7)
    page = by_name(open_store(root))[locator(root, 1).name]
    files = list(root.glob(f"{page.key}*"))
    payload = next(path for path in files if path.suffix == ".safetensors")
    assert (page.state, page.files, page.bytes) == (State.READY, 3, payload.stat().st_size)
    assert page.allocated == sum(path.stat().st_blocks * 512 for path in files)
    assert (page.last_used, page.created) == (10**18 + 7, payload.stat().st_mtime_ns)
    authority = make_pageweights.authority(1)
    assert page.detail["page_id"] == 1 and page.detail["dtype"] == "float32"
    assert page.detail["source_sha256"] == authority["sourceObjectSha256"]
    assert page.detail["source_identity"] == authority["sourceFileIdentity"]


def test_every_kind_of_leftover_is_a_row(root: Path) -> None:
    prefix, store = make_pageweights.prefix_of(0), open_store(root)
    put(root / f"{prefix}.{OTHER_KEY}.safetensors", mode=0o400)
    put(root / f".{prefix}.1.2.3.tmp")
    put(root / f".{prefix}.locator.json.1.2.tmp")
    put(root / ".tmpAb3dEf")
    put(root / "README.txt")
    put(root / "notes.locator.json")
    (root / "folder").mkdir()
    (root / "link.safetensors").symlink_to("nowhere")
    states = {name: artifact.state for name, artifact in by_name(store).items()}
    assert states == {
        **{locator(root, number).name: State.READY for number in range(3)},
        f"{prefix}.{OTHER_KEY}.safetensors": State.ORPHAN,
        f".{prefix}.1.2.3.tmp": State.TEMPORARY,
        f".{prefix}.locator.json.1.2.tmp": State.TEMPORARY,
        ".tmpAb3dEf": State.TEMPORARY,
        **dict.fromkeys(["README.txt", "notes.locator.json", "folder", "link.safetensors"], State.FOREIGN),
    }
    assert by_name(store)[f"{prefix}.{OTHER_KEY}.safetensors"].key == f"{prefix}.{OTHER_KEY}"


def test_the_size_is_that_of_artifacts_strangers_and_orphans_included(root: Path) -> None:
    store = open_store(root)
    before = store.size().bytes
    assert before == sum(artifact.bytes for artifact in store.scan())
    put(root / "model.safetensors", b"x" * 1000)
    put(root / f"{make_pageweights.prefix_of(0)}.{OTHER_KEY}.safetensors", b"x" * 500, 0o400)
    put(root / f".{make_pageweights.prefix_of(0)}.1.2.3.tmp")
    put(root / "notes.txt")
    (root / "x.safetensors").symlink_to("nowhere")
    (root / "y.safetensors").symlink_to("model.safetensors")
    assert store.size().bytes == before + 2500
    assert store.budget() >= os.sysconf("SC_PAGE_SIZE")


def test_a_bad_locator_is_damaged_and_takes_the_prefix_with_it(root: Path) -> None:
    prefix = make_pageweights.prefix_of(0)
    put(root / f"{prefix}.{OTHER_KEY}.safetensors", mode=0o400)
    put(locator(root, 0), b"{")
    entries = by_name(open_store(root))
    page = entries[locator(root, 0).name]
    assert page.state is State.DAMAGED and page.reason is not None and "malformed-record" in page.reason
    assert page.bytes == 100 + entries[locator(root, 1).name].bytes
    assert f"{prefix}.{OTHER_KEY}.safetensors" not in entries
    store = open_store(root)
    with store.lease(page, Mode.EXCLUSIVE, Deadline.now()), pytest.raises(Refused):
        store.remove(page)
    with store.lease(page, Mode.EXCLUSIVE, Deadline.now()):
        aside = store.set_aside(page, "unreadable locator")
    assert not [path for path in root.iterdir() if path.name.startswith(prefix)]
    assert aside.files == 5  # locator, two artifacts, a receipt, the note


def test_a_copied_locator_is_damaged(root: Path) -> None:
    put(locator(root, 0), locator(root, 1).read_bytes())
    page = by_name(open_store(root))[locator(root, 0).name]
    assert page.state is State.DAMAGED and page.reason is not None and "locator-authority" in page.reason


def test_missing_files_make_a_page_incomplete_or_orphans(root: Path) -> None:
    next(root.glob(f"{make_pageweights.prefix_of(0)}.*.receipt.json")).unlink()
    locator(root, 1).unlink()
    entries = {artifact.key[:64]: artifact for artifact in open_store(root).scan()}
    incomplete = entries[make_pageweights.prefix_of(0)]
    assert incomplete.state is State.INCOMPLETE and incomplete.reason is not None
    assert "receipt" in incomplete.reason and incomplete.files == 2
    orphan = entries[make_pageweights.prefix_of(1)]
    assert (orphan.state, orphan.files, orphan.path.suffix) == (State.ORPHAN, 2, ".safetensors")
    assert orphan.last_used is None


def test_holders_are_told_by_mode(root: Path) -> None:
    lock = root / f".{make_pageweights.prefix_of(0)}.lock"
    with locked(lock) as one, locked(lock) as two:
        leases = by_name(open_store(root))[locator(root, 0).name].leases
        assert (leases.shared, leases.exclusive, leases.pids) == (2, 0, tuple(sorted((one, two))))


def test_a_path_means_the_page_it_belongs_to(root: Path) -> None:
    store, prefix = open_store(root), make_pageweights.prefix_of(0)
    page = by_name(store)[locator(root, 0).name]
    pair = [path for path in root.glob(f"{prefix}.*") if path.name.count(".") > 1]
    for path in (locator(root, 0), root / prefix, root / f".{prefix}.lock", *pair):
        assert store.look(named(store, path)) == page
    orphan = put(root / f"{prefix}.{OTHER_KEY}.safetensors", mode=0o400)
    found = store.look(named(store, orphan))
    assert found is not None and found.state is State.ORPHAN
    stranger = put(root / "notes.txt")
    found = store.look(named(store, stranger))
    assert found is not None and found.state is State.FOREIGN
    assert store.look(named(store, root / ("f" * 64))) is None
    match = recognise(root)
    assert match is not None and match.key is None


def test_place_counts_before_content(root: Path) -> None:
    store = open_store(root)
    page = by_name(store)[locator(root, 0).name]
    with store.lease(page, Mode.EXCLUSIVE, Deadline.now()):
        aside = store.set_aside(page, "for the test")
    # The folder holds a cache's names, but it lies in a root's quarantine.
    for path in (aside.path, aside.path / "hwctl-note.json"):
        assert store.look(named(store, path)) == aside
    assert recognise(root / "quarantine") is not None
    assert by_name(store)[aside.path.name] == aside


def test_what_holds_no_name_of_a_cache_is_none(tmp_path: Path) -> None:
    put(tmp_path / "model.safetensors")
    (tmp_path / "quarantine").mkdir()
    (tmp_path / "link").symlink_to(tmp_path)
    for path in (tmp_path, tmp_path / "model.safetensors", tmp_path / "absent", tmp_path / "link"):
        assert recognise(path) is None


def test_the_quarantine_lists_what_is_not_its_own_as_foreign(root: Path) -> None:
    (root / "quarantine").mkdir(mode=0o700)
    put(root / "quarantine" / "old.safetensors")
    artifact = by_name(open_store(root))["old.safetensors"]
    assert (artifact.state, artifact.key) == (State.FOREIGN, "quarantine/old.safetensors")
    with pytest.raises(Refused):
        open_store(root).remove(artifact)


def test_restoring_over_an_orphan_of_the_same_key_moves_nothing(root: Path) -> None:
    store = open_store(root)
    page = by_name(store)[locator(root, 0).name]
    with store.lease(page, Mode.EXCLUSIVE, Deadline.now()):
        aside = store.set_aside(page, "for the test")
    receipt = next(aside.path.glob("*.receipt.json"))
    put(root / receipt.name, b"another")
    before = sorted(path.name for path in aside.path.iterdir())
    with store.lease(aside, Mode.EXCLUSIVE, Deadline.now()), pytest.raises(Refused):
        store.restore(aside)
    assert sorted(path.name for path in aside.path.iterdir()) == before
    assert not list(root.glob(f"{page.key}*.safetensors"))


@pytest.mark.needs_root
@pytest.mark.parametrize("stuck", ["*.receipt.json", "*.safetensors"])
def test_a_page_is_set_aside_and_restored_whole_or_not_at_all(root: Path, stuck: str) -> None:
    """A file that something is mounted on cannot be renamed."""
    if (reason := private_mounts.why_not()) is not None:
        pytest.skip(reason)
    store = open_store(root)
    page = by_name(store)[locator(root, 0).name]
    before = sorted(path.name for path in root.glob(f"{page.key}*"))
    with store.lease(page, Mode.EXCLUSIVE, Deadline.now()):
        with mounted_on(next(root.glob(f"{page.key}{stuck}"))), pytest.raises(IoFailed):
            store.set_aside(page, "for the test")
        assert sorted(path.name for path in root.glob(f"{page.key}*")) == before
        assert list((root / "quarantine").iterdir()) == []
        assert by_name(store)[page.path.name].state is State.READY
        aside = store.set_aside(page, "for the test")
        with mounted_on(next(aside.path.glob("*.locator.json"))), pytest.raises(IoFailed):
            store.restore(aside)
        assert list(root.glob(f"{page.key}*")) == []
        assert by_name(store)[aside.path.name].files == len(before) + 1
        assert store.restore(aside).state is State.READY


def test_what_stands_in_place_of_the_note_keeps_no_page_in_quarantine(root: Path) -> None:
    store = open_store(root)
    page = by_name(store)[locator(root, 0).name]
    with store.lease(page, Mode.EXCLUSIVE, Deadline.now()):
        aside = store.set_aside(page, "for the test")
        (aside.path / "hwctl-note.json").unlink()
        (aside.path / "hwctl-note.json").mkdir()
        assert store.restore(aside).state is State.READY


def test_a_note_is_for_people_and_its_loss_hides_nothing(root: Path) -> None:
    store = open_store(root)
    page = by_name(store)[locator(root, 0).name]
    with store.lease(page, Mode.EXCLUSIVE, Deadline.now()):
        aside = store.set_aside(page, "bad RAM")
    note = json.loads((aside.path / "hwctl-note.json").read_bytes())
    assert note["reason"] == "bad RAM" and abs(note["time_ns"] - time.time_ns()) < 60 * 10**9
    put(aside.path / "hwctl-note.json", b"\xff")
    found = by_name(store)[aside.path.name]
    assert (found.state, found.reason) == (State.QUARANTINED, None)


def test_the_librarys_temporaries_are_judged_by_age(root: Path) -> None:
    store = open_store(root)
    temporary = put(root / ".tmpAb3dEf")
    artifact = by_name(store)[temporary.name]
    assert store.stale(artifact, StalePolicy()).death is Death.UNPROVEN
    old = time.time_ns() - 2 * 3600 * 10**9
    os.utime(temporary, ns=(old, old))
    # Somebody set the mtime back, but the inode says when: only both together count.
    artifact = by_name(store)[temporary.name]
    assert store.stale(artifact, StalePolicy()).death is Death.UNPROVEN
    time.sleep(0.05)
    assert store.stale(artifact, StalePolicy(older_than=10**7)).death is Death.PROVEN
    put(temporary, b"grown" * 100)
    assert store.stale(artifact, StalePolicy(older_than=1)).death is Death.LIVE


def test_a_bad_page_is_not_garbage(root: Path) -> None:
    put(locator(root, 0), b"{")
    put(root / "README.txt")
    for artifact in open_store(root).scan():
        assert open_store(root).stale(artifact, StalePolicy()).death is Death.NOT_STALE


def test_a_check_without_a_lock_file_makes_none_and_says_so(root: Path) -> None:
    store = open_store(root)
    lock = root / layout.lock_name(make_pageweights.prefix_of(0))
    lock.unlink()
    page = by_name(store)[locator(root, 0).name]
    report = store.check(page, Level.FULL, CheckOptions())
    assert report.valid and "unleased" in report.warnings[0]
    assert not lock.exists()
    page = by_name(store)[locator(root, 1).name]
    assert store.check(page, Level.FULL, CheckOptions()).warnings == ()
    limited = store.check(page, Level.FULL, CheckOptions(rate=1 << 40))
    assert limited.valid and "unleased" in limited.warnings[0]


def test_under_a_rate_a_held_page_is_read_without_its_lock(root: Path) -> None:
    store = open_store(root)
    page = by_name(store)[locator(root, 0).name]
    with locked(root / layout.lock_name(page.key), "exclusive"):
        assert store.check(page, Level.FULL, CheckOptions(rate=1 << 40)).valid


def test_entries_that_are_no_pages_are_told_apart(root: Path) -> None:
    store, prefix = open_store(root), make_pageweights.prefix_of(0)
    put(root / f"{prefix}.{OTHER_KEY}.safetensors", mode=0o400)
    put(root / f".{prefix}.1.2.3.tmp")
    put(root / "notes.txt")
    entries = by_name(store)
    orphan = entries[f"{prefix}.{OTHER_KEY}.safetensors"]
    assert [f.code for f in store.check(orphan, Level.FULL, CheckOptions()).findings] == ["orphan"]
    temporary = entries[f".{prefix}.1.2.3.tmp"]
    assert [f.code for f in store.check(temporary, Level.FULL, CheckOptions()).findings] == ["temporary"]
    with pytest.raises(NotFound):
        store.check(entries["notes.txt"], Level.FULL, CheckOptions())


def test_a_root_that_is_absent_or_a_link(root: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(root)
    with pytest.raises(Refused):
        list(open_store(tmp_path / "link").scan())
    with pytest.raises(NotFound):
        list(open_store(tmp_path / "absent").scan())


def test_documents_are_shown_as_they_lie_there(root: Path) -> None:
    store = open_store(root)
    page = by_name(store)[locator(root, 0).name]
    shown = store.documents(page)
    assert set(shown) == {locator(root, 0).name, next(root.glob(f"{page.key}.*.receipt.json")).name}
    assert shown[locator(root, 0).name] == locator(root, 0).read_bytes()


@pytest.mark.parametrize("hidden", ["*.receipt.json", "*.locator.json"])
def test_a_miss_is_looked_at_once_more(
    hidden: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eviction and republication may pass between two opens."""
    store, prefix = open_store(root), make_pageweights.prefix_of(0)
    page = by_name(store)[locator(root, 0).name]
    real, looks = verification.check_page, []

    def check_page(*args: Any, **more: Any) -> Any:
        looks.append(1)
        if len(looks) > 1:
            return real(*args, **more)
        file = next(root.glob(f"{prefix}{hidden}"))
        file.rename(tmp_path / "aside")
        try:
            return real(*args, **more)
        finally:
            (tmp_path / "aside").rename(file)

    monkeypatch.setattr(verification, "check_page", check_page)
    assert store.check(page, Level.FULL, CheckOptions()).valid and len(looks) == 2


def test_without_a_lock_damage_is_believed_only_of_the_current_locator(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(root)
    (root / layout.lock_name(make_pageweights.prefix_of(0))).unlink()
    page = by_name(store)[locator(root, 0).name]
    sound = locator(root, 0).read_bytes()
    locator(root, 0).unlink()
    put(locator(root, 0), b"{")
    real, looks = verification.check_page, []

    def check_page(*args: Any, **more: Any) -> Any:
        looks.append(1)
        found = real(*args, **more)
        if len(looks) == 1:
            put(root / "new", sound).rename(locator(root, 0))
        return found

    monkeypatch.setattr(verification, "check_page", check_page)
    assert store.check(page, Level.FULL, CheckOptions()).valid and len(looks) == 2
    put(locator(root, 0), b"{")
    assert not store.check(page, Level.FULL, CheckOptions()).valid and len(looks) == 3


def test_a_check_ends_at_its_deadline_without_a_verdict(root: Path) -> None:
    store = open_store(root)
    page = by_name(store)[locator(root, 0).name]
    with pytest.raises(TimedOut):
        store.check(page, Level.FULL, CheckOptions(deadline=Deadline.now()))
    told: list[int] = []
    store.check(page, Level.FULL, CheckOptions(advance=told.append))
    assert sum(told) == page.bytes
