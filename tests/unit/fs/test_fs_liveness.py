"""Who is alive, judged on real processes; a pid alone is never a proof (REC-01)."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hwctl.fs import liveness
from hwctl.fs.liveness import Life, Process, ProcStat


@contextmanager
def sleeper(*words: str) -> Iterator[int]:
    process = subprocess.Popen(words or ("sleep", "60"))
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


def process_of(pid: int) -> Process:
    stat = liveness.proc_stat(pid)
    namespace = liveness.pid_namespace(pid)
    assert stat is not None and namespace is not None
    return Process(pid, stat.start_ticks, liveness.boot_id(), namespace)


@pytest.mark.parametrize("command", [b"sh", b"a b", b"x) Z 1 (y", b")))", b"\xff\xfe"])
def test_the_command_cannot_fool_the_parser(command: bytes) -> None:
    fields = [b"S"] + [b"%d" % number for number in range(4, 53)]
    raw = b"12 (" + command + b") " + b" ".join(fields) + b"\n"
    assert liveness.parse_stat(raw) == ProcStat("S", start_ticks=22, threads=20)


@pytest.mark.parametrize("raw", [b"", b"12 (sh", b"12 (sh) S 1 2", b"12 (sh) S" + b" x" * 50])
def test_rubbish_is_a_value_error(raw: bytes) -> None:
    with pytest.raises(ValueError):
        liveness.parse_stat(raw)


def test_this_process_is_alive() -> None:
    life, evidence = liveness.judge(Process.current())
    assert life is Life.ALIVE and f"pid {os.getpid()} is running" in evidence


def test_a_reused_pid_is_dead() -> None:
    with sleeper() as pid:
        alive = process_of(pid)
        assert liveness.judge(alive)[0] is Life.ALIVE
        life, evidence = liveness.judge(dataclasses.replace(alive, start_ticks=12))
    assert life is Life.DEAD
    assert evidence == f"pid {pid} was reused (start ticks {alive.start_ticks}, recorded 12)"


def test_a_process_that_is_gone_is_dead() -> None:
    with sleeper() as pid:
        recorded = process_of(pid)
    assert liveness.proc_stat(pid) is None
    assert liveness.judge(recorded) == (Life.DEAD, f"pid {pid} is gone")


def test_a_zombie_is_dead() -> None:
    child = subprocess.Popen(["sleep", "60"])
    recorded = process_of(child.pid)
    child.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    stat = liveness.proc_stat(child.pid)
    assert stat is not None and stat.ended
    life, evidence = liveness.judge(recorded)
    child.wait()
    assert life is Life.DEAD and "state Z" in evidence


def test_a_leader_that_ended_before_its_threads_works_on() -> None:
    # pthread_exit in the main thread: /proc shows a zombie, the other threads still write.
    code = (
        "import ctypes, threading, time; threading.Thread(target=time.sleep, args=(60,)).start(); "
        "print('x', flush=True); ctypes.CDLL(None).pthread_exit(None)"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None and child.stdout.readline()
        until = time.monotonic() + 10
        while (stat := liveness.proc_stat(child.pid)) and stat.state != "Z" and time.monotonic() < until:
            time.sleep(0.01)
        assert stat is not None and stat.state == "Z" and not stat.ended
        assert liveness.judge(process_of(child.pid))[0] is Life.ALIVE
    finally:
        child.kill()
        child.communicate()


def test_another_boot_is_dead_whatever_the_pid_says() -> None:
    other = dataclasses.replace(Process.current(), boot_id="b0075000-0000-4000-8000-000000000000")
    life, evidence = liveness.judge(other)
    assert life is Life.DEAD and "boot id differs" in evidence


def test_another_pid_namespace_says_nothing() -> None:
    other = dataclasses.replace(Process.current(), pid_ns=1)
    assert liveness.judge(other)[0] is Life.UNKNOWN


def test_the_start_is_near_the_wall_clock() -> None:
    before = time.time_ns()
    with sleeper() as pid:
        stat = liveness.proc_stat(pid)
        assert stat is not None
        started = liveness.started_ns(stat)
    # One clock tick is 10 ms, and the answer is rounded down.
    assert before - 50_000_000 <= started <= time.time_ns() + 50_000_000


def test_a_process_born_after_a_file_was_written(tmp_path: Path) -> None:
    lease = tmp_path / "lease"
    lease.touch()
    time.sleep(0.05)
    with sleeper() as pid:
        stat = liveness.proc_stat(pid)
        assert stat is not None and liveness.started_ns(stat) > lease.stat().st_mtime_ns
    own = liveness.proc_stat(os.getpid())
    assert own is not None and liveness.started_ns(own) < lease.stat().st_mtime_ns


def test_namespaces_and_names() -> None:
    with sleeper() as pid:
        assert liveness.pid_namespace(pid) == liveness.pid_namespace() is not None
        assert liveness.uid_of(pid) == os.geteuid()
        assert liveness.command_of(pid) == "sleep"
    gone = 2**22 + 5
    assert liveness.pid_namespace(gone) is None
    assert (liveness.uid_of(gone), liveness.command_of(gone)) == (None, None)


def test_a_container_is_not_the_first_namespace() -> None:
    command = ["unshare", "--fork", "--pid", "--mount-proc", sys.executable, "-c"]
    code = (
        "from hwctl.fs import liveness as l; from hwctl.fs.liveness import Process; "
        "print(l.in_initial_pid_namespace(), l.judge(Process.current())[0].name)"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([*command, code], capture_output=True, text=True, env=env)
    if done.returncode and "unshare" in done.stderr:
        pytest.skip(f"cannot make a pid namespace: {done.stderr.strip()}")
    assert done.stdout.split() == ["False", "ALIVE"], done.stderr
