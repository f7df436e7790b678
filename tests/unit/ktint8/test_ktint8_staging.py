"""Staging and publishing: what is on disk at every moment, what a kill leaves and the next run keeps."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ktroot
import pytest

from hwctl.errors import Busy, IoFailed, NoRoom, Refused
from hwctl.fs.deadline import Deadline
from hwctl.fs.lock_table import Mode
from hwctl.fs.locks import acquire_dir
from hwctl.stores.ktint8 import layer_writer, layout, publish
from hwctl.stores.ktint8.layer_writer import LayerWriter
from hwctl.stores.ktint8.manifest import Schema
from hwctl.stores.ktint8.staging import Order, Staging
from hwctl.stores.ktint8.staging_root import begin
from hwctl.weights.amx import Geometry, Kind, Piece, Projection

RUN = "stage-run-1"
GEOMETRY = Geometry(hidden=64, intermediate=128, experts=2, parts=2)
ORDER = Order(RUN, layout.ready_name(RUN), GEOMETRY, (3, 4), "checkpoint:abc")


def pieces(layer: int, expert: int, cut: int = 1024) -> Iterator[Piece]:
    for part in range(GEOMETRY.parts):
        for projection in Projection:
            rows, columns = GEOMETRY.shape(projection)
            quant = ktroot.quant_bytes(rows, columns, layer + expert)
            scale = ktroot.scale_bytes(rows, layer)
            for kind, data in ((Kind.QUANT, quant), (Kind.SCALE, scale)):
                for offset in range(0, len(data), cut):
                    piece = memoryview(bytearray(data[offset : offset + cut]))
                    yield Piece(part, projection, kind, offset, piece)


def start(base: Path, order: Order = ORDER, wait: Deadline | None = None) -> Staging:
    staging = begin(base, order, wait or Deadline.now(), workers=1)
    assert staging is not None
    return staging


def fill_layer(staging: Staging, layer: int) -> None:
    writer = staging.layer(layer)
    for expert in range(GEOMETRY.experts):
        writer.write(expert, pieces(layer, expert))
    staging.finish(writer)


def fill(staging: Staging) -> None:
    for layer in staging.missing:
        fill_layer(staging, layer)


def left_by_a_killed_run(base: Path, finished: tuple[int, ...]) -> Path:
    """What SIGKILL leaves of a conversion that had finished some layers."""
    child = os.fork()
    if child == 0:
        staging = start(base)
        for layer in finished:
            fill_layer(staging, layer)
        os.kill(os.getpid(), signal.SIGKILL)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
    return base / layout.staging_name(RUN)


def lease_of(root: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((root / ktroot.LEASE).read_text())
    return loaded


def test_the_root_is_locked_leased_and_reserved_before_the_first_byte(base: Path) -> None:
    with start(base) as staging:
        root = staging.path
        assert root.stat().st_mode & 0o777 == 0o700
        fd = os.open(root, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        os.close(fd)
        lease = lease_of(root)
        assert lease["producer_pid"] == os.getpid()
        assert lease["hwctl"]["start_ticks"] > 0
        assert sorted(os.listdir(root)) == ["_layer_3.partial", "_layer_4.partial", ktroot.LEASE]
        reserved = [path.stat() for path in root.rglob("*.kt")]
        assert sum(st.st_size for st in reserved) == 2 * GEOMETRY.layer_bytes
        assert all(st.st_blocks > 0 for st in reserved)
    assert list(base.iterdir()) == []


def test_published(base: Path) -> None:
    with start(base) as staging:
        fill(staging)
        published = publish.publish_staged(staging, Schema.EPHEMERAL)
        fd = os.open(published.path, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(fd)
    assert [path.name for path in base.iterdir()] == [layout.ready_name(RUN)]
    data = (published.path / ktroot.MANIFEST).read_bytes()
    assert hashlib.sha256(data).hexdigest() == published.manifest_sha256
    document = json.loads(data)
    assert document["hwctl"]["source"] == "checkpoint:abc"
    for layer in document["layers"]:
        for file in layer["files"]:
            assert hashlib.sha256((published.path / file["path"]).read_bytes()).hexdigest() == file["sha256"]


def test_a_second_process_waits_and_then_joins(base: Path) -> None:
    with start(base) as staging:
        with pytest.raises(Busy):
            begin(base, ORDER, Deadline.now(), workers=1)
        fill(staging)
        publish.publish_staged(staging, Schema.EPHEMERAL)
    assert begin(base, ORDER, Deadline.now(), workers=1) is None


def test_finished_layers_of_a_killed_run_are_kept(base: Path) -> None:
    root = left_by_a_killed_run(base, (3,))
    assert sorted(os.listdir(root)) == ["_layer_3", "_layer_4.partial", ktroot.LEASE]
    before = {path: path.stat().st_ino for path in (root / "_layer_3").rglob("*.kt")}
    with start(base) as staging:
        assert staging.missing == (4,)
        assert {path: path.stat().st_ino for path in (root / "_layer_3").rglob("*.kt")} == before
        assert lease_of(root)["producer_pid"] == os.getpid()
        fill(staging)
        assert publish.publish_staged(staging, Schema.EPHEMERAL)
    assert not root.exists()


def flip(root: Path) -> None:
    path = next((root / "_layer_3").rglob("*quant*"))
    data = bytearray(path.read_bytes())
    data[7] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    "damage",
    [
        flip,
        lambda root: next((root / "_layer_3").rglob("*scale*")).unlink(),
        lambda root: (root / "_layer_3/_numa_0/x").touch(),
    ],
)
def test_a_finished_layer_that_changed_is_made_again(base: Path, damage: Callable[[Path], object]) -> None:
    root = left_by_a_killed_run(base, (3,))
    damage(root)
    (root / "stray").touch()
    with start(base) as staging:
        assert staging.missing == (3, 4)
        assert "stray" not in os.listdir(root)
        fill(staging)
        assert publish.publish_staged(staging, Schema.EPHEMERAL)


@pytest.mark.parametrize(
    "order",
    [
        Order(RUN, ORDER.final, GEOMETRY, (3, 4), "checkpoint:other"),
        Order(RUN, ORDER.final, Geometry(64, 128, 2, 1), (3, 4), "checkpoint:abc"),
    ],
)
def test_the_rest_of_another_conversion_is_left_alone(base: Path, order: Order) -> None:
    left_by_a_killed_run(base, (3,))
    before = ktroot.snapshot(base)
    with pytest.raises(Refused):
        start(base, order)
    assert ktroot.snapshot(base) == before


def test_a_tree_of_upstream_is_left_alone(base: Path) -> None:
    ktroot.staging(base, run=RUN)
    before = ktroot.snapshot(base)
    with pytest.raises(Refused):
        start(base)
    assert ktroot.snapshot(base) == before


def test_an_empty_root_without_a_lease_is_taken(base: Path) -> None:
    (base / layout.staging_name(RUN)).mkdir(mode=0o700)
    with start(base) as staging:
        assert staging.missing == (3, 4)


@pytest.mark.parametrize("mode", [0o770, 0o702])
def test_a_root_that_others_may_write_is_refused(base: Path, mode: int) -> None:
    root = base / layout.staging_name(RUN)
    root.mkdir()
    root.chmod(mode)
    with pytest.raises(Refused):
        start(base)
    assert root.exists()


def test_a_layer_with_a_file_nobody_wrote_is_not_finished(base: Path) -> None:
    with start(base) as staging:
        writer = staging.layer(3)
        writer.write(0, pieces(3, 0))
        with pytest.raises(IoFailed):
            staging.finish(writer)
        writer.release()


@pytest.mark.parametrize("broken", ["gap", "short", "long"])
def test_pieces_that_do_not_make_a_file_whole(base: Path, broken: str) -> None:
    def wrong() -> Iterator[Piece]:
        for number, piece in enumerate(pieces(3, 0)):
            if number == 1 and broken == "gap":
                yield Piece(piece.part, piece.projection, piece.kind, piece.offset + 1, piece.data[1:])
            elif number == 3 and broken == "short":
                continue
            elif number == 3 and broken == "long":
                yield Piece(
                    piece.part, piece.projection, piece.kind, piece.offset, memoryview(bytearray(2000))
                )
            else:
                yield piece

    with start(base) as staging:
        writer = staging.layer(3)
        with pytest.raises(IoFailed):
            writer.write(0, wrong())
        writer.release()
    assert list(base.iterdir()) == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_write_that_fails(base: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """PUB-05: a quota is like a full disk; the failing file is named and nothing stays."""

    def fail(_fd: int, _data: object, _offset: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(layer_writer, "write_all", fail)
    with start(base) as staging:
        writer: LayerWriter = staging.layer(3)
        with pytest.raises(IoFailed if code == errno.EIO else NoRoom) as caught:
            writer.write(0, pieces(3, 0))
        assert "INT8_gate_0" in caught.value.message
        assert code != errno.EDQUOT or "quota" in caught.value.message
        writer.release()
    assert list(base.iterdir()) == []


def test_a_tree_that_was_tampered_with_is_not_published(base: Path) -> None:
    with start(base) as staging:
        fill(staging)
        (staging.path / "_layer_3/_numa_0/x").touch()
        with pytest.raises(Exception, match="does not belong"):
            publish.publish_staged(staging, Schema.EPHEMERAL)
    assert list(base.iterdir()) == []


def test_a_name_that_is_taken_at_the_last_moment(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty directory put there in between is not replaced, and the lease is back in its place."""
    with start(base) as staging:
        fill(staging)
        before = ktroot.snapshot(base)
        monkeypatch.setattr(publish, "require_free", lambda *_: (base / ORDER.final).mkdir())
        with pytest.raises(Refused):
            publish.publish_staged(staging, Schema.EPHEMERAL)
        (base / ORDER.final).rmdir()
        assert ktroot.snapshot(base) == before
        monkeypatch.undo()
        assert publish.publish_staged(staging, Schema.EPHEMERAL)


def test_a_signal_right_after_the_rename_undoes_nothing(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Ended(BaseException):
        pass

    real = publish.rename_noreplace

    def rename(*names: Any) -> None:
        real(*names)
        raise Ended

    monkeypatch.setattr(publish, "rename_noreplace", rename)
    with pytest.raises(Ended), start(base) as staging:
        fill(staging)
        publish.publish_staged(staging, Schema.EPHEMERAL)
    ready = base / ORDER.final
    assert [path.name for path in base.iterdir()] == [ready.name]
    assert sorted(os.listdir(ready)) == ["_layer_3", "_layer_4", ktroot.MANIFEST]


def test_a_forked_child_that_ends_leaves_its_parents_tree_and_lock(base: Path) -> None:
    """LEA-01: only the process that made the staging removes it or lets its lock go."""
    with start(base) as staging:
        child = os.fork()
        if child == 0:
            staging.close()
            os._exit(0)
        os.waitpid(child, 0)
        assert staging.path.exists()
        with pytest.raises(Busy):
            acquire_dir(staging.path, Mode.SHARED, Deadline.now())


def test_a_shared_tree_can_be_read_by_others(base: Path) -> None:
    order = Order("persistent-1", "store", GEOMETRY, (3, 4), "checkpoint:abc", shared=True)
    before = os.umask(0o022)
    try:
        with start(base, order) as staging:
            assert staging.path.stat().st_mode & 0o777 == 0o700
            fill(staging)
            published = publish.publish_staged(staging, Schema.PERSISTENT)
    finally:
        os.umask(before)
    assert published.path == base / "store"
    for path in [published.path, *published.path.rglob("*")]:
        assert path.stat().st_mode & 0o777 == (0o755 if path.is_dir() else 0o644)
