"""Consuming: what goes, what stays, and who may do it."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ktroot
import pytest

from hwctl.errors import Busy, Damaged, HwctlError, NoRoom, NotFound, Refused, Usage
from hwctl.fs.deadline import Deadline
from hwctl.fs.lock_table import Mode
from hwctl.fs.locks import Held, acquire_dir
from hwctl.stores.ktint8 import deletion
from hwctl.stores.ktint8.expect import Expectation
from hwctl.stores.ktint8.opening import Opening, consuming, open_tree

ONE = "_layer_3/_numa_0/INT8_gate_0_4096Byte_quant_.kt"


def manifest(root: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((root / ktroot.MANIFEST).read_text())
    return loaded


def states(root: Path) -> list[str]:
    return [layer["state"] for layer in manifest(root)["layers"]]


def test_one_layer_and_then_the_other(base: Path) -> None:
    root = ktroot.ready(base, edit=lambda d: d.update(note="kept"))
    with open_tree(root, Opening()) as tree:
        assert tree.left == (3, 4)
        removed = tree.consume(4)
        assert removed.files == 24
        assert removed.bytes_freed > 0
        assert states(root) == ["ready", "consumed"]
        assert manifest(root)["note"] == "kept"
        assert sorted(os.listdir(root)) == ["_layer_3", ktroot.MANIFEST]
        assert tree.left == (3,)
        with pytest.raises(Refused):
            tree.finish()
        tree.consume(3)
        tree.finish()
        assert not root.exists()
        with pytest.raises(Refused):
            tree.consume(3)


@pytest.mark.parametrize("layer", [4, 9, -1])
def test_a_layer_that_is_not_there(base: Path, layer: int) -> None:
    with open_tree(ktroot.ready(base), Opening()) as tree:
        if layer == 4:
            tree.consume(4)
        with pytest.raises(NotFound):
            tree.consume(layer)


DAMAGE: list[Callable[[Path], object]] = [
    lambda r: (r / ONE).unlink(),
    lambda r: os.truncate(r / ONE, 1),
    lambda r: (r / "_layer_3/_numa_0/late").touch(),
    lambda r: (r / "_layer_3/late").mkdir(),
    lambda r: (r / "_layer_3").rename(r.parent / "moved"),
]


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_layer_that_changed_since_it_was_opened_stays(base: Path, damage: Callable[[Path], object]) -> None:
    root = ktroot.ready(base)
    with open_tree(root, Opening()) as tree:
        damage(root)
        before = ktroot.snapshot(base)
        with pytest.raises(Damaged):
            tree.consume(3)
        assert ktroot.snapshot(base) == before
        tree.consume(4)


def test_a_layer_behind_a_link_stays(base: Path) -> None:
    root = ktroot.ready(base)
    with open_tree(root, Opening()) as tree:
        (root / "_layer_3").rename(base / "outside")
        (root / "_layer_3").symlink_to(base / "outside")
        before = ktroot.snapshot(base)
        with pytest.raises(Damaged):
            tree.consume(3)
        assert ktroot.snapshot(base) == before


def test_validate_reads_the_bytes(base: Path) -> None:
    root = ktroot.ready(base)
    with (root / ONE).open("r+b") as file:
        file.write(b"\x80")
    with open_tree(root, Opening()) as tree:
        assert tree.validate([4]) > 0
        with pytest.raises(Damaged) as caught:
            tree.validate([3, 4])
        assert [finding.code for finding in caught.value.findings] == ["code-out-of-range"]
        assert tree.left == (3, 4)


def test_going_on_with_a_half_consumed_tree(base: Path) -> None:
    root = ktroot.ready(base)
    with open_tree(root, Opening()) as tree:
        tree.consume(3)
    with pytest.raises(Damaged):
        open_tree(root, Opening())
    with open_tree(root, Opening(go_on=True)) as tree:
        assert tree.left == (4,)
        tree.consume(4)
        tree.finish()
    assert not root.exists()


def test_going_on_where_a_deletion_was_killed(base: Path) -> None:
    def edit(document: dict[str, Any]) -> None:
        document["layers"][0]["state"] = "consuming"

    root = ktroot.ready(base, edit=edit)
    (root / ONE).unlink()
    with open_tree(root, Opening(go_on=True)) as tree:
        assert (tree.begun, tree.left) == ((3,), (4,))
        tree.consume(3)
        assert states(root) == ["consumed", "ready"]


def test_a_tree_that_waits_for_its_finish(base: Path) -> None:
    root = ktroot.ready(base)
    with open_tree(root, Opening()) as tree:
        for layer in tree.left:
            tree.consume(layer)
    with open_tree(root, Opening(go_on=True)) as tree:
        assert tree.left == tree.begun == ()
        tree.finish()
    assert not root.exists()


def test_finish_looks_for_strangers_first(base: Path) -> None:
    root = ktroot.ready(base)
    with open_tree(root, Opening()) as tree:
        tree.consume(3)
        tree.consume(4)
        (root / "late.txt").touch()
        with pytest.raises(Refused, match="late"):
            tree.finish()
        assert states(root) == ["consumed", "consumed"]
        (root / "late.txt").unlink()
        ktroot.dump(root / f".{ktroot.MANIFEST}.{ktroot.DEAD_PID}.tmp", "{")
        tree.finish()
    assert not root.exists()


def test_cleanup_leaves_strangers_and_then_the_root(base: Path) -> None:
    root = ktroot.ready(base)
    (base / "outside").mkdir()
    (base / "outside/keep").write_text("keep")
    with open_tree(root, Opening()) as tree:
        tree.consume(3)
        (root / "_layer_4/_numa_0/stranger").touch()
        (root / "_layer_4/link").symlink_to(base / "outside")
        tree.cleanup()
        tree.cleanup()
    left = sorted(str(path.relative_to(root)) for path in root.rglob("*"))
    assert left == [
        "_layer_4",
        "_layer_4/_numa_0",
        "_layer_4/_numa_0/stranger",
        "_layer_4/link",
        ktroot.MANIFEST,
    ]
    assert states(root) == ["consumed", "ready"]
    assert (base / "outside/keep").read_text() == "keep"


def test_cleanup_of_a_whole_tree(base: Path) -> None:
    root = ktroot.ready(base)
    with consuming(root, Opening()) as tree:
        assert tree.left == (3, 4)
    assert not root.exists()
    assert list(base.iterdir()) == []


def test_cleanup_after_an_error(base: Path) -> None:
    root = ktroot.ready(base)
    with pytest.raises(RuntimeError), consuming(root, Opening()) as tree:
        tree.consume(3)
        raise RuntimeError("the loader failed")
    assert not root.exists()


def test_no_room_for_the_manifest(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = ktroot.ready(base)
    with open_tree(root, Opening()) as tree:

        def full(*_args: object, **_more: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(deletion, "replace_document", full)
        before = ktroot.snapshot(base)
        with pytest.raises(NoRoom):
            tree.consume(3)
        assert ktroot.snapshot(base) == before
        # Giving a whole tree up needs no room at all.
        tree.cleanup()
    assert not root.exists()


def test_in_a_forked_child_nothing_is_deleted_or_unlocked(base: Path) -> None:
    root = ktroot.ready(base)
    with open_tree(root, Opening()) as tree:
        child = os.fork()
        if child == 0:
            code = 0
            try:
                tree.consume(3)
                code = 1
            except Refused:
                tree.cleanup()
                tree.close()
            os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        assert tree.left == (3, 4)
        assert (root / ONE).exists()
        with pytest.raises(Busy):
            acquire_dir(root, Mode.SHARED, Deadline.now())


def test_a_thread_may_consume(base: Path) -> None:
    root = ktroot.ready(base)
    failures: list[HwctlError] = []

    def work() -> None:
        try:
            with consuming(root, Opening()) as tree:
                tree.consume(3)
        except HwctlError as exc:
            failures.append(exc)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert failures == []
    assert not root.exists()


def test_an_inherited_lease_is_converted(base: Path) -> None:
    root = ktroot.ready(base)
    held: Held = acquire_dir(root, Mode.SHARED, Deadline.now())
    held.inheritable()
    with open_tree(root, Opening(lease_fds=(9999, held.fd))) as tree:
        with pytest.raises(Busy):
            acquire_dir(root, Mode.SHARED, Deadline.now())
        tree.consume(3)
    held.fd = -1


def test_an_inherited_lease_that_others_share(base: Path) -> None:
    root = ktroot.ready(base)
    other = acquire_dir(root, Mode.SHARED, Deadline.now())
    held = acquire_dir(root, Mode.SHARED, Deadline.now())
    with pytest.raises(Busy):
        open_tree(root, Opening(lease_fds=(held.fd,)))
    other.release()
    held.release()


def test_a_tree_opened_to_be_looked_at(base: Path) -> None:
    root = ktroot.ready(base)
    with (
        acquire_dir(root, Mode.SHARED, Deadline.now()),
        open_tree(root, Opening(exclusive=False)) as tree,
    ):
        tree.validate(tree.left)
        with pytest.raises(Refused):
            tree.consume(3)
        with pytest.raises(Refused):
            tree.cleanup()
    assert (root / ONE).exists()


def test_what_cannot_be_opened(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = ktroot.ready(base)
    with pytest.raises(NotFound):
        open_tree(base / "kt-int8-not-there", Opening())
    for name in ("kt-int8-x", f"{root.name}.staging", "else"):
        with pytest.raises(HwctlError):
            open_tree(base / name, Opening())
    with pytest.raises(Damaged):
        open_tree(root, Opening(Expectation(parts=1)))
    monkeypatch.chdir(base)
    with pytest.raises(Usage):
        open_tree(Path(root.name), Opening())
