"""The steps of the Store protocol, the same for every family: what the verbs may rely on."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import holders
import pytest
from kits import Kit

from hwctl.errors import Busy, HwctlError, Refused
from hwctl.fs.deadline import Deadline
from hwctl.fs.lock_table import Mode
from hwctl.stores.base import Artifact, CheckOptions, Death, Level, StalePolicy, State, Store

NOW = Deadline.now


def entries(store: Store) -> dict[str, list[Artifact]]:
    found: dict[str, list[Artifact]] = {}
    for artifact in store.scan():
        found.setdefault(artifact.key, []).append(artifact)
    return found


def the(store: Store, key: str, state: State) -> Artifact:
    (artifact,) = [entry for entry in store.scan() if entry.key == key and entry.state is state]
    return artifact


def tree(root: Path) -> dict[str, tuple[int, int, int, int]]:
    """Everything below a root as stat sees it, access times aside."""
    found = {}
    for path in [root, *root.rglob("*")]:
        st = path.lstat()
        found[str(path.relative_to(root))] = (st.st_ino, st.st_mode, st.st_size, st.st_mtime_ns)
    return found


def allocated(root: Path) -> int:
    """st_blocks * 512 of everything below a root, each inode once."""
    seen = {(st.st_dev, st.st_ino): st.st_blocks * 512 for st in map(Path.lstat, [root, *root.rglob("*")])}
    return sum(seen.values())


def test_scan_tells_every_entry_in_order_and_touches_nothing(kit: Kit) -> None:
    for number in (2, 0, 1):
        kit.artifact(number)
    kit.leftover(3)
    before = tree(kit.root)
    store = kit.open()
    seen = list(store.scan())
    assert tree(kit.root) == before
    assert [artifact.key for artifact in seen] == sorted(artifact.key for artifact in seen)
    for number in range(3):
        ready = the(store, kit.key(number), State.READY)
        assert ready.inode is not None and ready.bytes > 0 and ready.files > 0
        assert ready.owner_uid == os.geteuid() == store.actor(ready)
        assert ready.leases.shared == ready.leases.exclusive == 0
        assert ready.store == store.root == kit.root
    assert all(artifact.key != kit.key(3) or artifact.state is not State.READY for artifact in seen)


def test_look_sees_the_entry_as_it_is_now(kit: Kit) -> None:
    kit.artifact(0)
    store = kit.open()
    artifact = the(store, kit.key(0), State.READY)
    now = store.look(artifact)
    assert now is not None
    assert (now.inode, now.state, now.path) == (artifact.inode, State.READY, artifact.path)
    with store.lease(artifact, Mode.EXCLUSIVE, NOW()):
        store.remove(artifact)
    assert store.look(artifact) is None


def test_check_accepts_a_sound_artifact_and_names_a_flipped_byte(kit: Kit) -> None:
    path = kit.artifact(0)
    store = kit.open()
    artifact = the(store, kit.key(0), State.READY)
    for level in Level:
        assert store.check(artifact, level, CheckOptions()).findings == ()
    payload = kit.payload(path)
    mode = stat.S_IMODE(payload.stat().st_mode)
    payload.chmod(0o600)
    with payload.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        # 0x80 is no code of an int8 store, and differs from what every kit writes last.
        file.write(b"\x80")
    payload.chmod(mode)
    report = store.check(artifact, Level.FULL, CheckOptions())
    assert not report.valid and report.checked_bytes > 0


def test_a_shared_lease_is_shared_and_keeps_the_exclusive_one_out(kit: Kit) -> None:
    kit.artifact(0)
    store = kit.open()
    artifact = the(store, kit.key(0), State.READY)
    with holders.locked(kit.lock(0)) as pid:
        with store.lease(artifact, Mode.SHARED, NOW()) as lease:
            assert lease.locks
        with pytest.raises(Busy) as busy:
            store.lease(artifact, Mode.EXCLUSIVE, NOW())
        held = busy.value.details["holders"]
        assert isinstance(held, list) and held[0]["pid"] == pid
        seen = the(store, kit.key(0), State.READY)
        assert (seen.leases.shared, seen.leases.exclusive) == (1, 0)
        assert seen.leases.pids == (pid,)
    store.lease(artifact, Mode.EXCLUSIVE, NOW()).release()


def test_a_wait_for_a_lease_is_bounded(kit: Kit) -> None:
    kit.artifact(0)
    store = kit.open()
    artifact = the(store, kit.key(0), State.READY)
    with holders.locked(kit.lock(0)), pytest.raises(Busy):
        store.lease(artifact, Mode.EXCLUSIVE, Deadline.after(0.2))


def test_an_exclusive_lease_keeps_readers_out(kit: Kit) -> None:
    kit.artifact(0)
    store = kit.open()
    artifact = the(store, kit.key(0), State.READY)
    with holders.locked(kit.lock(0), "exclusive"), pytest.raises(Busy):
        store.lease(artifact, Mode.SHARED, NOW())


def test_what_a_dead_producer_left_is_proven_dead_also_under_the_own_lease(kit: Kit) -> None:
    path = kit.leftover(0)
    store = kit.open()
    (artifact,) = [entry for entry in store.scan() if entry.path == path]
    verdict = store.stale(artifact, StalePolicy())
    assert verdict.death is Death.PROVEN and verdict.evidence
    with store.lease(artifact, Mode.EXCLUSIVE, NOW()):
        assert store.stale(artifact, StalePolicy()).death is Death.PROVEN


def test_what_a_living_producer_makes_is_live(kit: Kit) -> None:
    with kit.at_work(0) as path:
        store = kit.open()
        (artifact,) = [entry for entry in store.scan() if entry.path == path]
        verdict = store.stale(artifact, StalePolicy())
        assert verdict.death is Death.LIVE and verdict.evidence
        with pytest.raises(Busy):
            store.lease(artifact, Mode.EXCLUSIVE, NOW())


def test_a_ready_artifact_is_not_stale(kit: Kit) -> None:
    kit.artifact(0)
    store = kit.open()
    artifact = the(store, kit.key(0), State.READY)
    assert store.stale(artifact, StalePolicy()).death is Death.NOT_STALE


def test_removal_measures_what_it_frees_and_leaves_the_rest_alone(kit: Kit) -> None:
    kit.artifact(0)
    kit.artifact(1)
    store = kit.open()
    artifact = the(store, kit.key(0), State.READY)
    before = allocated(kit.root)
    with store.lease(artifact, Mode.EXCLUSIVE, NOW()):
        removed = store.remove(artifact)
    assert removed.files > 0 and removed.still_mapped == 0
    assert removed.size >= artifact.bytes  # the small documents too, in every family
    freed = before - allocated(kit.root)
    # A folder that shrinks gives blocks back as well on some file systems; nobody promises those.
    assert 0 <= freed - removed.bytes_freed <= 8192
    assert store.look(artifact) is None
    other = the(store, kit.key(1), State.READY)
    assert store.check(other, Level.FULL, CheckOptions()).valid
    assert kit.lock(1).exists()


def test_what_is_still_mapped_is_not_called_freed(kit: Kit) -> None:
    """EVI-03."""
    path = kit.artifact(0)
    store = kit.open()
    artifact = the(store, kit.key(0), State.READY)
    payload = kit.payload(path)
    size = payload.stat().st_blocks * 512
    with holders.mapped(payload), store.lease(artifact, Mode.EXCLUSIVE, NOW()):
        removed = store.remove(artifact)
    assert removed.still_mapped == size


def test_a_lock_file_is_never_removed(kit: Kit) -> None:
    path = kit.artifact(0)
    if kit.lock(0) == path:
        return  # kt-int8 locks the tree itself, so there is no such file
    store = kit.open()
    artifact = the(store, kit.key(0), State.READY)
    inode = kit.lock(0).stat().st_ino
    with store.lease(artifact, Mode.EXCLUSIVE, NOW()):
        store.remove(artifact)
    assert kit.lock(0).stat().st_ino == inode


def test_setting_aside_keeps_every_byte_and_the_reason(kit: Kit) -> None:
    path = kit.artifact(0)
    data = kit.payload(path).read_bytes()
    store = kit.open()
    artifact = the(store, kit.key(0), State.READY)
    with store.lease(artifact, Mode.EXCLUSIVE, NOW()):
        aside = store.set_aside(artifact, "bad RAM on n17")
    assert aside.state is State.QUARANTINED and aside.key == kit.key(0)
    assert store.look(artifact) is None
    listed = the(store, kit.key(0), State.QUARANTINED)
    assert listed.path == aside.path and listed.reason == "bad RAM on n17"
    assert kit.payload(aside.path).read_bytes() == data


def test_one_key_set_aside_twice_keeps_both(kit: Kit) -> None:
    """QUA-02."""
    store = kit.open()
    for _ in range(2):
        kit.artifact(0)
        artifact = the(store, kit.key(0), State.READY)
        with store.lease(artifact, Mode.EXCLUSIVE, NOW()):
            store.set_aside(artifact, "again")
    assert [entry.state for entry in entries(store)[kit.key(0)]] == [State.QUARANTINED] * 2


def test_restoring_brings_a_valid_artifact_back(kit: Kit) -> None:
    kit.artifact(0)
    store = kit.open()
    artifact = the(store, kit.key(0), State.READY)
    with store.lease(artifact, Mode.EXCLUSIVE, NOW()):
        aside = store.set_aside(artifact, "a guess")
    report = store.check(aside, Level.FULL, CheckOptions(restoring=True))
    assert report.findings == ()
    with store.lease(aside, Mode.EXCLUSIVE, NOW()):
        back = store.restore(aside)
    assert (back.state, back.path) == (State.READY, artifact.path)
    assert store.check(back, Level.FULL, CheckOptions()).findings == ()
    assert store.look(aside) is None
    assert len(entries(store)[kit.key(0)]) == 1


def test_restoring_never_goes_over_an_existing_artifact(kit: Kit) -> None:
    kit.artifact(0)
    store = kit.open()
    artifact = the(store, kit.key(0), State.READY)
    with store.lease(artifact, Mode.EXCLUSIVE, NOW()):
        aside = store.set_aside(artifact, "replaced")
    kit.artifact(0)
    newer = the(store, kit.key(0), State.READY)
    before = tree(kit.root)
    with store.lease(aside, Mode.EXCLUSIVE, NOW()), pytest.raises(Refused):
        store.restore(aside)
    after = tree(kit.root)
    # Lock files may have been made or stamped; nothing else may differ.
    assert {k: v for k, v in before.items() if "lock" not in k} == {
        k: v for k, v in after.items() if "lock" not in k
    }
    now = store.look(newer)
    assert now is not None and now.inode == newer.inode


def test_a_quarantined_entry_can_be_removed(kit: Kit) -> None:
    kit.artifact(0)
    store = kit.open()
    artifact = the(store, kit.key(0), State.READY)
    with store.lease(artifact, Mode.EXCLUSIVE, NOW()):
        aside = store.set_aside(artifact, "junk")
    with store.lease(aside, Mode.EXCLUSIVE, NOW()):
        removed = store.remove(aside)
    assert removed.bytes_freed > 0
    assert kit.key(0) not in entries(store)


def test_denying_turns_new_readers_away_and_leaves_the_holder(kit: Kit) -> None:
    """QUA-03."""
    path = kit.artifact(0)
    store = kit.open()
    artifact = the(store, kit.key(0), State.READY)
    with holders.locked(kit.lock(0)):
        assert store.deny(artifact, "bad RAM") is kit.denies
        now = store.look(artifact)
        assert now is not None and path.exists()
        assert now.state is (State.DENIED if kit.denies else State.READY)
    if not kit.denies:
        return
    assert not store.check(now, Level.MARKER, CheckOptions()).valid
    assert store.check(now, Level.FULL, CheckOptions(restoring=True)).valid
    with store.lease(now, Mode.EXCLUSIVE, NOW()):
        back = store.restore(now)
    assert back.state is State.READY
    assert store.check(back, Level.FULL, CheckOptions()).valid


def test_use_is_marked_where_hwctl_keeps_the_clock_and_reading_is_no_use(kit: Kit) -> None:
    """EVI-01."""
    path = kit.artifact(0)
    kit.used(0, 10**18)
    store = kit.open()
    artifact = the(store, kit.key(0), State.READY)
    assert artifact.last_used == 10**18
    kit.payload(path).read_bytes()
    store.check(artifact, Level.FULL, CheckOptions())
    assert the(store, kit.key(0), State.READY).last_used == 10**18
    store.mark_used(artifact)
    moved = the(store, kit.key(0), State.READY).last_used
    assert moved is not None and (moved > 10**18) is kit.clock_kept


def test_the_size_follows_what_goes(kit: Kit) -> None:
    kit.artifact(0)
    kit.artifact(1)
    store = kit.open()
    before = store.size().bytes
    artifact = the(store, kit.key(0), State.READY)
    assert before >= 2 * artifact.bytes > 0
    with store.lease(artifact, Mode.EXCLUSIVE, NOW()):
        store.remove(artifact)
    assert before - store.size().bytes == artifact.bytes


def test_a_stranger_in_the_store_is_seen_and_left_alone(kit: Kit) -> None:
    kit.artifact(0)
    stranger = kit.root / ("kt-int8-x" if kit.name == "ktint8" else "notes.txt")
    stranger.write_text("mine")
    store = kit.open()
    for artifact in list(store.scan()):
        if artifact.path == stranger:
            assert artifact.state is State.FOREIGN
            with pytest.raises(HwctlError):
                store.remove(artifact)
    assert stranger.read_text() == "mine"
