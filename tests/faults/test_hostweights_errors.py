"""Errors of the disk while a host weight store is changed: EIO at every call, and a full tmpfs."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import make_hostweights
import pytest
from nth_call import failing_at
from publishing import identity_of

from hwctl.errors import HwctlError, NoRoom
from hwctl.fs.deadline import Deadline
from hwctl.fs.lock_table import Mode
from hwctl.stores.base import Artifact, CheckOptions, Level, State
from hwctl.stores.hostweights.build import get_or_build
from hwctl.stores.hostweights.lookup import lookup
from hwctl.stores.hostweights.opening import Wanted, open_root
from hwctl.stores.hostweights.publication import Publication
from hwctl.stores.hostweights.store import HostWeightStore
from hwctl.stores.hostweights.store_root import StoreRoot
from hwctl.stores.hostweights.tensors import TensorSpec
from hwctl.stores.hostweights.verdict import Outcome
from hwctl.stores.hostweights.writer import ArtifactWriter

IDENTITY = identity_of(make_hostweights.identity(1))


def publication(size: int = 500) -> Publication:
    return Publication(IDENTITY, (TensorSpec("a", "torch.int8", (size,), "one.safetensors"),))


def produce(writer: ArtifactWriter) -> None:
    with writer.open("one.safetensors") as payload:
        rows = payload.plan.extents["a"].size
        for row in range(0, rows, 1 << 20):
            payload.write_rows("a", row, b"x" * min(1 << 20, rows - row))


def publish(root: StoreRoot, size: int = 500) -> None:
    found = get_or_build(root, publication(size), produce, level=Level.FULL, deadline=Deadline.after(10))
    assert found.lease is not None
    found.lease.release()


def outcome(root: StoreRoot) -> Outcome:
    found = lookup(root, IDENTITY, Level.FULL, Deadline.now())
    if found.lease is not None:
        found.lease.release()
    return found.outcome


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_an_error_at_any_call_of_a_publication(tmp_path: Path, number: int) -> None:
    """It fails in words or succeeds all the same; no reader gets half an artifact, the next one gets on."""
    n = 1
    while True:
        root = open_root(tmp_path / f"at-{n}", Wanted())
        met: str | None
        try:
            met = failing_at(n, number, partial(publish, root))
            failed = False
        except HwctlError:
            met, failed = "something", True
        if met is None:
            break
        if failed:
            assert outcome(root) in (Outcome.MISS, Outcome.INVALID, Outcome.HIT)
        else:
            assert outcome(root) is Outcome.HIT
        publish(root)
        assert outcome(root) is Outcome.HIT and os.listdir(root.path / "tmp") == []
        n += 1
    assert n > 60


def set_aside(store: HostWeightStore, artifact: Artifact) -> None:
    with store.lease(artifact, Mode.EXCLUSIVE, Deadline.now()):
        store.set_aside(artifact, "a doubt")


def test_an_error_at_any_call_of_setting_aside(tmp_path: Path) -> None:
    n = 1
    while True:
        root = open_root(tmp_path / f"at-{n}", Wanted())
        publish(root)
        store = HostWeightStore(root)
        (artifact,) = store.scan()
        met: str | None
        try:
            met = failing_at(n, errno.EIO, partial(set_aside, store, artifact))
        except HwctlError:
            met = "something"
        if met is None:
            break
        (entry,) = store.scan()
        assert entry.files == 3
        assert (outcome(root) is Outcome.HIT) is (entry.state is State.READY)
        n += 1
    assert n > 30


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 1 MiB."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root can mount a tmpfs")
    point = tmp_path / "small"
    point.mkdir()
    options = ["-t", "tmpfs", "-o", "size=1m", "none", str(point)]
    if subprocess.run(["mount", *options], capture_output=True).returncode != 0:
        pytest.skip("mounting is not allowed here")
    try:
        yield point
    finally:
        subprocess.run(["umount", "-l", str(point)], check=True)


def test_what_cannot_fit_is_refused_with_the_knob(small: Path) -> None:
    """PUB-03: no signal, no leftovers, and need, available, mount and knob in words."""
    root = open_root(small / "store", Wanted())
    with pytest.raises(NoRoom, match=r"needs 4\.0 MiB .*available.*tmpfs.*--shm-size") as refused:
        publish(root, 4 << 20)
    assert refused.value.details["code"] == "insufficient_capacity"
    assert os.listdir(root.path / "tmp") == []


def test_a_disk_that_fills_up_meanwhile(small: Path) -> None:
    """PUB-03, when somebody else takes the room after the first question."""
    root = open_root(small / "store", Wanted())

    def greedy(writer: ArtifactWriter) -> None:
        (small / "other").write_bytes(b"x" * (700 << 10))
        produce(writer)

    size = 600 << 10
    with pytest.raises(NoRoom) as refused:
        get_or_build(root, publication(size), greedy, deadline=Deadline.after(10))
    assert refused.value.retryable and os.listdir(root.path / "tmp") == []
    assert os.listdir(root.path / "artifacts") == []
    (small / "other").unlink()
    publish(root, size)
    assert outcome(root) is Outcome.HIT


def fill(folder: Path) -> None:
    """Take the last byte."""
    with open(folder / "filling", "wb", buffering=0) as file:
        for size in (4096, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue


def test_damage_on_a_full_disk_is_denied_and_set_aside(small: Path) -> None:
    """QUA-03."""
    root = open_root(small / "store", Wanted())
    publish(root)
    store = HostWeightStore(root)
    (artifact,) = store.scan()
    payload = artifact.path / "one.safetensors"
    payload.chmod(0o600)
    with payload.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"y")
    payload.chmod(0o444)
    fill(small)
    assert not store.check(artifact, Level.FULL, CheckOptions()).valid
    reader = store.lease(artifact, Mode.SHARED, Deadline.now())
    assert store.deny(artifact, "damaged")
    assert outcome(root) is Outcome.INVALID
    reader.release()
    denied = store.look(artifact)
    assert denied is not None
    try:
        with store.lease(denied, Mode.EXCLUSIVE, Deadline.now()):
            store.set_aside(denied, "damaged")
    except NoRoom:
        assert artifact.path.stat().st_mode & stat.S_ISVTX
    assert outcome(root) in (Outcome.MISS, Outcome.INVALID)


def test_a_full_disk_of_inodes_denies_by_the_sticky_bit(tmp_path: Path, small: Path) -> None:
    subprocess.run(["mount", "-o", "remount,size=1m,nr_inodes=40", str(small)], check=True)
    root = open_root(small / "store", Wanted())
    publish(root)
    store = HostWeightStore(root)
    (artifact,) = store.scan()
    number = 0
    while True:
        try:
            (small / f"n{number}").touch()
        except OSError:
            break
        number += 1
    assert store.deny(artifact, "why")
    assert stat.S_IMODE(artifact.path.stat().st_mode) == 0o1555
    assert outcome(root) is Outcome.INVALID
    with store.lease(artifact, Mode.EXCLUSIVE, Deadline.now()):
        assert store.set_aside(artifact, "why").state is State.QUARANTINED
