"""May it be reclaimed: every question of section 8, each with its evidence (REC-01, REC-04, REC-06)."""

from __future__ import annotations

import json
import mmap
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ktroot
import make_ktint8
import pytest

from hwctl.fs import unused
from hwctl.fs.deadline import Deadline
from hwctl.fs.lock_table import Mode
from hwctl.fs.locks import acquire_dir
from hwctl.stores.base import Artifact, Death, Staleness, StalePolicy, State
from hwctl.stores.ktint8 import producer
from hwctl.stores.ktint8.locating import recognise
from hwctl.stores.ktint8.store import open_store

NO_GRACE = StalePolicy(older_than=0)
NS = 1_000_000_000


def identity(**changes: object) -> dict[str, object]:
    return {
        "boot_id": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        "pid_ns": os.stat("/proc/self/ns/pid").st_ino,
        "start_ticks": ticks(os.getpid()),
    } | changes


def ticks(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def look(path: Path) -> Artifact:
    match = recognise(path)
    assert match is not None
    found = open_store(match.root).look(
        Artifact(match.family, match.root, match.key or "", match.path, State.ABSENT)
    )
    assert found is not None
    return found


def judge(path: Path, policy: StalePolicy = NO_GRACE) -> Staleness:
    artifact = look(path)
    return open_store(artifact.store).stale(artifact, policy)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def zombie() -> Iterator[int]:
    child = os.fork()
    if child == 0:
        os._exit(0)
    while "Z" not in Path(f"/proc/{child}/stat").read_text().rpartition(")")[2]:
        time.sleep(0.01)
    yield child
    os.waitpid(child, 0)


def test_dead_upstream_producer(base: Path) -> None:
    verdict = judge(ktroot.staging(base))
    assert verdict.death is Death.PROVEN
    assert f"pid {ktroot.DEAD_PID} is gone" in verdict.evidence


def test_recent_writes_keep_it(base: Path) -> None:
    root = ktroot.staging(base)
    for policy in (StalePolicy(), StalePolicy(older_than=3600 * NS)):
        verdict = judge(root, policy)
        assert verdict.death is Death.LIVE
        assert "changed" in verdict.evidence[0]


def test_a_reused_pid(base: Path, sleeper: subprocess.Popen[bytes]) -> None:
    """REC-01: a process born after the lease was written is not the producer."""
    root = ktroot.staging(base, lease_doc=ktroot.lease(pid=sleeper.pid))
    assert judge(root).death is Death.LIVE
    then = time.time_ns() - 60 * NS
    os.utime(root / ktroot.LEASE, ns=(then, then))
    verdict = judge(root)
    assert verdict.death is Death.PROVEN
    assert "reused" in verdict.evidence[0]


def test_a_zombie_is_dead(base: Path, zombie: int) -> None:
    assert judge(ktroot.staging(base, lease_doc=ktroot.lease(pid=zombie))).death is Death.PROVEN
    other = ktroot.staging(
        base,
        run="other-run-1",
        lease_doc=ktroot.lease("other-run-1", zombie, hwctl=identity(start_ticks=ticks(zombie))),
    )
    assert judge(other).death is Death.PROVEN


def test_our_own_lease(base: Path, sleeper: subprocess.Popen[bytes]) -> None:
    live = identity(start_ticks=ticks(sleeper.pid))
    root = ktroot.staging(base, lease_doc=ktroot.lease(pid=sleeper.pid, hwctl=live))
    assert judge(root).death is Death.LIVE
    for dead in (identity(start_ticks=1), live | {"boot_id": "00000000-0000-0000-0000-000000000000"}):
        ktroot.dump(root / ktroot.LEASE, ktroot.lease(pid=sleeper.pid, hwctl=dead))
        # Proven at once: hwctl's producers hold the lock for as long as they live, so no grace is needed.
        assert judge(root, StalePolicy()).death is Death.PROVEN


def test_our_own_lease_from_another_pid_namespace(base: Path) -> None:
    elsewhere = identity(pid_ns=1, start_ticks=5)
    root = ktroot.staging(base, lease_doc=ktroot.lease(pid=7, hwctl=elsewhere))
    verdict = judge(root, StalePolicy())
    assert verdict.death is Death.PROVEN
    assert any("lock" in clause for clause in verdict.evidence)
    with acquire_dir(root, Mode.EXCLUSIVE, Deadline.now()):
        pass
    ktroot.hold_lock(root)
    try:
        assert judge(root, StalePolicy()).death is Death.LIVE
    finally:
        ktroot.release_locks()


def test_our_own_lock_is_no_sign_of_life(base: Path) -> None:
    root = ktroot.staging(base)
    artifact = look(root)
    store = open_store(base)
    with store.lease(artifact, Mode.EXCLUSIVE, Deadline.now()):
        assert store.stale(artifact, NO_GRACE).death is Death.PROVEN


@pytest.mark.parametrize("how", ["open", "mapped", "cwd"])
def test_a_process_that_uses_it(base: Path, how: str) -> None:
    root = ktroot.staging(base)
    file = ktroot.one(root)
    code = {
        "open": f"f = open({str(file)!r}, 'rb')",
        "mapped": (
            f"import mmap\nf = open({str(file)!r}, 'rb')\n"
            f"m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)\nf.close()"
        ),
        "cwd": f"import os\nos.chdir({str(file.parent)!r})",
    }[how]
    assert mmap.PROT_READ
    process = subprocess.Popen(
        [sys.executable, "-c", f"{code}\nprint('using', flush=True)\nimport time\ntime.sleep(60)"],
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        verdict = judge(root)
        assert verdict.death is Death.LIVE
        assert f"pid {process.pid}" in verdict.evidence[0]
        assert ("works in it" if how == "cwd" else how) in verdict.evidence[0]
        assert "running for" in verdict.evidence[0]
    finally:
        process.kill()
        process.communicate()
    assert judge(root).death is Death.PROVEN


@pytest.mark.parametrize("layers", [1, 20])
def test_what_only_the_kernel_holds_is_in_use(base: Path, layers: int) -> None:
    """/proc names nobody for a descriptor that is on its way through a socket."""
    root = make_ktint8.make_ready(base, ktroot.RUN, states=("ready",) * layers)
    assert (len(list(root.rglob("*.kt"))) > 32) == (layers > 1)
    artifact, store = look(root), open_store(base)
    sending, _receiving = ends = socket.socketpair()
    try:
        with next(root.rglob("*.kt")).open("rb") as file:
            socket.send_fds(sending, [b"x"], [file.fileno()])
        (user,) = store.users(artifact, certain=True)
        assert (user.pid, user.how) == (None, "open")
    finally:
        for end in ends:
            end.close()
    assert store.users(artifact, certain=True) == ()


def test_a_writer_keeps_a_tree_whose_lease_names_a_dead_child(base: Path) -> None:
    """REC-04: the converter child has ended, its parent still writes."""
    root = ktroot.staging(base)
    policy = StalePolicy(older_than=NS // 5)
    (root / "_layer_3/_numa_0/growing").write_bytes(b"x")
    assert judge(root, policy).death is Death.LIVE
    time.sleep(0.3)
    assert judge(root, policy).death is Death.PROVEN


def test_outside_the_initial_pid_namespace_a_bare_pid_proves_nothing(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = ktroot.staging(base)
    monkeypatch.setattr(producer, "in_initial_pid_namespace", lambda: False)
    verdict = judge(root)
    assert verdict.death is Death.UNPROVEN
    assert "initial pid namespace" in verdict.evidence[0]
    monkeypatch.undo()
    monkeypatch.setattr(unused, "in_initial_pid_namespace", lambda: False)
    assert judge(root).death is Death.UNPROVEN


@pytest.mark.parametrize("pid", [0, -5, True, "17", 17.0, None, 2**31, 2**63])
def test_a_pid_that_is_none_is_refused(base: Path, pid: object) -> None:
    assert judge(ktroot.staging(base, lease_doc=ktroot.lease(pid=pid))).death is Death.UNPROVEN


def test_without_a_lease(base: Path) -> None:
    root = ktroot.staging(base, lease_doc=None)
    assert judge(root, StalePolicy()).death is Death.UNPROVEN
    assert judge(root, StalePolicy(older_than=0)).death is Death.UNPROVEN
    assert judge(root, StalePolicy(leaseless=True)).death is Death.UNPROVEN
    assert judge(root, StalePolicy(leaseless=True, older_than=3600 * NS)).death is Death.LIVE
    assert judge(root, StalePolicy(leaseless=True, older_than=0)).death is Death.PROVEN


def test_without_a_lease_but_with_a_manifest_that_says_who(base: Path) -> None:
    """What is left when a publisher dies between taking the lease away and the rename."""
    root = ktroot.staging(base, lease_doc=None)
    document = ktroot.manifest_v1(root, ktroot.RUN, ktroot.GEO)
    ktroot.dump(root / ktroot.MANIFEST, document | {"hwctl": {"producer": identity(start_ticks=1)}})
    assert judge(root, StalePolicy()).death is Death.PROVEN
    ktroot.dump(
        root / ktroot.MANIFEST,
        document | {"producer_pid": os.getpid(), "hwctl": {"producer": identity()}},
    )
    assert judge(root, StalePolicy()).death is Death.LIVE
    ktroot.dump(root / ktroot.MANIFEST, document)
    assert judge(root, StalePolicy()).death is Death.UNPROVEN


def half(document: dict[str, Any]) -> None:
    document["layers"][0]["state"] = "consuming"


def test_half_consumed(base: Path) -> None:
    root = ktroot.ready(base, edit=half)
    assert look(root).state is State.CONSUMING
    assert judge(root, StalePolicy()).death is Death.LIVE
    assert judge(root).death is Death.PROVEN
    with ktroot.one(root, layer=4).open("rb"):
        pass
    ktroot.hold_lock(root)
    try:
        assert judge(root).death is Death.LIVE
    finally:
        ktroot.release_locks()


def test_ready_only_on_request(base: Path) -> None:
    root = ktroot.ready(base)
    assert judge(root).death is Death.NOT_STALE
    assert judge(root, StalePolicy(ready=True)).death is Death.LIVE
    assert judge(root, StalePolicy(ready=True, older_than=0)).death is Death.PROVEN


@pytest.mark.parametrize("with_identity", [False, True])
def test_ready_with_a_living_producer(
    base: Path, sleeper: subprocess.Popen[bytes], with_identity: bool
) -> None:
    def edit(document: dict[str, Any]) -> None:
        document["producer_pid"] = sleeper.pid
        if with_identity:
            document["hwctl"] = {"producer": identity(start_ticks=ticks(sleeper.pid))}

    root = ktroot.ready(base, edit=edit)
    verdict = judge(root, StalePolicy(ready=True, older_than=0))
    assert verdict.death is Death.LIVE
    assert f"pid {sleeper.pid}" in verdict.evidence[0]


def test_persistent_stores_are_never_stale(base: Path) -> None:
    root = ktroot.persistent(base)
    assert judge(root, StalePolicy(ready=True, older_than=0, leaseless=True)).death is Death.NOT_STALE


@pytest.mark.parametrize(
    "damage", [lambda r: (r / ktroot.MANIFEST).unlink(), lambda r: (r / ktroot.MANIFEST).write_text("{")]
)
def test_a_ready_root_without_a_sound_manifest_is_not_stale(
    base: Path, damage: Callable[[Path], object]
) -> None:
    root = ktroot.ready(base)
    damage(root)
    assert judge(root, StalePolicy(ready=True, older_than=0)).death is Death.NOT_STALE


def test_a_producer_that_stops_living_while_it_is_judged_twice(base: Path) -> None:
    process = subprocess.Popen(["sleep", "60"])
    root = ktroot.staging(
        base, lease_doc=ktroot.lease(pid=process.pid, hwctl=identity(start_ticks=ticks(process.pid)))
    )
    assert judge(root, StalePolicy()).death is Death.LIVE
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert judge(root, StalePolicy()).death is Death.PROVEN


def test_the_lease_is_read_as_it_is_now(base: Path) -> None:
    root = ktroot.staging(base)
    document = json.loads((root / ktroot.LEASE).read_text())
    assert judge(root).death is Death.PROVEN
    ktroot.dump(root / ktroot.LEASE, document | {"producer_pid": os.getppid()})
    assert judge(root).death is Death.LIVE
