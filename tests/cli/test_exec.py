"""``hwctl exec`` as a process: what the command gets, and how a failure before it is told from its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import holders
import pytest
from kits import HostWeights, Kit, KtInt8, PageWeights
from run_hwctl import NOBODY, command, environment, hwctl_, validator

from hwctl.fs.lock_table import LockTable


@pytest.fixture(params=[HostWeights, KtInt8], ids=["hostweights", "ktint8"])
def kit(request: pytest.FixtureRequest, tmp_path: Path) -> Kit:
    made: Kit = request.param(tmp_path)
    return made


@pytest.fixture
def one(tmp_path: Path) -> Kit:
    """One family, for what does not depend on it."""
    return KtInt8(tmp_path)


def test_the_command_runs_with_the_path_and_its_own_status(one: Kit) -> None:
    path = one.artifact(0)
    run = hwctl_("exec", path, "--", "sh", "-c", 'echo "$HWCTL_ARTIFACT_PATH|$HWCTL_ARTIFACT_PATHS"; exit 7')
    assert (run.status, run.out) == (7, f"{path}|{path}\n"), run.err


def test_the_command_keeps_the_pid_and_the_lease(kit: Kit) -> None:
    path = kit.artifact(0)
    process = subprocess.Popen(
        command("exec", path, "--", "sh", "-c", "echo $$; read line; exit 0"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert process.stdin is not None and process.stdout is not None
    assert int(process.stdout.readline()) == process.pid
    st = kit.lock(0).stat()
    (entry,) = LockTable.read().entries((st.st_dev, st.st_ino))
    assert (entry.pid, entry.mode.name) == (process.pid, "SHARED")
    run = hwctl_("evict", path, "-y", "--json")
    assert run.status == 11 and f"pid {process.pid}" in run.results[0]["reason"]
    process.stdin.write("\n")
    process.stdin.close()
    assert process.wait(timeout=10) == 0
    assert hwctl_("evict", path, "-y").status == 0


def test_several_artifacts_one_lease_each(kit: Kit) -> None:
    paths = [kit.artifact(number) for number in range(3)]
    script = "echo $HWCTL_ARTIFACT_PATHS; echo $HWCTL_LEASE_FDS; ls -l /proc/self/fd"
    run = hwctl_("exec", paths[0], "--with", paths[1], "--with", paths[2], "--", "sh", "-c", script)
    assert run.status == 0, run.err
    lines = run.out.splitlines()
    assert lines[0] == ":".join(map(str, paths))
    fds = [int(fd) for fd in lines[1].split(",")]
    listed = "\n".join(lines[2:])
    # A host-weight artifact's own folder is locked beside its lock file.
    expected = [lock for number in range(3) for lock in dict.fromkeys((kit.lock(number), paths[number]))]
    assert len(set(fds)) == len(expected)
    for fd, lock in zip(fds, expected, strict=True):
        assert f"{fd} -> {lock}\n" in f"{listed}\n"


def test_only_the_leases_are_inherited(one: Kit) -> None:
    path = one.artifact(0)
    run = hwctl_(
        "exec", path, "--", sys.executable, "-S", "-c", "import os; print(os.listdir('/proc/self/fd'))"
    )
    # 0, 1, 2, the lease, and the listing itself.
    assert run.out.count(",") == 4


def test_an_outer_lease_is_passed_on(one: Kit) -> None:
    first, second = one.artifact(0), one.artifact(1)
    inner = command("exec", second, "--", "sh", "-c", "echo $HWCTL_LEASE_FDS; ls -l /proc/self/fd")
    run = hwctl_("exec", first, "--", *inner)
    assert run.status == 0, run.err
    assert len(run.out.splitlines()[0].split(",")) == 2
    assert f"{one.lock(0)}" in run.out and f"{one.lock(1)}" in run.out


def test_the_command_gets_default_signals(one: Kit) -> None:
    """Python ignores SIGPIPE; `cmd | head` inside the command must still end quietly."""
    path = one.artifact(0)
    run = hwctl_("exec", path, "--", "sh", "-c", "grep -E 'Sig(Ign|Blk)' /proc/self/status")
    assert run.status == 0
    ignored = {line.split()[0]: int(line.split()[1], 16) for line in run.out.splitlines()}
    assert not ignored["SigIgn:"] >> (signal.SIGPIPE - 1) & 1
    assert ignored["SigBlk:"] == 0
    run = hwctl_("exec", path, "--", "sh", "-c", "kill -TERM $$")
    assert run.status == -signal.SIGTERM


def test_not_found_and_not_executable(one: Kit, tmp_path: Path) -> None:
    path = one.artifact(0)
    assert hwctl_("exec", path, "--", "no-such-command-anywhere").status == 127
    assert hwctl_("exec", path, "--", "/nonexistent/cmd").status == 127
    plain = tmp_path / "plain"
    plain.write_text("#!/bin/sh\n")
    assert hwctl_("exec", path, "--", plain).status == 126
    run = hwctl_("exec", path, "--json", "--", "no-such-command-anywhere")
    assert run.status == 127 == run.error["exit_status"] == run.document["exit_status"]


def test_what_is_not_sound_never_starts_the_command(one: Kit, tmp_path: Path) -> None:
    mark = tmp_path / "started"
    path = one.artifact(0)
    payload = one.payload(path)
    mode = payload.stat().st_mode & 0o777
    payload.chmod(0o600)
    payload.write_bytes(payload.read_bytes()[:-4])
    payload.chmod(mode)
    for level in ("size", "full"):
        run = hwctl_("exec", path, "--level", level, "--json", "--", "touch", mark)
        assert (run.status, run.error["code"], run.error["exit_status"]) == (125, "damaged", 125)
        assert run.error["details"]["findings"]
        validator("hwctl.exec/1").validate(run.document)
        (row,) = run.results
        assert (row["family"], row["store"], row["key"]) == (one.name, str(one.root), one.key(0))
        assert (row["path"], row["valid"], row["level"]) == (str(path), False, level) and row["findings"]
    assert hwctl_("exec", one.open_path(5), "--", "touch", mark).status == 125
    assert hwctl_("exec", one.root, "--", "touch", mark).status == 125
    assert not mark.exists()


def test_a_held_exclusive_lock_is_busy_or_waited_for(one: Kit) -> None:
    path = one.artifact(0)
    with holders.locked(one.lock(0), "exclusive") as pid:
        run = hwctl_("exec", path, "--json", "--", "true")
        assert (run.status, run.error["code"]) == (125, "busy")
        assert run.error["details"]["holders"][0]["pid"] == pid
        begin = time.monotonic()
        assert hwctl_("exec", path, "--wait", "0.5s", "--", "true").status == 125
        assert time.monotonic() - begin >= 0.5


def test_usage(one: Kit) -> None:
    path = one.artifact(0)
    assert hwctl_("exec", path).status == 2
    assert hwctl_("exec").status == 2
    assert hwctl_("exec", path, "--level", "deep", "--", "true").status == 2


def test_options_after_the_dashes_are_the_commands(one: Kit) -> None:
    path = one.artifact(0)
    run = hwctl_("exec", path, "--", "echo", "--level", "x", "--", "-n")
    assert (run.status, run.out) == (0, "--level x -- -n\n")


def test_a_page_is_refused(tmp_path: Path) -> None:
    kit = PageWeights(tmp_path)
    run = hwctl_("exec", kit.artifact(0), "--json", "--", "true")
    assert (run.status, run.error["code"]) == (125, "refused")
    assert "wait" in run.error["message"]


def test_a_missing_lock_file_is_made(tmp_path: Path) -> None:
    kit = HostWeights(tmp_path)
    path = kit.artifact(0)
    os.unlink(kit.lock(0))
    assert hwctl_("exec", path, "--", "true").status == 0
    assert kit.lock(0).stat().st_mode & 0o777 == 0o600


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make other users' files")
def test_root_leaves_no_lock_file_in_another_users_store(tmp_path: Path) -> None:
    """Its owner's own programs could not open it."""
    kit = HostWeights(tmp_path)
    path, lock = kit.artifact(0), kit.lock(0)
    for entry in (kit.root, *kit.root.rglob("*")):
        os.lchown(entry, NOBODY, NOBODY)
    assert hwctl_("exec", path, "--", "true").status == 0
    lock.unlink()
    run = hwctl_("exec", path, "--", "true")
    assert run.status == 125 and f"uid {NOBODY}" in run.err
    assert not lock.exists()
