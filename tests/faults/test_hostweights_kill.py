"""SIGKILL before every change that hwctl makes to a host weight store.

Whatever the moment: readers see a whole artifact or none, nothing that was there is lost, what is left can be
reclaimed on the evidence of locks, and the same command run again comes to its end.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import make_hostweights
import pytest
from nth_call import killed_at, moments_of
from publishing import identity_of

from hwctl.core import reclaim_stale
from hwctl.core.plan import Result, Target
from hwctl.fs.deadline import Deadline
from hwctl.fs.lock_table import Mode
from hwctl.stores.base import Artifact, Level, StalePolicy, State
from hwctl.stores.hostweights.build import cleanup, get_or_build
from hwctl.stores.hostweights.identity import Identity
from hwctl.stores.hostweights.lookup import lookup
from hwctl.stores.hostweights.opening import Wanted, open_root
from hwctl.stores.hostweights.publication import Publication
from hwctl.stores.hostweights.store import HostWeightStore
from hwctl.stores.hostweights.tensors import TensorSpec
from hwctl.stores.hostweights.verdict import Outcome
from hwctl.stores.hostweights.writer import ArtifactWriter

IDENTITY = identity_of(make_hostweights.identity(1))
SPECS = (
    TensorSpec("a", "torch.float32", (2, 3), "one.safetensors"),
    TensorSpec("b", "torch.int8", (500,), "two.safetensors"),
)


def produce(writer: ArtifactWriter) -> None:
    with writer.open("one.safetensors", ordered=True) as payload:
        payload.write_tensor("a", bytes(range(24)))
    with writer.open("two.safetensors") as payload:
        payload.write_rows("b", 100, b"y" * 400)
        payload.write_rows("b", 0, b"x" * 100)


def publish(path: Path) -> None:
    root = open_root(path, Wanted())
    found = get_or_build(root, Publication(IDENTITY, SPECS), produce, deadline=Deadline.after(10))
    assert found.lease is not None
    found.lease.release()


def outcome(path: Path, identity: Identity = IDENTITY) -> Outcome:
    found = lookup(open_root(path, Wanted()), identity, Level.FULL, Deadline.now())
    if found.lease is not None:
        found.lease.release()
    return found.outcome


def entries(path: Path) -> list[Artifact]:
    return list(HostWeightStore(open_root(path, Wanted())).scan())


def reclaim(path: Path) -> None:
    """What is proven dead goes, and nothing else."""
    store = HostWeightStore(open_root(path, Wanted()))
    for step in reclaim_stale.plan(Target(store), reclaim_stale.Selection(), StalePolicy(), ()):
        assert reclaim_stale.reclaim(StalePolicy(), step, Deadline.now()).result is Result.DONE


def rounds(tmp_path: Path, prepare: Callable[[Path], None], work: Callable[[Path], object]) -> list[Path]:
    """A fresh store for every moment of ``work``, and killed there."""
    counted = tmp_path / "counted"
    prepare(counted)
    moments = moments_of(lambda: work(counted))
    assert len(moments) > 20
    out = []
    for n in moments:
        path = tmp_path / f"at-{n}"
        prepare(path)
        if killed_at(n, partial(work, path)):
            out.append(path)
    return out


def nothing(path: Path) -> None:
    path.mkdir(mode=0o700)


@pytest.mark.parametrize("then", ["build again", "reclaim"])
def test_a_publication(tmp_path: Path, then: str) -> None:
    killed = rounds(tmp_path, nothing, publish)
    assert len(killed) > 20
    for path in killed:
        state = outcome(path)
        assert state in (Outcome.HIT, Outcome.MISS, Outcome.INVALID)
        if state is Outcome.INVALID:  # renamed and not committed: marked, and never a hit
            assert [entry.state for entry in entries(path)] == [State.DENIED]
        if then == "reclaim":
            reclaim(path)
            assert [entry.state for entry in entries(path)] in ([], [State.READY], [State.QUARANTINED])
            assert (outcome(path) is Outcome.HIT) is (state is Outcome.HIT)
        publish(path)
        assert outcome(path) is Outcome.HIT
        assert os.listdir(path / "tmp") == [] and os.listdir(path / "deny") == []


def with_damage(path: Path) -> None:
    publish(path)
    (path / "artifacts" / IDENTITY.key / "two.safetensors").chmod(0o600)


def test_a_rebuild_of_an_invalid_artifact(tmp_path: Path) -> None:
    for path in rounds(tmp_path, with_damage, publish):
        assert outcome(path) in (Outcome.HIT, Outcome.MISS, Outcome.INVALID)
        # The evidence of the damage is in its place or in quarantine, whole.
        payloads = list(path.glob(f"*/{IDENTITY.key}*/two.safetensors"))
        assert any(payload.stat().st_mode & 0o200 for payload in payloads if payload.parents[1].name != "tmp")
        publish(path)
        assert outcome(path) is Outcome.HIT and os.listdir(path / "tmp") == []


def aside(path: Path) -> None:
    store = HostWeightStore(open_root(path, Wanted()))
    (artifact,) = [entry for entry in store.scan() if entry.state is not State.QUARANTINED]
    with store.lease(artifact, Mode.EXCLUSIVE, Deadline.now()):
        store.set_aside(artifact, "a doubt")


def back(path: Path) -> None:
    store = HostWeightStore(open_root(path, Wanted()))
    for artifact in store.scan():
        if artifact.state in (State.QUARANTINED, State.DENIED):
            with store.lease(artifact, Mode.EXCLUSIVE, Deadline.now()):
                store.restore(artifact)


def test_setting_aside(tmp_path: Path) -> None:
    for path in rounds(tmp_path, publish, aside):
        (entry,) = entries(path)
        assert (outcome(path) is Outcome.HIT) is (entry.state is State.READY)
        assert entry.files == 4
        back(path)
        assert outcome(path) is Outcome.HIT


def set_aside(path: Path) -> None:
    publish(path)
    aside(path)


def test_restoring(tmp_path: Path) -> None:
    for path in rounds(tmp_path, set_aside, back):
        (entry,) = entries(path)
        assert (outcome(path) is Outcome.HIT) is (entry.state is State.READY)
        assert entry.files == 4
        back(path)
        assert outcome(path) is Outcome.HIT


def remove(path: Path) -> None:
    cleanup(open_root(path, Wanted()), IDENTITY.key)


def test_a_removal(tmp_path: Path) -> None:
    for path in rounds(tmp_path, publish, remove):
        assert outcome(path) in (Outcome.HIT, Outcome.MISS, Outcome.INVALID)
        remove(path)
        assert entries(path) == [] and outcome(path) is Outcome.MISS
        publish(path)
        assert outcome(path) is Outcome.HIT


def test_the_creation_of_a_store(tmp_path: Path) -> None:
    def create(path: Path) -> None:
        open_root(path / "store", Wanted())

    for path in rounds(tmp_path, nothing, create):
        create(path)
        publish(path / "store")
        assert outcome(path / "store") is Outcome.HIT
        reclaim(path / "store")
        assert [entry.state for entry in entries(path / "store")] == [State.READY]
