"""The store as the verbs see it: what is where, what is dead, and moving aside and back."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path

import make_hostweights
import nth_call
import pytest
from holders import locked

from hwctl.errors import Busy, HwctlError, IoFailed, NoRoom, NotFound, Refused
from hwctl.fs.deadline import Deadline
from hwctl.fs.lock_table import Mode
from hwctl.fs.locks import Held
from hwctl.stores.base import Artifact, CheckOptions, Death, Level, StalePolicy, State
from hwctl.stores.hostweights import leases, moves
from hwctl.stores.hostweights.locating import recognise
from hwctl.stores.hostweights.store import HostWeightStore, open_store
from hwctl.stores.hostweights.store_root import StoreRoot, look_at_root

KEY = make_hostweights.key_of(0)
HEX = "f" * 32


@pytest.fixture
def store(tmp_path: Path) -> HostWeightStore:
    return open_store(make_hostweights.make_store(tmp_path / "store"))


def put(store: HostWeightStore, number: int = 0) -> Path:
    return make_hostweights.make_artifact(store.root, number)


def rows(store: HostWeightStore) -> dict[str, State]:
    return {str(row.path.relative_to(store.root)): row.state for row in store.scan()}


def the(store: HostWeightStore) -> Artifact:
    (artifact,) = store.scan()
    return artifact


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_every_kind_of_entry_has_its_state(store: HostWeightStore) -> None:
    root, keys = store.root, [make_hostweights.key_of(number) for number in range(9)]
    put(store, 0)
    (root / "deny" / f"{keys[1]}.json").write_bytes(b'{"reason":"checksum_mismatch"}')
    put(store, 1)
    put(store, 2).chmod(0o1555)
    incomplete = put(store, 3)
    incomplete.chmod(0o700)
    (incomplete / "READY.json").unlink()
    incomplete.chmod(0o555)
    (root / "artifacts" / keys[4]).write_text("a file")
    put(store, 5).chmod(0o755)
    (root / "artifacts" / f"{keys[6]}.bak").mkdir()
    (root / "deny" / f"{keys[7]}.json").write_bytes(b"")
    (root / "deny" / "note").write_bytes(b"")
    make_hostweights.make_staging(root, 8)
    (root / "tmp" / "x").mkdir()
    quarantined = f"{keys[8]}.validation_failure.{HEX}"
    (root / "quarantine" / quarantined).mkdir(mode=0o555)
    (root / ".domain.json.abc.tmp").write_bytes(b"")
    (root / "README").write_text("hello")
    (root / "source-digests-v1").mkdir()
    found = rows(store)
    (staging,) = [name for name in found if name.startswith(f"tmp/{keys[8]}")]
    assert found == {
        f"artifacts/{keys[0]}": State.READY,
        f"artifacts/{keys[1]}": State.DENIED,
        f"artifacts/{keys[2]}": State.DENIED,
        f"artifacts/{keys[3]}": State.INCOMPLETE,
        f"artifacts/{keys[4]}": State.DAMAGED,
        f"artifacts/{keys[5]}": State.DAMAGED,
        f"artifacts/{keys[6]}.bak": State.FOREIGN,
        f"deny/{keys[7]}.json": State.ORPHAN,
        "deny/note": State.FOREIGN,
        staging: State.STAGING,
        "tmp/x": State.FOREIGN,
        f"quarantine/{quarantined}": State.QUARANTINED,
        ".domain.json.abc.tmp": State.TEMPORARY,
        "README": State.FOREIGN,
    }
    by_state = {row.state: row for row in store.scan()}
    assert by_state[State.QUARANTINED].reason == "validation_failure"
    assert {row.reason for row in store.scan() if row.state is State.DENIED} == {
        "checksum_mismatch",
        "marked as invalid (sticky bit)",
    }
    assert all(row.reason for row in store.scan() if row.state not in (State.READY, State.STAGING))


def test_what_only_another_user_may_enter_is_a_row(
    store: HostWeightStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INS-03. Root may enter everything, so the refusal is made by hand."""
    from hwctl.stores.hostweights import survey

    put(store, 0)
    put(store, 1)
    real = survey.usage

    def refused(parent: int, name: str) -> object:
        if name == KEY:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return real(parent, name)

    monkeypatch.setattr(survey, "usage", refused)
    states = {row.key: row.state for row in store.scan()}
    assert states == {KEY: State.UNREADABLE, make_hostweights.key_of(1): State.READY}


def test_paths_are_recognised_by_place(store: HostWeightStore) -> None:
    root = store.root
    match = recognise(root)
    assert match is not None and match.key is None and match.path == root
    for folder, name, key in (
        ("artifacts", KEY, KEY),
        ("artifacts", "junk", "junk"),
        ("tmp", f"{KEY}.5.{HEX}", KEY),
        ("quarantine", f"{KEY}.operator.{HEX}", KEY),
        ("deny", f"{KEY}.json", KEY),
        (".", ".domain.json.x.tmp", ".domain.json.x.tmp"),
    ):
        path = (root / folder / name).absolute()
        match = recognise(path)
        assert match is not None and (match.root, match.path, match.key) == (root, path, key)
    for path in (root.parent, root / "artifacts", root / "locks", root / "artifacts" / KEY / "READY.json"):
        assert recognise(path) is None


@pytest.mark.parametrize("missing", ["domain.json", "domain-policy.json", "tmp", "deny", "locks"])
def test_a_store_with_one_marker_missing_is_still_one(store: HostWeightStore, missing: str) -> None:
    path = store.root / missing
    if path.is_dir():
        for child in path.iterdir():
            child.unlink()
        path.rmdir()
    else:
        path.unlink()
    assert recognise(store.root) is not None
    put_path = make_hostweights.make_artifact(store.root, 0, locks=False)
    assert [row.path for row in open_store(store.root).scan()] == [put_path]


@pytest.mark.parametrize("folder", ["tmp", "quarantine", "deny", "locks"])
def test_a_file_in_place_of_a_folder_is_a_finding_of_every_artifact(
    store: HostWeightStore, folder: str
) -> None:
    path = put(store)
    shutil.rmtree(store.root / folder)
    (store.root / folder).write_text("no folder")
    store = open_store(store.root)
    artifact = the(store)
    assert (artifact.path, artifact.state) == (path, State.READY)
    assert store.look(artifact) == artifact
    assert store.stale(artifact, StalePolicy()).death is Death.NOT_STALE
    with store.lease(artifact, Mode.SHARED, Deadline.now()) as lease:
        assert bool(lease.locks) is (folder != "locks")
    report = store.check(artifact, Level.FULL, CheckOptions())
    assert [(found.code, found.file) for found in report.findings] == [
        ("not-a-directory", str(store.root / folder))
    ]
    store.mark_used(artifact)


@pytest.mark.parametrize("spoil", [Path.touch, Path.exists])
def test_without_a_folder_of_markers_there_is_none_to_lift(
    store: HostWeightStore, spoil: Callable[[Path], object]
) -> None:
    put(store)
    artifact = the(store)
    (store.root / "deny").rmdir()
    spoil(store.root / "deny")
    with store.lease(artifact, Mode.EXCLUSIVE, Deadline.now()):
        aside = store.set_aside(artifact, "why")
        assert store.restore(aside).state is State.READY
        assert store.remove(artifact).files == 3


def test_times_come_from_manifest_marker_and_lock(store: HostWeightStore) -> None:
    path = put(store)
    os.utime(path / "manifest.json", ns=(1, 10**18))
    os.utime(path / "READY.json", ns=(1, 2 * 10**18))
    lock = store.root / "locks" / f"{KEY}.artifact.lock"
    os.utime(lock, ns=(1, 10**17))
    assert (the(store).created, the(store).last_used) == (10**18, 2 * 10**18)
    os.utime(lock, ns=(1, 3 * 10**18))
    assert the(store).last_used == 3 * 10**18
    with store.lease(the(store), Mode.SHARED, Deadline.now()):
        pass
    assert (the(store).last_used or 0) not in (0, 3 * 10**18)


def test_exclusive_takes_build_then_artifact(store: HostWeightStore) -> None:
    put(store)
    artifact = the(store)
    with store.lease(artifact, Mode.EXCLUSIVE, Deadline.now()) as lease:
        assert [Path(held.path).name for held in lease.locks] == [f"{KEY}.build.lock", f"{KEY}.artifact.lock"]
        assert all(held.mode is Mode.EXCLUSIVE for held in lease.locks)
    held = leases.building(store._root, KEY, Deadline.now())
    with held, pytest.raises(Busy) as busy:
        store.lease(artifact, Mode.EXCLUSIVE, Deadline.now())
    assert busy.value.details["code"] == "active_build_timeout"
    # The artifact lock was not kept: nobody waits for a build lock with it in hand.
    store.lease(artifact, Mode.EXCLUSIVE, Deadline.now()).release()


def test_setting_aside_passes_through_the_modes_of_the_format(
    store: HostWeightStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = put(store)
    (store.root / "deny" / f"{KEY}.json").write_bytes(b"")
    seen: list[int] = []
    real = os.fchmod

    def watched(fd: int, to: int) -> None:
        real(fd, to)
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            seen.append(to)

    monkeypatch.setattr(os, "fchmod", watched)
    artifact = the(store)
    with store.lease(artifact, Mode.EXCLUSIVE, Deadline.now()):
        aside = store.set_aside(artifact, "why")
    assert seen == [0o1555, 0o1755, 0o1555, 0o555]
    assert not path.exists() and mode(aside.path) == 0o555
    assert aside.path.name.startswith(f"{KEY}.operator.")
    assert os.listdir(store.root / "deny") == []
    note = json.loads((store.root / "hwctl/notes" / f"{aside.path.name}.json").read_bytes())
    assert note["reason"] == "why" and note["uid"] == os.geteuid()
    assert "note" in store.documents(aside)


@pytest.mark.parametrize("after", ["restore", "remove"])
def test_without_a_place_for_the_note_all_else_is_done(store: HostWeightStore, after: str) -> None:
    path = put(store)
    (store.root / "deny" / f"{KEY}.json").write_bytes(b"")
    (store.root / "hwctl").write_text("somebody's file")
    artifact = the(store)
    with store.lease(artifact, Mode.EXCLUSIVE, Deadline.now()):
        aside = store.set_aside(artifact, "why")
    assert rows(store) == {f"quarantine/{aside.path.name}": State.QUARANTINED}
    with store.lease(aside, Mode.EXCLUSIVE, Deadline.now()):
        if after == "restore":
            assert (store.restore(aside).state, path.exists()) == (State.READY, True)
        else:
            store.remove(aside)
            assert rows(store) == {}


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_when_the_rename_fails_it_is_denied_where_it_is(
    store: HostWeightStore, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """QUA-03."""

    def full(*_args: object) -> None:
        raise OSError(number, os.strerror(number))

    path = put(store)
    artifact = the(store)
    monkeypatch.setattr(moves, "rename_noreplace", full)
    with store.lease(artifact, Mode.EXCLUSIVE, Deadline.now()), pytest.raises(Exception) as failed:
        store.set_aside(artifact, "why")
    assert isinstance(failed.value, NoRoom) is (number == errno.ENOSPC)
    assert mode(path) == 0o1555 and the(store).state is State.DENIED


def test_a_denial_without_room_for_a_marker_is_the_sticky_bit(
    store: HostWeightStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hwctl.stores.hostweights import deny

    def full(*_args: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = put(store)
    monkeypatch.setattr(deny, "write_marker", full)
    assert store.deny(the(store), "why")
    assert mode(path) == 0o1555
    denied = the(store)
    assert denied.state is State.DENIED
    with store.lease(denied, Mode.EXCLUSIVE, Deadline.now()):
        assert store.restore(denied).state is State.READY
    assert mode(path) == 0o555


def test_a_denied_artifact_is_checked_as_it_would_stand(store: HostWeightStore) -> None:
    put(store).chmod(0o1555)
    (store.root / "deny" / f"{KEY}.json").write_bytes(b"")
    denied = the(store)
    assert [f.code for f in store.check(denied, Level.FULL, CheckOptions()).findings] == [
        "denied",
        "invalidated",
    ]
    assert store.check(denied, Level.FULL, CheckOptions(restoring=True)).valid


def test_only_artifacts_are_set_aside_and_only_the_same_one(store: HostWeightStore) -> None:
    staging = make_hostweights.make_staging(store.root, 0)
    (row,) = store.scan()
    with pytest.raises(Refused):
        store.set_aside(row, "why")
    assert staging.exists()
    put(store, 1)
    artifact = next(entry for entry in store.scan() if entry.state is State.READY)
    artifact.path.chmod(0o700)
    artifact.path.rename(store.root / "tmp" / "elsewhere")
    with pytest.raises(NotFound):
        store.set_aside(artifact, "why")
    put(store, 1)
    with pytest.raises(Refused):
        store.remove(artifact)


def test_removal_leaves_other_quarantine_and_lock_files(store: HostWeightStore) -> None:
    put(store)
    (store.root / "deny" / f"{KEY}.json").write_bytes(b"")
    kept = store.root / "quarantine" / f"{KEY}.validation_failure.{HEX}"
    kept.mkdir(mode=0o555)
    artifact = next(row for row in store.scan() if row.state is State.DENIED)
    with store.lease(artifact, Mode.EXCLUSIVE, Deadline.now()):
        removed = store.remove(artifact)
    assert removed.files == 3 and removed.bytes_freed > 0
    assert os.listdir(store.root / "quarantine") == [kept.name]
    assert os.listdir(store.root / "deny") == os.listdir(store.root / "artifacts") == []
    assert len(os.listdir(store.root / "locks")) == 3


@pytest.mark.needs_root
def test_only_the_owner_may_change_a_store(store: HostWeightStore) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    put(store)
    for path in [store.root, *store.root.rglob("*")]:
        os.chown(path, 12345, -1)
    theirs = open_store(store.root)
    artifact = the(theirs)
    assert theirs.actor(artifact) == 12345
    assert theirs.check(artifact, Level.FULL, CheckOptions()).valid
    for act in (
        lambda: theirs.lease(artifact, Mode.EXCLUSIVE, Deadline.now()),
        lambda: theirs.set_aside(artifact, "why"),
        lambda: theirs.restore(artifact),
        lambda: theirs.remove(artifact),
        lambda: theirs.deny(artifact, "why"),
    ):
        with pytest.raises(Refused, match="12345"):
            act()


def test_a_store_on_a_read_only_mount_is_looked_at_and_verified(
    store: HostWeightStore, tmp_path: Path
) -> None:
    """vLLM-Omni can neither open nor look up in one."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root can mount")
    put(store)
    view = tmp_path / "view"
    view.mkdir()
    bind = ["mount", "--bind", str(store.root), str(view)]
    again = ["mount", "-o", "remount,bind,ro", str(view)]
    if any(subprocess.run(words, capture_output=True).returncode for words in (bind, again)):
        pytest.skip("mounting is not allowed here")
    try:
        seen = open_store(view)
        (artifact,) = seen.scan()
        assert artifact.state is State.READY
        with seen.lease(artifact, Mode.SHARED, Deadline.now()) as lease:
            assert lease.locks
            report = seen.check(artifact, Level.FULL, CheckOptions())
        assert report.valid and report.warnings == ()
    finally:
        subprocess.run(["umount", "-l", str(view)], check=True)


@pytest.mark.needs_root
def test_a_stranger_is_told_whose_store_it_is() -> None:
    """LEA-04."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    # Not below tmp_path, which only its owner may enter.
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        root = make_hostweights.make_store(Path(folder) / "store")
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.setuid(65534)
            said = []
            for path in (root, root / "artifacts" / KEY):
                try:
                    recognise(path)
                except IoFailed as exc:
                    said.append(exc.message)
            os.write(writing, "\n".join(said).encode())
            os._exit(0)
        os.waitpid(pid, 0)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            lines = pipe.read().splitlines()
    assert len(lines) == 2
    assert all(f"{root} belongs to uid 0, the caller is uid 65534" in line for line in lines)


def test_a_scan_of_many_stays_linear(tmp_path: Path) -> None:
    """Counted in opened directories, since time is not to be trusted on a busy machine."""
    store = open_store(make_hostweights.make_store(tmp_path / "store"))
    for number in range(200):
        make_hostweights.make_artifact(store.root, number, 1)
    opened: list[str] = []
    real = os.open
    try:
        os.open = lambda *args, **options: opened.append("x") or real(*args, **options)  # type: ignore[assignment,func-returns-value]
        assert len(list(store.scan())) == 200
    finally:
        os.open = real
    assert len(opened) <= 8 * 200


def test_the_root_fixture_is_an_empty_store(root: StoreRoot) -> None:
    store = HostWeightStore(root)
    assert list(store.scan()) == [] and store.budget() is None
    assert store.size().bytes == sum(path.stat().st_size for path in root.path.glob("*.json"))


@pytest.mark.parametrize("mode", [Mode.SHARED, Mode.EXCLUSIVE])
def test_a_lease_that_fails_half_way_holds_nothing(store: HostWeightStore, mode: Mode) -> None:
    """A call that fails anywhere in between: the error is one of ours, and both locks are free again."""
    folder = put(store)
    artifact, n, met = the(store), 0, ""
    with locked(folder, "exclusive") if mode is Mode.SHARED else nullcontext():
        while met is not None:
            n += 1
            for name in os.listdir(store.root / "locks"):
                (store.root / "locks" / name).unlink()

            def take() -> None:
                with suppress(HwctlError):
                    store.lease(artifact, mode, Deadline.now(), create=True).release()

            met = nth_call.failing_at(n, errno.EACCES, take)
            leases.building(store._root, KEY, Deadline.now()).release()
            leases.replacing(store._root, KEY, Deadline.now()).release()
    assert n > 5


def test_a_use_while_the_lock_file_is_made_counts(
    store: HostWeightStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody makes the missing file and uses it, between the look for it and the making."""
    put(store)
    root = look_at_root(store.root)
    for path in (store.root / "locks").iterdir():
        path.unlink()
    take = leases._take

    def late(*words: object, **options: bool) -> Held | None:
        held = take(*words, **options)  # type: ignore[arg-type]
        if held is None:
            subprocess.run(["touch", leases.lock_path(root, KEY)], check=True)
        return held

    monkeypatch.setattr(leases, "_take", late)
    leases.exclusive(root, KEY, Deadline.now()).release()
    assert leases.lock_path(root, KEY).stat().st_mtime_ns > 0
    leases.lock_path(root, KEY).unlink()
    monkeypatch.undo()
    leases.exclusive(root, KEY, Deadline.now()).release()
    assert leases.lock_path(root, KEY).stat().st_mtime_ns == 0
