"""What happens between the plan and the deed: the look under the lock is a new one, and is told in full."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import holders
import make_hostweights
import make_ktint8
import make_pageweights
import pytest
from run_hwctl import NOBODY, asked, command, hwctl_

from hwctl.cli import text

RUN = "run-000001"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can do this")

VERBS = {
    "evict": (("--all",), 11),
    "reclaim-stale": (("--ready", "--older-than", "0.01s"), 0),
    "quarantine": (("--reason", "x"), 11),
}


def one_of(tree: Path) -> Path:
    return next(tree.rglob("*.kt"))


@pytest.mark.parametrize("verb", VERBS)
def test_a_tree_that_is_mapped_while_we_are_asked_is_kept(shm: Path, verb: str) -> None:
    options, status = VERBS[verb]
    tree = make_ktint8.make_ready(shm, RUN)
    path = tree if verb == "quarantine" else shm
    with asked(verb, path, *options) as yes, holders.mapped(one_of(tree)) as pid:
        run = yes()
    assert run.status == status
    assert run.out.startswith("skipped") and f"pid {pid} (uid {os.geteuid()}, " in run.out
    assert "running for " in run.out
    assert make_ktint8.MANIFEST in os.listdir(tree)


@pytest.mark.parametrize("kind", ["hostweights", "pageweights", "ktint8-staging"])
def test_what_is_mapped_while_we_are_asked_is_not_called_freed(tmp_path: Path, kind: str) -> None:
    """None of them takes it for a sign of life, but the room is not free yet (EVI-03)."""
    root = tmp_path / "root"
    if kind == "hostweights":
        make_hostweights.make_store(root)
        make_hostweights.make_artifact(root, 0)
        file = next((root / "artifacts").rglob("*.safetensors"))
    elif kind == "pageweights":
        make_pageweights.make_store(root)
        make_pageweights.make_artifact(root, 0)
        file = next(root.glob("*.safetensors"))
    else:
        root.mkdir()
        file = one_of(make_ktint8.make_staging(root, RUN, process=make_ktint8.dead_process()))
    blocks = file.stat().st_blocks * 512
    verb = ("reclaim-stale", root) if kind == "ktint8-staging" else ("evict", root, "--all")
    with asked(*verb) as yes, holders.mapped(file):
        run = yes()
    assert run.status == 0
    assert f"{text.size(blocks)} not free yet: still open or mapped" in run.out


def test_a_holder_that_was_met_while_planning_is_told_in_full(shm: Path) -> None:
    tree = make_ktint8.make_ready(shm, RUN)
    with holders.mapped(one_of(tree)) as pid:
        run = hwctl_("evict", tree, "-y", "--json")
    assert run.status == 11
    (row,) = run.results
    found = {holder["mode"]: holder for holder in row["error"]["details"]["holders"]}
    assert found["mapped"]["pid"] == pid and found["mapped"]["uid"] == os.geteuid()
    assert found["mapped"]["age_seconds"] >= 0 and found["mapped"]["pid_ns"] is None
    assert run.error["details"] == row["error"]["details"]
    with holders.locked(tree) as pid:
        (row,) = hwctl_("evict", tree, "-y", "--json").results
    (holder,) = row["error"]["details"]["holders"]
    assert (holder["pid"], holder["mode"]) == (pid, "shared")


def successor(path: Path) -> None:
    aside = path.with_name(f"{path.name}.old")
    shutil.copytree(path, aside, copy_function=shutil.copy2)
    before = path.stat()
    path.chmod(0o755)
    for file in path.iterdir():
        file.unlink()
    path.rmdir()
    aside.rename(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def denied(path: Path) -> None:
    run = hwctl_("inspect", path, "--json")
    assert run.results[0]["state"] == "ready"
    path.chmod(path.stat().st_mode | 0o1000)


@pytest.mark.parametrize(
    ("change", "said"),
    [(successor, "another entry has taken its name"), (denied, "its state is denied now, it was ready")],
)
def test_only_what_was_planned_on_is_acted_on(store: Path, change: Callable[[Path], None], said: str) -> None:
    """EVI-05: same inode, same state; nothing of its clock tells."""
    artifact = make_hostweights.make_artifact(store, 0)
    with asked("evict", artifact) as yes:
        change(artifact)
        run = yes()
    assert run.out.startswith("skipped") and said in run.out
    assert artifact.is_dir()


# A process that cannot be looked into

_UNDUMPABLE = """
import ctypes, mmap, os, sys
libc = ctypes.CDLL(None)
fd = os.open(sys.argv[1], os.O_RDONLY)
mapped = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
assert libc.prctl(4, 0, 0, 0, 0) == 0
print("hidden", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def hidden(shm: Path) -> Callable[[Path], subprocess.Popen[str]]:
    """Starts a process of nobody's that has a file mapped and that nobody but root can look into."""

    def begin(file: Path) -> subprocess.Popen[str]:
        python = command(uid=NOBODY)[0]
        process = subprocess.Popen(
            [python, "-S", "-c", _UNDUMPABLE, str(file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            user=NOBODY,
            group=NOBODY,
            extra_groups=[],
        )
        assert process.stdout is not None and process.stdout.readline() == "hidden\n"
        return process

    return begin


@needs_root
@pytest.mark.parametrize("verb", ["evict", "quarantine", "reclaim-stale"])
def test_a_process_that_cannot_be_looked_into_is_no_proof_of_disuse(
    shm: Path, hidden: Callable[[Path], subprocess.Popen[str]], verb: str
) -> None:
    shm.chmod(0o1777)
    tree = make_ktint8.make_ready(shm, RUN)
    make_ktint8.give_away(tree, NOBODY)
    options = {"quarantine": ("--reason", "x"), "reclaim-stale": VERBS["reclaim-stale"][0]}.get(verb, ())
    process = hidden(one_of(tree))
    try:
        run = hwctl_(verb, tree, *options, "-y", uid=NOBODY)
        # The kernel is asked, too, who needs no /proc for it: somebody has it open, whoever that is.
        assert (run.status, run.out.startswith("skipped")) == (12 if verb == "reclaim-stale" else 11, True)
        why = f"pid {process.pid} of its owner cannot be looked into"
        assert (why if verb == "reclaim-stale" else "a process that is not visible here") in run.out
        assert tree.exists()
    finally:
        process.communicate()
    assert hwctl_(verb, tree, *options, "-y", uid=NOBODY).status == 0
    assert not tree.exists()


@needs_root
def test_all_users_of_a_base_share_its_quarantine(shm: Path) -> None:
    shm.chmod(0o1777)
    mine, theirs = make_ktint8.make_ready(shm, RUN), make_ktint8.make_ready(shm, "run-000002")
    make_ktint8.give_away(theirs, NOBODY)
    third = make_ktint8.make_ready(shm, "run-000003")
    make_ktint8.give_away(third, 1234)
    folder = shm / ".hwctl-quarantine"
    assert hwctl_("quarantine", theirs, "--reason", "x", "-y", uid=NOBODY).status == 0
    assert folder.stat().st_uid == NOBODY and folder.stat().st_mode & 0o7777 == 0o1777
    assert hwctl_("quarantine", third, "--reason", "x", "-y", "--other-users").status == 0
    assert hwctl_("quarantine", mine, "--reason", "x", "-y").status == 0
    assert {path.stat().st_uid for path in folder.iterdir()} == {0, NOBODY, 1234}
    assert hwctl_("quarantine", shm, "--restore", "run-000003", "-y", "--other-users").status == 0
    assert third.stat().st_uid == 1234
    assert hwctl_("evict", shm, "--quarantined", "--all", "-y", uid=NOBODY).status == 0
    assert {path.stat().st_uid for path in folder.iterdir()} == {0}


@needs_root
def test_a_quarantine_that_its_owner_has_closed_is_not_used(shm: Path) -> None:
    shm.chmod(0o1777)
    folder = shm / ".hwctl-quarantine"
    folder.mkdir(mode=0o755)
    os.chown(folder, NOBODY, NOBODY)
    tree = make_ktint8.make_ready(shm, RUN)
    run = hwctl_("quarantine", tree, "--reason", "x", "-y")
    assert run.status == 12 and f"belongs to uid {NOBODY}" in run.out
    assert tree.exists()


@needs_root
def test_a_tree_in_a_folder_that_its_owner_may_not_write_is_left_whole(shm: Path) -> None:
    base = shm
    base.chmod(0o755)
    tree = make_ktint8.make_staging(base, RUN, process=make_ktint8.dead_process(), uid=NOBODY)
    make_ktint8.give_away(tree, NOBODY)
    before = sorted(tree.rglob("*"))
    run = hwctl_("reclaim-stale", tree, "-y", "--other-users")
    assert run.status == 12 and "may not take anything out of" in run.out
    assert sorted(tree.rglob("*")) == before
    base.chmod(0o777)
    assert hwctl_("reclaim-stale", tree, "-y", "--other-users").status == 0
    assert not tree.exists()


@pytest.mark.parametrize("ahead", [10.0**7, 10.0**9])
def test_a_time_to_come_keeps_no_dead_tree(shm: Path, ahead: float) -> None:
    tree = make_ktint8.make_staging(shm, RUN, pid=4194000)
    file = one_of(tree)
    now = file.stat().st_mtime
    os.utime(file, (now + ahead, now + ahead))
    run = hwctl_("reclaim-stale", tree, "-y", "--older-than", "0.001s")
    assert run.status == 0, run.out
    assert not tree.exists()


def test_a_stranger_in_a_tree_is_seen_before_anything_is_deleted(shm: Path) -> None:
    tree = make_ktint8.make_ready(shm, RUN)
    (tree / "stray.bin").write_bytes(b"x")
    half = make_ktint8.make_ready(shm, "run-000002", states=("consuming",))
    (half / "stray.bin").write_bytes(b"x")
    before = sorted(shm.rglob("*"))
    run = hwctl_("evict", shm, "--all", "-y")
    assert run.status == 12 and "stray.bin" in run.out
    assert hwctl_("evict", tree, "-y").status == 12
    for paths, status in ((shm,), 0), ((half,), 12):
        run = hwctl_("reclaim-stale", *paths, "-y", "--older-than", "0.001s")
        assert run.status == status and "unproven: stray.bin" in run.out
    assert sorted(shm.rglob("*")) == before
    (half / "stray.bin").unlink()
    (tree / "stray.bin").unlink()
    assert hwctl_("evict", shm, "--all", "-y").status == 0
    assert hwctl_("reclaim-stale", half, "-y", "--older-than", "0.001s").status == 0
    assert os.listdir(shm) == []
