"""A real Slurm of one node on loopback: munged, slurmctld and slurmd as child processes of the test."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sinfo", "scontrol")

_CONF = """\
ClusterName=recipe
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
ReturnToService=2
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SwitchType=switch/none
Prolog={folder}/prolog
PrologFlags=Alloc
Epilog={folder}/epilog
NodeName={host} NodeAddr=127.0.0.1 CPUs=1 State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=10 State=UP
"""


def missing() -> str | None:
    """Why no Slurm can be started here, or None."""
    if os.geteuid() != 0:
        return "only root can run slurmd"
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    return f"not installed: {', '.join(absent)}" if absent else None


@dataclass(frozen=True, slots=True)
class Cluster:
    folder: Path
    host: str

    @property
    def environment(self) -> dict[str, str]:
        return os.environ | {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def run(self, *words: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words, env=self.environment, capture_output=True, text=True, timeout=timeout, check=False, cwd="/"
        )

    def state(self) -> str:
        """What the controller thinks of the node: ``idle``, ``drain`` …"""
        return self.run("sinfo", "-h", "-o", "%T").stdout.strip()

    def wait_for(self, *states: str, seconds: float = 30) -> str:
        end = time.monotonic() + seconds
        while (state := self.state()) not in states and time.monotonic() < end:
            time.sleep(0.2)
        return state


@contextmanager
def cluster(folder: Path, prolog: str, epilog: str) -> Iterator[Cluster]:
    """Bring it up, and end every process that was started."""
    for name, script in (("prolog", prolog), ("epilog", epilog)):
        (folder / name).write_text(script)
        (folder / name).chmod(0o755)
    for name in ("state", "spool"):
        (folder / name).mkdir()
    host = socket.gethostname().partition(".")[0]
    (folder / "slurm.conf").write_text(_CONF.format(host=host, folder=folder, ports=_free_ports()))
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    names = {"key-file": "key", "socket": "sock", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
    munged = ["munged", "-F", "-f", *(f"--{option}={folder}/munge.{end}" for option, end in names.items())]
    made = Cluster(folder, host)
    with ExitStack() as stack:
        stack.enter_context(_running(made, munged))
        _until((folder / "munge.sock").exists)
        stack.enter_context(_running(made, ["slurmctld", "-D", "-c"]))
        stack.enter_context(_running(made, ["slurmd", "-D"]))
        state = made.wait_for("idle")
        assert state == "idle", [path.read_text()[-2000:] for path in folder.glob("*.out")]
        yield made


@contextmanager
def _running(made: Cluster, words: list[str]) -> Iterator[None]:
    with (made.folder / f"{words[0]}.out").open("w") as out:
        process = subprocess.Popen(words, env=made.environment, stdout=out, stderr=out, cwd="/")
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _free_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as two:
        one.bind(("127.0.0.1", 0))
        two.bind(("127.0.0.1", 0))
        return one.getsockname()[1], two.getsockname()[1]


def _until(ready: object, seconds: float = 10) -> None:
    assert callable(ready)
    end = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < end
        time.sleep(0.05)
