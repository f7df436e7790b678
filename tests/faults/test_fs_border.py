"""Mounts: a removal never crosses one, and the file system of a path is the one that shows there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import make_hostweights
import make_ktint8
import private_mounts
import pytest
from run_hwctl import hwctl_

from hwctl.errors import Refused
from hwctl.fs import remove
from hwctl.fs.mounts import mount_of, mounted_in, mounts
from hwctl.fs.paths import opened_dir
from hwctl.fs.remove import remove_tree
from hwctl.fs.space import room
from hwctl.stores.ktint8.deletion import remove_listed


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    if reason := private_mounts.why_not():
        pytest.skip(reason)
    with private_mounts.tmpfs(tmp_path / "place", "size=8m") as point:
        yield point


@pytest.fixture
def tree(place: Path) -> Path:
    tree = place / "tree"
    (tree / "a" / "b").mkdir(parents=True)
    (tree / "a" / "file").write_bytes(b"x")
    (tree / "z").write_bytes(b"x")
    (place / "other").mkdir()
    (place / "other" / "precious").write_bytes(b"x")
    return tree


def mount_inside(kind: str, tree: Path) -> None:
    if kind == "tmpfs":
        private_mounts.mount("-t", "tmpfs", "-o", "size=64k", "hwctl-test", tree / "a" / "b")
        (tree / "a" / "b" / "precious").write_bytes(b"x")
    elif kind == "bind":
        private_mounts.mount("--bind", tree.parent / "other", tree / "a" / "b")
    else:
        private_mounts.mount("--bind", tree.parent / "other" / "precious", tree / "a" / "file")


def names(tree: Path) -> list[str]:
    return sorted(os.fspath(path.relative_to(tree)) for path in tree.rglob("*"))


@pytest.mark.parametrize("kind", ["tmpfs", "bind", "file"])
def test_a_mount_inside_is_refused_before_the_first_unlink(tree: Path, kind: str) -> None:
    mount_inside(kind, tree)
    before = names(tree)
    with opened_dir(tree.parent) as fd, pytest.raises(Refused, match="does not cross mounts"):
        remove_tree(fd, "tree")
    assert names(tree) == before


def test_the_names_of_a_folder_that_are_mount_points(place: Path) -> None:
    (place / "deeper").mkdir()
    for name in ("odd name\\\n", "plain", "deeper/file"):
        (place / name).write_bytes(b"x")
    with opened_dir(place) as fd:
        assert mounted_in(fd) == frozenset()
        for name in ("odd name\\\n", "deeper/file"):
            private_mounts.mount("--bind", place / name, place / name)
        assert mounted_in(fd) == {"odd name\\\n"}


def test_a_kt_int8_tree_with_a_mount_in_it_stays_ready(place: Path) -> None:
    """Its manifest is rewritten before the first file goes, and must not be for a removal that is refused."""
    tree = make_ktint8.make_ready(place, "mounted-1", states=("ready", "ready"))
    (place / "other").mkdir()
    private_mounts.mount("--bind", place / "other", tree / "_layer_1" / "_numa_0")
    manifest = (tree / make_ktint8.MANIFEST).read_bytes()
    before = names(tree)
    assert hwctl_("evict", tree, "-y").status == 12
    assert names(tree) == before
    assert (tree / make_ktint8.MANIFEST).read_bytes() == manifest


@pytest.mark.parametrize("words", [("evict",), ("quarantine", "--reason", "x")])
def test_what_is_mounted_over_an_artifact_keeps_its_place_and_modes(
    place: Path, words: tuple[str, ...]
) -> None:
    artifact = make_hostweights.make_artifact(make_hostweights.make_store(place / "store"), 0)
    (place / "other").mkdir(mode=0o755)
    private_mounts.mount("--bind", place / "other", artifact)
    assert hwctl_(*words, artifact, "-y").status == 12
    assert (place / "other").stat().st_mode & 0o7777 == 0o755


@pytest.mark.parametrize("kind", ["tmpfs", "bind", "file"])
def test_a_mount_that_comes_meanwhile_is_not_entered(
    tree: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mount_inside(kind, tree)
    monkeypatch.setattr(remove, "mounts", lambda: ())
    before = len(os.listdir("/proc/self/fd"))
    with opened_dir(tree.parent) as fd, pytest.raises(Refused, match="does not cross mounts"):
        remove_tree(fd, "tree")
    assert len(os.listdir("/proc/self/fd")) == before
    if kind == "tmpfs":
        assert (tree / "a" / "b" / "precious").exists()
    assert (tree.parent / "other" / "precious").exists()


def test_a_tree_that_is_a_mount_itself_is_refused(tree: Path) -> None:
    private_mounts.mount("--bind", tree.parent / "other", tree)
    with opened_dir(tree.parent) as fd, pytest.raises(Refused, match="is a mount point"):
        remove_tree(fd, "tree")
    assert (tree / "precious").exists()


def test_a_finished_tree_that_is_a_mount_itself_keeps_what_its_manifest_lists(place: Path) -> None:
    made = make_ktint8.make_ready(place, "border-run-1")
    root = place / "moved"
    root.mkdir(mode=0o700)
    private_mounts.mount("--bind", made, root)
    before = names(root)
    with opened_dir(place) as fd, pytest.raises(Refused, match="is a mount point"):
        remove_listed(fd, root.name, None, ephemeral=True)
    assert names(made) == before


def test_a_similar_name_is_no_mount_inside(tree: Path) -> None:
    (tree.parent / "tree.bak").mkdir()
    private_mounts.mount("-t", "tmpfs", "hwctl-test", tree.parent / "tree.bak")
    with opened_dir(tree.parent) as fd:
        assert remove_tree(fd, "tree").files == 2


def test_of_stacked_mounts_the_upper_one_shows(place: Path) -> None:
    lower = mount_of(place)
    private_mounts.mount("-t", "tmpfs", "-o", "size=64k", "upper", place)
    upper = mount_of(place / "not" / "yet")
    assert (lower.source, upper.source) == (b"hwctl-test", b"upper") and lower.point == upper.point
    assert room(place).total_bytes == 64 << 10


def test_a_mount_below_a_covered_folder_does_not_show(place: Path) -> None:
    (place / "sub").mkdir()
    private_mounts.mount("-t", "tmpfs", "hidden", place / "sub")
    private_mounts.mount("-t", "tmpfs", "upper", place)
    (place / "sub").mkdir()
    assert b"hidden" in [mount.source for mount in mounts()]
    assert mount_of(place / "sub").source == b"upper"


def test_mount_points_need_not_be_utf8(place: Path) -> None:
    point = Path(os.fsdecode(os.fsencode(place) + b"/caf\xe9 \\x\n"))
    point.mkdir()
    private_mounts.mount("-t", "tmpfs", "odd", point)
    assert mount_of(point).point == os.fsencode(point)
    with opened_dir(place) as fd, pytest.raises(Refused):
        remove_tree(fd, point.name)
