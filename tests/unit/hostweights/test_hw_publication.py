"""Publishing: the commit, what a failure leaves, collisions, limits, and one build among many."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from hwctl.errors import Busy, HwctlError, IoFailed, NoRoom, Refused, Usage
from hwctl.fs.deadline import Deadline
from hwctl.fs.lock_table import Mode
from hwctl.fs.locks import acquire
from hwctl.fs.mounts import mount_of
from hwctl.stores.base import Level
from hwctl.stores.hostweights import build, commit, leases
from hwctl.stores.hostweights import publication as publishing
from hwctl.stores.hostweights.build import cleanup, get_or_build
from hwctl.stores.hostweights.identity import Identity
from hwctl.stores.hostweights.lookup import lookup
from hwctl.stores.hostweights.publication import Publication, publish
from hwctl.stores.hostweights.staging import Staging
from hwctl.stores.hostweights.store_root import StoreRoot
from hwctl.stores.hostweights.verdict import Outcome, failure_of
from hwctl.stores.hostweights.writer import ArtifactWriter, Producer


def names(root: StoreRoot, folder: str) -> list[str]:
    return sorted(os.listdir(root.path / folder))


def words(error: HwctlError) -> tuple[str, str]:
    failure = failure_of(error)
    return str(failure.stage), str(failure.code)


def is_sound(root: StoreRoot, identity: Identity) -> bool:
    found = lookup(root, identity, Level.FULL, Deadline.now())
    if found.lease is not None:
        found.lease.release()
    return found.outcome is Outcome.HIT


def test_a_published_artifact_has_the_modes_of_the_format(artifact: Path) -> None:
    assert stat.S_IMODE(artifact.stat().st_mode) == 0o555
    assert sorted(os.listdir(artifact)) == [
        "READY.json",
        "manifest.json",
        "one.safetensors",
        "two.safetensors",
    ]
    for path in artifact.iterdir():
        st = path.stat()
        assert (stat.S_IMODE(st.st_mode), st.st_nlink) == (0o444, 1)


def test_the_second_time_it_is_there(
    root: StoreRoot, publication: Publication, artifact: Path, producer: Producer
) -> None:
    inode = artifact.stat().st_ino

    def never(_writer: ArtifactWriter) -> None:
        pytest.fail("there is nothing to produce")

    found = get_or_build(root, publication, never, deadline=Deadline.now())
    assert found.outcome is Outcome.HIT and found.path == artifact and found.lease is not None
    found.lease.release()
    assert artifact.stat().st_ino == inode


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(errno.EIO, "broken"), ("production", "producer_failed")),
        (OSError(errno.ENOSPC, "full"), ("capacity", "enospc")),
        (OSError(errno.EDQUOT, "quota"), ("capacity", "enospc")),
        (Refused("not mine"), None),
        (KeyError("bug"), None),
        (KeyboardInterrupt(), None),
        (SystemExit(5), None),
    ],
)
def test_whatever_a_producer_meets_leaves_nothing(
    root: StoreRoot, publication: Publication, error: BaseException, expected: tuple[str, str] | None
) -> None:
    def failing(writer: ArtifactWriter) -> None:
        with writer.open("one.safetensors") as payload:
            payload.write_tensor("a", bytes(24))
            raise error

    with pytest.raises(BaseException) as met:
        get_or_build(root, publication, failing, deadline=Deadline.after(5))
    if expected is None:
        assert met.value is error
    else:
        assert isinstance(met.value, HwctlError) and words(met.value) == expected
    for folder in ("tmp", "artifacts", "quarantine", "deny"):
        assert names(root, folder) == []
    with acquire(leases.lock_path(root, publication.identity.key), Mode.EXCLUSIVE, Deadline.now()) or True:
        pass


def test_quota_is_said_in_words(
    root: StoreRoot, publication: Publication, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PUB-05: with the failing file, and the file system that has room enough by its own account."""
    plain = os.pwrite

    def refused(fd: int, data: memoryview, offset: int) -> int:
        if os.readlink(f"/proc/self/fd/{fd}").endswith("one.safetensors"):
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
        return plain(fd, data, offset)

    def produce(writer: ArtifactWriter) -> None:
        with writer.open("one.safetensors") as payload:
            payload.write_tensor("a", bytes(24))

    monkeypatch.setattr(os, "pwrite", refused)
    with pytest.raises(NoRoom) as met:
        get_or_build(root, publication, produce, deadline=Deadline.after(5))
    mount = os.fsdecode(mount_of(root.path).point)
    for part in ("quota", f"uid {os.geteuid()}", "one.safetensors", mount, "free now"):
        assert part in met.value.message
    assert names(root, "tmp") == []


def test_a_producer_that_forgets_something_is_refused(root: StoreRoot, publication: Publication) -> None:
    with pytest.raises(Usage) as refused:
        get_or_build(root, publication, lambda _writer: None, deadline=Deadline.after(5))
    assert words(refused.value) == ("production", "producer_failed")
    assert names(root, "tmp") == []


@pytest.mark.parametrize("operation", ["rename", "chmod", "flock"])
def test_a_file_system_that_cannot_is_refused_before_the_first_byte(
    root: StoreRoot,
    publication: Publication,
    producer: Producer,
    monkeypatch: pytest.MonkeyPatch,
    operation: str,
) -> None:
    """PUB-02."""
    import hwctl.fs.probe as probing

    def cannot(*_args: object, **_options: object) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    target: Any = {"rename": os, "chmod": os, "flock": probing.fcntl}[operation]
    name = {"rename": "rename", "chmod": "fchmod", "flock": "flock"}[operation]
    with monkeypatch.context() as patched:
        patched.setattr(target, name, cannot)
        with pytest.raises(HwctlError):
            publish(root, publication, lambda _writer: pytest.fail("too late"), Deadline.now())
    assert names(root, "tmp") == [] and names(root, "artifacts") == []


def test_same_key_same_content_counts_as_published(
    root: StoreRoot, publication: Publication, artifact: Path, producer: Producer
) -> None:
    (root.path / "deny" / f"{publication.identity.key}.json").write_bytes(b"")
    inode = artifact.stat().st_ino
    found = publish(root, publication, producer, Deadline.now())
    assert not found.ours and found.path == artifact and artifact.stat().st_ino == inode
    assert names(root, "tmp") == [] and names(root, "quarantine") == [] and names(root, "deny") == []


def test_same_key_other_content_is_refused_and_both_are_kept(
    root: StoreRoot, publication: Publication, artifact: Path, producer: Producer
) -> None:
    """PUB-12."""

    def other(writer: ArtifactWriter) -> None:
        with writer.open("one.safetensors") as payload:
            payload.write_tensor("a", b"\xff" * 24)
            payload.write_tensor("b", b"\1\2")
        with writer.open("two.safetensors") as payload:
            payload.write_tensor("c", b"z" * 70_000)

    with pytest.raises(Refused) as refused:
        publish(root, publication, other, Deadline.now())
    assert words(refused.value) == ("validation", "identity_collision")
    details = refused.value.details
    assert details["existing_content_sha256"] != details["new_content_sha256"]
    (aside,) = names(root, "quarantine")
    assert aside.startswith(f"{publication.identity.key}.identity-collision.")
    assert stat.S_IMODE((root.path / "quarantine" / aside).stat().st_mode) == 0o555
    assert is_sound(root, publication.identity) and names(root, "tmp") == []


def test_a_competing_entry_that_cannot_be_read_is_preserved(
    root: StoreRoot, publication: Publication, producer: Producer
) -> None:
    there = root.path / "artifacts" / publication.identity.key
    there.mkdir()
    (there / "manifest.json").write_bytes(b"{")
    with pytest.raises(IoFailed) as failed:
        publish(root, publication, producer, Deadline.now())
    assert words(failed.value) == ("domain", "domain_unavailable")
    assert failed.value.details["competing_entry"] == "preserved"
    assert (there / "manifest.json").read_bytes() == b"{" and names(root, "tmp") == []


def test_a_commit_that_fails_is_taken_back(
    root: StoreRoot, publication: Publication, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(commit, "sync_dir", broken)
    with pytest.raises(IoFailed) as failed:
        publish(root, publication, producer, Deadline.now())
    assert words(failed.value) == ("lifecycle", "publication_failed")
    assert failed.value.details["containment"] == {
        "invalidation_marker": "durable",
        "quarantine": "completed",
    }
    (aside,) = names(root, "quarantine")
    assert aside.startswith(f"{publication.identity.key}.publication_failure.")
    assert names(root, "artifacts") == names(root, "tmp") == []


def test_a_signal_in_the_commit_leaves_a_whole_artifact(
    root: StoreRoot, publication: Publication, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = commit.sync_dir, iter([True])

    def interrupted(fd: int) -> None:
        if next(calls, False):
            raise KeyboardInterrupt
        real(fd)

    monkeypatch.setattr(commit, "sync_dir", interrupted)
    with pytest.raises(KeyboardInterrupt):
        publish(root, publication, producer, Deadline.now())
    assert is_sound(root, publication.identity) and names(root, "tmp") == []


def test_a_reader_of_the_key_does_not_hold_the_rename_up_for_ever(
    root: StoreRoot, publication: Publication, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM-Omni waits here without end."""
    lock = root.path / "locks" / f"{publication.identity.key}.artifact.lock"
    lock.touch(mode=0o600)
    monkeypatch.setattr(publishing, "_COMMIT_SECONDS", 0.2)
    with open(lock) as reader:

        def produce(writer: ArtifactWriter) -> None:
            fcntl.flock(reader, fcntl.LOCK_SH)
            producer(writer)

        with pytest.raises(Busy) as busy:
            publish(root, publication, produce, Deadline.now())
    assert words(busy.value) == ("production", "active_build_timeout")
    assert names(root, "tmp") == names(root, "artifacts") == []


def test_eight_at_once_build_once(root: StoreRoot, publication: Publication, producer: Producer) -> None:
    builds: list[int] = []
    outcomes: list[Outcome] = []

    def counted(writer: ArtifactWriter) -> None:
        builds.append(1)
        producer(writer)

    def work() -> None:
        found = get_or_build(root, publication, counted, deadline=Deadline.after(30))
        outcomes.append(found.outcome)
        assert found.lease is not None
        found.lease.release()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(builds) == 1 and len(outcomes) == 8
    assert outcomes.count(Outcome.BUILT) == 1
    assert {*outcomes} <= {Outcome.BUILT, Outcome.JOINED, Outcome.HIT}


def test_an_invalid_artifact_is_replaced_and_kept_aside(
    root: StoreRoot, publication: Publication, artifact: Path, producer: Producer
) -> None:
    (artifact / "two.safetensors").chmod(0o600)
    found = get_or_build(root, publication, producer, deadline=Deadline.after(5))
    assert found.outcome is Outcome.BUILT and found.lease is not None
    found.lease.release()
    (aside,) = names(root, "quarantine")
    assert ".validation_failure." in aside
    assert is_sound(root, publication.identity) and names(root, "deny") == []


def test_leftovers_of_the_key_go_with_the_next_build(
    root: StoreRoot, publication: Publication, producer: Producer
) -> None:
    key = publication.identity.key
    stale = root.path / "tmp" / f"{key}.99.{'a' * 32}"
    stale.mkdir()
    (stale / "x").write_bytes(b"x")
    tombstone = root.path / "quarantine" / f"{key}.cleanup.{'b' * 32}"
    tombstone.mkdir(mode=0o555)
    half = root.path / "quarantine" / f"{key}.validation_failure.{'c' * 32}"
    half.mkdir()
    half.chmod(0o1755)
    other = root.path / "tmp" / f"{'0' * 64}.99.{'a' * 32}"
    other.mkdir()
    found = get_or_build(root, publication, producer, deadline=Deadline.after(5))
    assert found.lease is not None
    found.lease.release()
    assert names(root, "tmp") == [other.name]
    assert names(root, "quarantine") == [half.name]
    assert stat.S_IMODE(half.stat().st_mode) == 0o555


def test_cleanup_waits_for_nobody(root: StoreRoot, publication: Publication, artifact: Path) -> None:
    key = publication.identity.key
    with leases.building(root, key, Deadline.now()), pytest.raises(Busy) as busy:
        cleanup(root, key)
    assert words(busy.value) == ("lifecycle", "active_build_timeout")
    with leases.shared(root, key, Deadline.now(), create=False) or pytest.fail(), pytest.raises(Busy) as busy:
        cleanup(root, key)
    assert words(busy.value) == ("lifecycle", "active_lease")
    cleanup(root, key)
    assert not artifact.exists() and names(root, "quarantine") == []
    cleanup(root, key)


def test_a_failed_way_is_told_as_quarantine_failed(
    root: StoreRoot,
    publication: Publication,
    artifact: Path,
    producer: Producer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (artifact / "two.safetensors").chmod(0o600)

    def broken(*_args: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(build.quarantine, "repair_moves", broken)
    with pytest.raises(IoFailed) as failed:
        get_or_build(root, publication, producer, deadline=Deadline.after(5))
    assert words(failed.value) == ("lifecycle", "quarantine_failed") and failed.value.retryable


def test_the_steps_are_in_the_order_of_the_format(
    root: StoreRoot, publication: Publication, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every fsync of section "Publication", so that a power cut at any moment leaves the old or the new."""
    steps: list[str] = []
    key = publication.identity.key

    def shown(fd: int) -> str:
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        if path.parent.name == "tmp":
            return "staging"
        return "artifact" if path.name == key else path.name

    real_fsync, real_fchmod, real_unlink = os.fsync, os.fchmod, os.unlink
    real_rename = commit.rename_noreplace

    def fsync(fd: int) -> None:
        steps.append(f"sync {shown(fd)}")
        real_fsync(fd)

    def fchmod(fd: int, mode: int) -> None:
        steps.append(f"{mode:04o} {shown(fd)}")
        real_fchmod(fd, mode)

    def unlink(name: str, *, dir_fd: int | None = None) -> None:
        if name == f"{key}.json":
            steps.append("remove the marker")
        real_unlink(name, dir_fd=dir_fd)

    def rename(*args: Any) -> None:
        held = Path("/proc/locks").read_text()
        inode = leases.lock_path(root, key).stat().st_ino
        assert f":{inode} " in held
        steps.append("rename")
        real_rename(*args)

    (root.path / "deny" / f"{key}.json").write_bytes(b"")
    monkeypatch.setattr(publishing, "probe", lambda _fd: None)
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "fchmod", fchmod)
    monkeypatch.setattr(os, "unlink", unlink)
    monkeypatch.setattr(commit, "rename_noreplace", rename)
    publish(root, publication, producer, Deadline.now())
    payloads, rest = steps[:4], steps[4:]
    assert sorted(payloads) == sorted(
        f"{what} {name}.safetensors" for name in ("one", "two") for what in ("0444", "sync")
    )
    assert payloads.index("0444 one.safetensors") < payloads.index("sync one.safetensors")
    assert rest == [
        "sync manifest.json",
        "0444 manifest.json",
        "sync manifest.json",
        "sync READY.json",
        "0444 READY.json",
        "sync READY.json",
        "sync staging",
        "1755 staging",
        "sync staging",
        "rename",
        "0555 artifact",
        "sync artifact",
        "sync tmp",
        "remove the marker",
        "sync deny",
        "sync artifacts",
    ]


def test_a_staging_directory_that_cannot_have_its_modes_is_gone(
    root: StoreRoot, identity: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_fd: int, _mode: int) -> None:
        raise OSError(errno.EIO, "broken")

    with root.folder("tmp") as tmp:
        before = os.listdir("/proc/self/fd")
        umask = os.umask(0o100)
        monkeypatch.setattr(os, "fchmod", broken)
        try:
            with pytest.raises(OSError, match="broken"):
                Staging(root, tmp, identity.key)
        finally:
            os.umask(umask)
        assert (names(root, "tmp"), os.listdir("/proc/self/fd")) == ([], before)
