"""The exact tree: what may lie in a root, and what every other entry is called."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import ktroot
import pytest

from hwctl.fs.paths import opened_dir
from hwctl.stores.ktint8.tree import Plan, judge_root, judge_tree
from hwctl.weights.amx import Geometry

GEOMETRY = Geometry(hidden=64, intermediate=128, experts=2, parts=2)
PLAN = Plan(GEOMETRY, (3, 4), documents=frozenset({ktroot.MANIFEST}))
PART = "_layer_3/_numa_0"
ONE = f"{PART}/INT8_gate_0_4096Byte_quant_.kt"


def judge(root: Path, plan: Plan = PLAN) -> list[tuple[str, str | None]]:
    with opened_dir(root) as root_fd:
        return [(finding.code, finding.file) for finding in judge_tree(root_fd, plan)]


def test_sound(base: Path) -> None:
    assert judge(ktroot.ready(base)) == []


def link_to(path: Path, target: Path) -> None:
    path.unlink()
    path.symlink_to(target)


def fifo_at(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


DAMAGE: list[tuple[Callable[[Path], object], str, str]] = [
    (lambda r: (r / ONE).unlink(), "missing-file", ONE),
    (lambda r: os.truncate(r / ONE, 4095), "file-size", ONE),
    (lambda r: link_to(r / ONE, r / "x"), "entry-type", ONE),
    (lambda r: fifo_at(r / ONE), "entry-type", ONE),
    (lambda r: os.link(r / ONE, r.parent / "second"), "hard-link", ONE),
    (lambda r: (r / "notes.txt").touch(), "extra-entry", "notes.txt"),
    (lambda r: (r / PART / "x").touch(), "extra-entry", f"{PART}/x"),
    (lambda r: (r / "_layer_3/x").mkdir(), "extra-entry", "_layer_3/x"),
    (lambda r: (r / "_layer_5").mkdir(), "extra-entry", "_layer_5"),
    (lambda r: (r / "_layer_5.partial").mkdir(), "layer-unfinished", "_layer_5.partial"),
    (
        lambda r: (r / f".{ktroot.MANIFEST}.17.tmp").touch(),
        "leftover-temporary",
        f".{ktroot.MANIFEST}.17.tmp",
    ),
    (lambda r: (r / "_layer_4").rename(r / "_layer_9"), "missing-directory", "_layer_4"),
    (lambda r: (r / "_layer_4/_numa_1").rename(r.parent / "gone"), "missing-directory", "_layer_4/_numa_1"),
    (lambda r: (r / PART).chmod(0o720), "mode", PART),
    (lambda r: (r / "_layer_3").chmod(0o702), "mode", "_layer_3"),
]


@pytest.mark.parametrize(("damage", "code", "file"), DAMAGE)
def test_damage(base: Path, damage: Callable[[Path], object], code: str, file: str) -> None:
    root = ktroot.ready(base)
    damage(root)
    assert (code, file) in judge(root)


def test_everything_is_said(base: Path) -> None:
    root = ktroot.ready(base)
    names = sorted(os.listdir(root / PART))
    for name in names[:3]:
        (root / PART / name).unlink()
    (root / "notes.txt").touch()
    (root / "_layer_4/_numa_1/x").touch()
    codes = [code for code, _file in judge(root)]
    assert codes == ["extra-entry", *["missing-file"] * 3, "extra-entry"]


def test_an_extra_file_does_not_hide_a_missing_one(base: Path) -> None:
    root = ktroot.ready(base)
    (root / ONE).rename(root / PART / "other")
    assert judge(root) == [("missing-file", ONE), ("extra-entry", f"{PART}/other")]


def test_a_linked_layer_is_not_walked_into(base: Path) -> None:
    root = ktroot.ready(base)
    (root / "_layer_3").rename(base / "outside")
    (base / "outside/stranger").touch()
    (root / "_layer_3").symlink_to(base / "outside")
    assert judge(root) == [("entry-type", "_layer_3")]


def test_of_a_partial_layer_any_files_may_be_left(base: Path) -> None:
    root = ktroot.ready(base)
    plan = Plan(GEOMETRY, (4,), (3,), documents=frozenset({ktroot.MANIFEST}))
    (root / ONE).unlink()
    assert judge(root, plan) == []
    os.truncate(root / PART / "INT8_up_0_4096Byte_quant_.kt", 1)
    assert judge(root, plan) == [("file-size", f"{PART}/INT8_up_0_4096Byte_quant_.kt")]


def test_a_consumed_layer_must_be_gone(base: Path) -> None:
    root = ktroot.ready(base)
    plan = Plan(GEOMETRY, (4,), documents=frozenset({ktroot.MANIFEST}))
    assert judge(root, plan) == [("extra-entry", "_layer_3")]


def test_a_store_that_is_shared_may_have_folders_that_others_write(base: Path) -> None:
    root = ktroot.persistent(base)
    plan = Plan(GEOMETRY, (3, 4), documents=frozenset({ktroot.MANIFEST_V2}), private=False)
    (root / "_layer_3").chmod(0o775)
    assert judge(root, plan) == []


@pytest.mark.needs_root
@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_owners(base: Path) -> None:
    root = ktroot.ready(base)
    os.chown(root / ONE, 65534, 65534)
    os.chown(root / "_layer_4", 65534, 65534)
    assert judge(root) == [("owner", "_layer_4"), ("owner", ONE)]


@pytest.mark.parametrize(("mode", "codes"), [(0o700, []), (0o755, []), (0o770, ["mode"]), (0o702, ["mode"])])
def test_root_modes(base: Path, mode: int, codes: list[str]) -> None:
    root = ktroot.ready(base)
    root.chmod(mode)
    st = root.stat()
    assert [finding.code for finding in judge_root(st, st.st_uid)] == codes
    assert judge_root(st, None) == []


def test_root_owner_and_kind(base: Path) -> None:
    st = base.stat()
    assert [finding.code for finding in judge_root(st, st.st_uid + 1)] == ["owner"]
    (base / "f").touch()
    assert stat.S_ISREG((base / "f").stat().st_mode)
    assert [finding.code for finding in judge_root((base / "f").stat(), None)] == ["root-type"]
