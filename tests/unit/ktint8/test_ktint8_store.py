"""The Store protocol over a base: what is an entry, what is a stranger, what each step does."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import ktroot
import pytest

from hwctl.errors import NoRoom, NotFound, Refused
from hwctl.fs.deadline import Deadline
from hwctl.fs.lock_table import Mode
from hwctl.fs.paths import opened_dir
from hwctl.stores import note
from hwctl.stores.base import Artifact, Family, StalePolicy, State
from hwctl.stores.ktint8 import aside, layout, roots
from hwctl.stores.ktint8.deletion import remove_listed
from hwctl.stores.ktint8.locating import recognise
from hwctl.stores.ktint8.store import KtInt8Store, open_store

ONE = "_layer_3/_numa_0/INT8_gate_0_4096Byte_quant_.kt"


def entries(base: Path) -> dict[str, State]:
    return {artifact.path.name: artifact.state for artifact in open_store(base).scan()}


def the(base: Path, name: str) -> tuple[KtInt8Store, Artifact]:
    store = open_store(base)
    return store, next(artifact for artifact in store.scan() if artifact.path.name == name)


def test_every_kind_of_entry(base: Path) -> None:
    def half(document: dict[str, Any]) -> None:
        document["layers"][0]["state"] = "consumed"

    ktroot.ready(base, run="run-ready")
    ktroot.ready(base, run="run-half", edit=half)
    ktroot.staging(base, run="run-staging")
    ktroot.staging(base, run="run-leaseless", lease_doc=None)
    ktroot.persistent(base, name="store")
    ktroot.dump(ktroot.ready(base, run="run-damaged") / ktroot.MANIFEST, "{")
    (ktroot.ready(base, run="run-incomplete") / ktroot.MANIFEST).unlink()
    (base / "kt-int8-a-file-1").touch()
    (base / "kt-int8-x").mkdir()
    (base / "other").mkdir()
    (base / "other-file").touch()
    assert entries(base) == {
        "kt-int8-run-ready": State.READY,
        "kt-int8-run-half": State.CONSUMING,
        "kt-int8-run-staging.staging": State.STAGING,
        "kt-int8-run-leaseless.staging": State.STAGING,
        "store": State.READY,
        "kt-int8-run-damaged": State.DAMAGED,
        "kt-int8-run-incomplete": State.INCOMPLETE,
        "kt-int8-a-file-1": State.FOREIGN,
        "kt-int8-x": State.FOREIGN,
    }
    keys = [artifact.key for artifact in open_store(base).scan()]
    assert keys == sorted(keys)


def test_what_an_entry_tells(base: Path) -> None:
    root = ktroot.ready(base)
    _store, artifact = the(base, root.name)
    detail = artifact.detail
    assert (artifact.family, artifact.key, artifact.store) == (Family.KTINT8, ktroot.RUN, base)
    assert artifact.files == 49
    assert artifact.bytes == sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
    assert artifact.allocated > artifact.bytes
    assert artifact.created == 1_700_000_000_000_000_000
    assert artifact.inode == (root.stat().st_dev, root.stat().st_ino)
    assert detail["layers"] == {"indices": [3, 4], "ready": 2, "consuming": 0, "consumed": 0}
    assert (detail["parts"], detail["experts"], detail["hidden"], detail["intermediate"]) == (2, 2, 64, 128)
    assert detail["producer"] == {
        "pid": ktroot.DEAD_PID,
        "life": "dead",
        "evidence": f"pid {ktroot.DEAD_PID} is gone",
    }
    ktroot.hold_lock(root)
    try:
        leases = the(base, root.name)[1].leases
        assert (leases.shared, leases.exclusive, len(leases.pids)) == (0, 1, 1)
    finally:
        ktroot.release_locks()


def test_a_staging_entry_says_why_nothing_speaks_for_it(base: Path) -> None:
    root = ktroot.staging(base, lease_doc=[1, 2])
    _store, artifact = the(base, root.name)
    assert artifact.reason is not None
    assert "is not a JSON object" in artifact.reason
    assert artifact.detail["layers"] == {"staged": 2}


def test_strangers_survive_everything(base: Path) -> None:
    """REC-07: exact names and a sound manifest or lease; never by owner or pattern alone."""
    names = [
        "psm_0a1b",
        "sem.mp-1",
        "vllm_offload_0",
        "nccl-ab",
        "plasma",
        "kt-int8",
        "KT-INT8-abcdef",
        "kt_int8_abcdef",
    ]
    for name in names:
        (base / name).write_text(name)
    (base / "kt-int8-x").mkdir()
    (base / "kt-int8-abcdef").write_text("a file")
    (base / "kt-int8-abc123.staging.bak").mkdir()
    (base / "kt-int8-ghijkl").symlink_to(base / "plasma")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(base / "kt-int8-a-socket"))
        before = ktroot.snapshot(base)
        store = open_store(base)
        everything = StalePolicy(older_than=0, leaseless=True, ready=True)
        for artifact in store.scan():
            assert artifact.path.name not in names
            assert store.stale(artifact, everything).death.value == "not-stale"
            if artifact.state is State.FOREIGN:
                with pytest.raises(Refused):
                    store.remove(artifact)
        assert ktroot.snapshot(base) == before


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("kt-int8-abcdef", "abcdef"),
        ("kt-int8-abcdef.staging", "abcdef"),
        ("kt-int8-x", "kt-int8-x"),
        (f"{layout.QUARANTINE}/kt-int8-abcdef.{'0' * 32}", "abcdef"),
    ],
)
def test_a_name_is_recognised_even_where_nothing_stands(base: Path, name: str, key: str) -> None:
    match = recognise(base / name)
    assert match is not None
    assert (match.root, match.path, match.key) == (base, base / name, key)
    assert open_store(base).look(Artifact(match.family, base, key, match.path, State.ABSENT)) is None


def test_a_base_is_recognised_by_what_lies_in_it(base: Path) -> None:
    assert recognise(base) is None
    (base / "sub").mkdir()
    assert recognise(base) is None
    ktroot.persistent(base / "sub")
    match = recognise(base / "sub")
    assert match is not None
    assert (match.root, match.key) == (base / "sub", None)
    assert recognise(roots.SHARED_MEMORY) is not None


def test_remove_staging_takes_everything_and_follows_nothing(base: Path) -> None:
    root = ktroot.staging(base)
    (base / "outside").mkdir()
    (base / "outside/keep").write_text("keep")
    (root / "_layer_3/link").symlink_to(base / "outside")
    (root / "stray").touch()
    store, artifact = the(base, root.name)
    with store.lease(artifact, Mode.EXCLUSIVE, Deadline.now()):
        removed = store.remove(artifact)
    assert not root.exists()
    assert removed.files == artifact.files
    assert removed.bytes_freed == artifact.allocated
    assert (base / "outside/keep").read_text() == "keep"


def test_remove_ready_takes_what_the_manifest_lists(base: Path) -> None:
    root = ktroot.ready(base)
    store, artifact = the(base, root.name)
    removed = store.remove(artifact)
    assert not root.exists()
    assert (removed.files, removed.bytes_freed) == (49, artifact.allocated)
    assert store.remove(artifact).files == 0


@pytest.mark.parametrize("stray", ["mine", "_layer_3/mine", "_layer_3/_numa_0/mine", "_layer_9/"])
@pytest.mark.parametrize("kind", ["ready", "persistent"])
def test_a_tree_with_a_stranger_in_it_stays_as_it_is(base: Path, kind: str, stray: str) -> None:
    root = getattr(ktroot, kind)(base)
    path = root / stray
    path.mkdir() if stray.endswith("/") else path.write_text("mine")
    store, artifact = the(base, root.name)
    before = sorted(root.rglob("*"))
    assert stray.rstrip("/") in (store.removable(artifact) or "")
    with pytest.raises(Refused, match="does not belong here"):
        store.remove(artifact)
    assert sorted(root.rglob("*")) == before
    assert the(base, root.name)[1].state is artifact.state
    path.rmdir() if stray.endswith("/") else path.unlink()
    assert store.removable(artifact) is None
    store.remove(artifact)
    assert not root.exists()


def test_a_stranger_that_comes_too_late_is_told_of(base: Path) -> None:
    root = ktroot.ready(base)
    (root / "_layer_3/_numa_0/mine").write_text("mine")
    with opened_dir(base) as base_fd:
        removed = remove_listed(base_fd, root.name, None, ephemeral=True)
    assert removed.files == 48
    assert removed.size > 0
    assert removed.left == "_layer_3 is not its own and was left in it"
    assert (root / "_layer_3/_numa_0/mine").read_text() == "mine"
    assert the(base, root.name)[1].state is State.CONSUMING


def test_remove_needs_a_manifest_that_can_be_read(base: Path) -> None:
    root = ktroot.ready(base)
    ktroot.dump(root / ktroot.MANIFEST, "{")
    store, artifact = the(base, root.name)
    with pytest.raises(Refused, match="quarantine"):
        store.remove(artifact)
    assert (root / ONE).exists()


def test_remove_an_empty_root(base: Path) -> None:
    """What is left when finish is killed between its last two steps."""
    root = base / "kt-int8-run-0001"
    root.mkdir(mode=0o700)
    store, artifact = the(base, root.name)
    store.remove(artifact)
    assert not root.exists()


def test_remove_looks_at_the_inode(base: Path) -> None:
    root = ktroot.ready(base)
    store, artifact = the(base, root.name)
    root.rename(base / "moved")
    ktroot.ready(base)
    with pytest.raises(Refused):
        store.remove(artifact)
    with pytest.raises(NotFound):
        store.lease(artifact, Mode.EXCLUSIVE, Deadline.now())
    assert (root / ONE).exists()


def test_still_mapped_bytes_are_told_apart(base: Path) -> None:
    root = ktroot.ready(base)
    store, artifact = the(base, root.name)
    script = "import sys,time; f = open(sys.argv[1], 'rb'); print('open', flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", script, str(root / ONE)], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        removed = store.remove(artifact)
    finally:
        process.kill()
        process.communicate()
    assert removed.still_mapped == 4096
    assert removed.bytes_freed == artifact.allocated - 4096


def test_a_folder_that_somebody_stands_in_is_freed(base: Path) -> None:
    root = ktroot.ready(base)
    store, artifact = the(base, root.name)
    fd = os.open(root / "_layer_3", os.O_RDONLY)
    try:
        removed = store.remove(artifact)
    finally:
        os.close(fd)
    assert (removed.bytes_freed, removed.still_mapped) == (artifact.allocated, 0)


def test_quarantine_and_back(base: Path) -> None:
    root = ktroot.ready(base)
    store, artifact = the(base, root.name)
    before = ktroot.snapshot(root)
    entry = store.set_aside(artifact, "flipped bits \u2028")
    assert not root.exists()
    assert (entry.state, entry.key, entry.reason) == (State.QUARANTINED, ktroot.RUN, "flipped bits \u2028")
    assert entry.path.parent == base / layout.QUARANTINE
    assert sorted(os.listdir(entry.path)) == [note.NAME, root.name]
    assert ktroot.snapshot(entry.path / root.name) == before
    assert [found.path for found in store.scan()] == [entry.path]
    back = store.restore(entry)
    assert (back.path, back.state) == (root, State.READY)
    assert ktroot.snapshot(root) == before
    assert sorted(os.listdir(base)) == [root.name]


def test_restore_never_goes_over_anything(base: Path) -> None:
    root = ktroot.ready(base)
    store, artifact = the(base, root.name)
    entry = store.set_aside(artifact, "x")
    root.mkdir()
    with pytest.raises(Refused):
        store.restore(entry)
    assert (entry.path / root.name / ONE).exists()
    assert (entry.path / note.NAME).exists()


def test_quarantine_on_a_full_disk(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tree goes out of sight even where there is no room for the note."""

    def full(*_args: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    root = ktroot.ready(base)
    store, artifact = the(base, root.name)
    monkeypatch.setattr(note, "create_document", full)
    entry = store.set_aside(artifact, "x")
    assert (entry.state, entry.reason) == (State.QUARANTINED, None)
    assert store.restore(entry).path == root

    monkeypatch.setattr(aside, "rename_noreplace", full)
    with pytest.raises(NoRoom):
        store.set_aside(the(base, root.name)[1], "x")
    assert (root / ONE).exists()
    assert os.listdir(base / layout.QUARANTINE) == []


def test_what_stands_in_place_of_the_note_keeps_no_tree_in_quarantine(base: Path) -> None:
    root = ktroot.ready(base)
    store, artifact = the(base, root.name)
    entry = store.set_aside(artifact, "x")
    (entry.path / note.NAME).unlink()
    (entry.path / note.NAME).mkdir()
    assert store.restore(entry).path == root


def test_a_quarantined_tree_goes_whole(base: Path) -> None:
    root = ktroot.ready(base)
    (root / "stranger").touch()
    store, artifact = the(base, root.name)
    entry = store.set_aside(artifact, "x")
    with store.lease(entry, Mode.EXCLUSIVE, Deadline.now()):
        store.remove(entry)
    assert os.listdir(base) == []


def test_the_quarantine_of_a_shared_base_is_shared(base: Path) -> None:
    base.chmod(0o1777)
    root = ktroot.ready(base)
    store, artifact = the(base, root.name)
    entry = store.set_aside(artifact, "x")
    assert (base / layout.QUARANTINE).stat().st_mode & 0o7777 == 0o1777
    assert entry.path.stat().st_mode & 0o7777 == 0o700


def test_a_link_in_place_of_the_quarantine_is_refused(base: Path) -> None:
    root = ktroot.ready(base)
    (base / "elsewhere").mkdir()
    (base / layout.QUARANTINE).symlink_to(base / "elsewhere")
    store, artifact = the(base, root.name)
    with pytest.raises(Refused):
        store.set_aside(artifact, "x")
    assert (root / ONE).exists()


def test_size_counts_trees(base: Path) -> None:
    root = ktroot.ready(base)
    (base / "kt-int8-x").write_bytes(b"x" * 1000)
    store, artifact = the(base, root.name)
    assert store.size().bytes == artifact.bytes
    assert store.actor(artifact) == os.getuid()
    assert not store.deny(artifact, "x")


def test_what_cannot_be_read_is_a_row() -> None:
    """REC-08, INS-03: an ordinary user meets a tree and a quarantine that only their owner can look into."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        base = Path(folder)
        base.chmod(0o755)
        root = ktroot.ready(base)
        store, artifact = the(base, ktroot.ready(base, run="other-run-1").name)
        store.set_aside(artifact, "x")
        wanted = {root.name: State.UNREADABLE, layout.QUARANTINE: State.UNREADABLE}
        for path in (root, base / layout.QUARANTINE):
            path.chmod(0)
        child = os.fork()
        if child == 0:
            if os.getuid() == 0:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            os._exit(0 if entries(base) == wanted else 1)
        assert os.waitpid(child, 0)[1] == 0
        for path in (root, base / layout.QUARANTINE):
            path.chmod(0o700)
