"""What a command without a PATH sweeps: stores that nobody named, and that may be anybody's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import make_hostweights
import private_mounts
import pytest
from run_hwctl import NOBODY, hwctl_

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make stores of two users")


@pytest.fixture
def memory() -> Iterator[Path]:
    """A /dev/shm of this test's own."""
    if (reason := private_mounts.why_not()) is not None:
        pytest.skip(reason)
    with private_mounts.tmpfs(Path("/dev/shm"), "size=8m,mode=1777") as point:
        yield point


@pytest.fixture
def theirs(memory: Path) -> tuple[Path, Path]:
    """Two stores of root, the first and the last by name: one that others may enter but not list, and one of
    which they see all but what its folders hold."""
    closed = make_hostweights.make_store(memory / "a-closed")
    half = make_hostweights.make_store(memory / "z-half")
    for root, mode in ((closed, 0o711), (half, 0o755)):
        make_hostweights.make_artifact(root, 1)
        root.chmod(mode)
    return closed, half


@pytest.fixture
def ours(memory: Path) -> Path:
    """A store of NOBODY: an artifact, what a dead producer left, and one entry that is set aside."""
    root = make_hostweights.make_store(memory / "m-ours")
    make_hostweights.make_artifact(root, 1)
    make_hostweights.make_staging(root, 2)
    folder = make_hostweights.make_artifact(root, 3)
    for path in [root, *root.rglob("*")]:
        os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    run = hwctl_("quarantine", folder, "--reason", "a test", "--yes", uid=NOBODY)
    assert run.status == 0, run
    return root


def test_inspect_shows_the_rest(theirs: tuple[Path, Path], ours: Path) -> None:
    run = hwctl_("inspect", "--json", uid=NOBODY)
    assert run.status == 0, run
    states = sorted(row["state"] for row in run.results if row["store"] == str(ours))
    assert states == ["quarantined", "ready", "staging"]
    assert not any(row["store"] == str(theirs[0]) for row in run.results)
    assert any(w.startswith(f"{theirs[0]}: left alone: ") for w in run.document["warnings"])

    text = hwctl_("inspect", uid=NOBODY)
    assert text.status == 0 and text.out.count(str(ours)) == 3
    assert f"warning: {theirs[0]}: left alone: " in text.err and "ermission denied" in text.err


def test_reclaim_stale_takes_its_own(theirs: tuple[Path, Path], ours: Path) -> None:
    run = hwctl_("reclaim-stale", "-n", "--json", uid=NOBODY)
    assert run.status == 0, run
    (row,) = (row for row in run.results if row["outcome"] == "planned")
    assert row["store"] == str(ours)
    assert any(w.startswith(f"{theirs[0]}: left alone: ") for w in run.document["warnings"])
    done = hwctl_("reclaim-stale", "-y", uid=NOBODY)
    assert done.status == 0 and list((ours / "tmp").iterdir()) == []


def test_restore_finds_a_name_beside_them(theirs: tuple[Path, Path], ours: Path) -> None:
    key = make_hostweights.key_of(3)
    run = hwctl_("quarantine", "--restore", key, "--yes", uid=NOBODY)
    assert run.status == 0, run
    assert (ours / "artifacts" / key).is_dir()
    missing = hwctl_("quarantine", "--restore", "0" * 64, "--yes", uid=NOBODY)
    assert missing.status == 10
    assert f"{theirs[0]}: left alone: " in missing.err


def test_roots_are_named_by_whoever_set_them(theirs: tuple[Path, Path], ours: Path) -> None:
    roots = {"HWCTL_ROOTS": f"{theirs[0]}:{ours}"}
    for verb in (["inspect"], ["reclaim-stale", "-n"]):
        run = hwctl_(*verb, "--json", uid=NOBODY, env=roots)
        assert run.status == 15, run
        assert str(ours) in {row["store"] for row in run.results}
        assert run.error["path"].startswith(str(theirs[0]))


def test_nothing_but_others_stores_is_not_nothing(theirs: tuple[Path, Path]) -> None:
    run = hwctl_("inspect", uid=NOBODY)
    assert run.status == 0 and "no stores in /dev/shm" not in run.err
    assert f"{theirs[0]}: left alone: " in run.err
