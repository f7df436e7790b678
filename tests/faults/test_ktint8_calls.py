"""SIGKILL before every change, or an error in place of any system call, of what works on a kt-int8 tree.

Whatever the moment: a ready name stands for a whole tree or for none, no layer is lost that was not handed
over, a refusal leaves no trace, and the same work done again comes to its end.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import make_ktint8
import pytest
from nth_call import calls_of, failing_at, killed_at, moments_of

from hwctl.errors import HwctlError, IoFailed, NoRoom, Refused
from hwctl.fs.deadline import Deadline
from hwctl.fs.lock_table import Mode
from hwctl.fs.openfiles import OpenFiles
from hwctl.stores.base import Artifact, CheckOptions, Death, Level, StalePolicy, State
from hwctl.stores.ktint8 import adoption, layout
from hwctl.stores.ktint8.adoption import Adoption, publish_staging
from hwctl.stores.ktint8.manifest import Schema
from hwctl.stores.ktint8.opening import Opening, open_tree
from hwctl.stores.ktint8.publish import publish_staged
from hwctl.stores.ktint8.staging import Order
from hwctl.stores.ktint8.staging_root import begin
from hwctl.stores.ktint8.store import KtInt8Store, open_store
from hwctl.weights.amx import Geometry, Kind, Piece, Projection

RUN = "fault-run-1"
LAYERS = (0, 1)
GEOMETRY = Geometry(hidden=64, intermediate=64, experts=1, parts=1)
ORDER = Order(RUN, layout.ready_name(RUN), GEOMETRY, LAYERS, "checkpoint:abc")
NO_GRACE = StalePolicy(older_than=0, leaseless=True)


@pytest.fixture
def base(shm: Path) -> Path:
    """In memory: thousands of fsyncs on a disk would be most of the time."""
    folder = shm / "base"
    folder.mkdir(mode=0o700)
    return folder


def publish(base: Path) -> None:
    """A conversion in one thread: staged, filled, published."""
    staging = begin(base, ORDER, Deadline.now(), workers=1)
    if staging is None:
        return
    with staging:
        for layer in staging.missing:
            writer = staging.layer(layer)
            for projection in Projection:
                pair = ((Kind.QUANT, make_ktint8.QUANT), (Kind.SCALE, make_ktint8.SCALE))
                pieces = [Piece(0, projection, kind, 0, memoryview(bytearray(data))) for kind, data in pair]
                writer.write(0, pieces)
            staging.finish(writer)
        publish_staged(staging, Schema.EPHEMERAL)


@pytest.fixture
def no_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody uses any file: a pass over /proc would be nearly all calls there are."""
    monkeypatch.setattr(adoption.OpenFiles, "read", lambda: OpenFiles({}, ()))


def consume(base: Path) -> None:
    with open_tree(base / ORDER.final, Opening(go_on=True)) as tree:
        for layer in (*tree.begun, *tree.left):
            tree.consume(layer)
        tree.finish()


def finish_staging(base: Path) -> None:
    publish_staging(base / layout.staging_name(RUN), RUN, Adoption(dead_producers=True))


def entry(base: Path, name: str) -> tuple[KtInt8Store, Artifact]:
    store = open_store(base)
    return store, next(artifact for artifact in store.scan() if artifact.path.name.startswith(name))


def set_aside(base: Path) -> None:
    store, artifact = entry(base, ORDER.final)
    if artifact.state is not State.QUARANTINED:
        store.set_aside(artifact, "tried")


def restore(base: Path) -> None:
    store, artifact = entry(base, ORDER.final)
    if artifact.state is State.QUARANTINED:
        store.restore(artifact)


def reclaim(base: Path) -> None:
    store = open_store(base)
    for artifact in store.scan():
        if artifact.state is State.STAGING:
            verdict = store.stale(artifact, NO_GRACE)
            assert verdict.death is Death.PROVEN, verdict
            with store.lease(artifact, Mode.EXCLUSIVE, Deadline.now()):
                store.remove(artifact)


def snapshot(base: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path in sorted(base.rglob("*")):
        name = str(path.relative_to(base))
        found[name] = path.read_bytes() if path.is_file() else path.stat().st_mode
    return found


def require_whole(base: Path) -> None:
    """The ready root is sound to the last byte."""
    store, artifact = entry(base, ORDER.final)
    report = store.check(artifact, Level.FULL, CheckOptions())
    assert report.valid, report.findings


def moments(work: Callable[[Path], object], prepared: Path, scratch: Path) -> range:
    """The moments to be killed at that the work has on a copy of what it starts from."""
    return moments_of(partial(work, fresh(prepared, scratch)))


def calls(work: Callable[[Path], object], prepared: Path, scratch: Path) -> range:
    """The calls to fail: of as many as the work makes on a copy of what it starts from."""
    return range(1, calls_of(partial(work, fresh(prepared, scratch))) + 2)


def fresh(prepared: Path, scratch: Path) -> Path:
    shutil.rmtree(scratch, ignore_errors=True)
    shutil.copytree(prepared, scratch, symlinks=True)
    scratch.chmod(0o700)
    return scratch


def prepare(base: Path, what: str) -> Path:
    if what == "ready":
        make_ktint8.make_ready(base, RUN, states=("ready",) * len(LAYERS))
    elif what == "staging":
        make_ktint8.make_staging(base, RUN, layers=len(LAYERS))
    elif what == "aside":
        make_ktint8.make_ready(base, RUN, states=("ready",) * len(LAYERS))
        set_aside(base)
    return base


@pytest.mark.parametrize("then", ["again", "reclaimed"])
def test_publishing_is_killed(base: Path, shm: Path, then: str) -> None:
    scratch = shm / "scratch"
    for n in moments(publish, base, scratch):
        place = fresh(base, scratch)
        killed_at(n, partial(publish, place))
        if (place / ORDER.final).exists():
            require_whole(place)
        if then == "reclaimed":
            reclaim(place)
            left = [name for name in os.listdir(place) if not name.startswith(".hwctl-probe")]
            assert set(left) <= {ORDER.final}
        publish(place)
        require_whole(place)


@pytest.mark.usefixtures("no_users")
def test_finishing_a_foreign_staging_tree_is_killed(base: Path, shm: Path) -> None:
    scratch = shm / "scratch"
    prepare(base, "staging")
    for n in moments(finish_staging, base, scratch):
        place = fresh(base, scratch)
        killed_at(n, partial(finish_staging, place))
        assert len(os.listdir(place)) == 1
        if (place / ORDER.final).exists():
            require_whole(place)
            continue
        # What was left says who made it, so that it could be reclaimed; or it is finished after all.
        store, artifact = entry(place, layout.staging_name(RUN))
        assert store.stale(artifact, NO_GRACE).death is Death.PROVEN
        finish_staging(place)
        require_whole(place)


def test_consuming_is_killed(base: Path, shm: Path) -> None:
    scratch = shm / "scratch"
    prepare(base, "ready")
    for n in moments(consume, base, scratch):
        place = fresh(base, scratch)
        killed_at(n, partial(consume, place))
        root = place / ORDER.final
        if not root.exists():
            continue
        manifest = root / make_ktint8.MANIFEST
        if not manifest.exists():
            assert os.listdir(root) == []  # between the last two steps of finish
            store, artifact = entry(place, ORDER.final)
            store.remove(artifact)
            continue
        for layer in json.loads(manifest.read_text())["layers"]:
            if layer["state"] == "ready":
                assert len(list((root / f"_layer_{layer['index']}").rglob("*.kt"))) == 6
        consume(place)
        assert not root.exists()


@pytest.mark.parametrize(
    ("work", "back", "what"), [(set_aside, restore, "ready"), (restore, set_aside, "aside")]
)
def test_quarantine_is_killed(
    base: Path, shm: Path, work: Callable[[Path], None], back: Callable[[Path], None], what: str
) -> None:
    scratch = shm / "scratch"
    prepare(base, what)
    for n in moments(work, base, scratch):
        place = fresh(base, scratch)
        killed_at(n, partial(work, place))
        trees = [path for path in place.rglob(ORDER.final) if path.is_dir()]
        assert len(trees) == 1
        assert len(list(trees[0].rglob("*.kt"))) == 12
        if what == "ready" and trees[0].parent == place:
            require_whole(place)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO], ids=["ENOSPC", "EIO"])
def test_publishing_meets_an_error(base: Path, shm: Path, number: int) -> None:
    scratch = shm / "scratch"
    for n in calls(publish, base, scratch):
        place = fresh(base, scratch)
        try:
            met = failing_at(n, number, partial(publish, place))
        except HwctlError as exc:
            assert isinstance(exc, NoRoom | IoFailed | Refused), exc
            left = [name for name in os.listdir(place) if not name.startswith(".hwctl-probe")]
            stuck = "cannot remove the staging tree" in exc.message
            assert left in ([], [ORDER.final]) or stuck, n
        else:
            if met is None:
                return
        if (place / ORDER.final).exists():
            require_whole(place)


@pytest.mark.usefixtures("no_users")
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO], ids=["ENOSPC", "EIO"])
def test_finishing_a_foreign_staging_tree_meets_an_error(base: Path, shm: Path, number: int) -> None:
    """A refusal leaves no trace."""
    scratch = shm / "scratch"
    prepare(base, "staging")
    for n in calls(finish_staging, base, scratch):
        place = fresh(base, scratch)
        before = snapshot(place)
        try:
            failing_at(n, number, partial(finish_staging, place))
        except HwctlError:
            if not (place / ORDER.final).exists():
                assert snapshot(place) == before, n
                finish_staging(place)
        require_whole(place)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO], ids=["ENOSPC", "EIO"])
def test_consuming_meets_an_error(base: Path, shm: Path, number: int) -> None:
    scratch = shm / "scratch"
    prepare(base, "ready")
    for n in calls(consume, base, scratch):
        place = fresh(base, scratch)
        try:
            failing_at(n, number, partial(consume, place))
        except HwctlError:
            root = place / ORDER.final
            assert root.exists(), n
            if (root / make_ktint8.MANIFEST).exists():
                assert not list(root.glob(".*.tmp")), n
                consume(place)
            else:
                store, artifact = entry(place, ORDER.final)
                store.remove(artifact)
        assert not (place / ORDER.final).exists(), n


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO], ids=["ENOSPC", "EIO"])
@pytest.mark.parametrize(("work", "what"), [(set_aside, "ready"), (restore, "aside")])
def test_quarantine_meets_an_error(
    base: Path, shm: Path, number: int, work: Callable[[Path], None], what: str
) -> None:
    scratch = shm / "scratch"
    prepare(base, what)
    for n in calls(work, base, scratch):
        place = fresh(base, scratch)
        try:
            failing_at(n, number, partial(work, place))
        except HwctlError:
            work(place)
        except StopIteration:
            continue  # the scan itself could not look at the entry
        trees = [path for path in place.rglob(ORDER.final) if path.is_dir()]
        assert len(trees) == 1, n
        assert len(list(trees[0].rglob("*.kt"))) == 12
