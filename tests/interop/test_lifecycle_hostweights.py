"""vLLM-Omni's own store holds a lease while hwctl evicts, quarantines and reclaims around it."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import make_hostweights
import pytest
from run_hwctl import environment, hwctl_, start

pytestmark = pytest.mark.interop

# The package's own __init__ wants vllm; the store below it does not, given a bare parent package.
_SERVER = """
import importlib.util, json, sys, types
bare = types.ModuleType("vllm_omni")
bare.__path__ = list(importlib.util.find_spec("vllm_omni").submodule_search_locations)
sys.modules["vllm_omni"] = bare
from pathlib import Path
from vllm_omni.host_weight_runtime.filesystem import store as upstream

def open_store(root, storage_class):
    domain = upstream.StorageDomainPolicy(root=Path(root), storage_class=upstream.StorageClass(storage_class))
    return upstream.FilesystemHostWeightStore(domain, upstream.CapacityPolicy(), upstream.IntegrityPolicy())

store = open_store(sys.argv[1], sys.argv[2])
level = upstream.ValidationLevel("full_checksum")
leases = {}
print("open", flush=True)
for line in sys.stdin:
    verb, *rest = json.loads(line)
    if verb == "lookup":
        identity = upstream.WeightArtifactIdentity.from_dict(rest[0])
        result = store.lookup(identity, validation=level, deadline=None)
        if result.lease is not None:
            leases[identity.key] = result.lease
        answer = result.status.value
    elif verb == "sum":
        (tensor,) = leases[rest[0]].tensors.values()
        answer = float(tensor.sum())
    elif verb == "close":
        leases.pop(rest[0]).close()
        answer = "closed"
    print(json.dumps(answer), flush=True)
"""


class Server:
    """A process of the real software, asked one question at a time."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, *words: object) -> object:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, self._process.stderr and self._process.stderr.read()
        return json.loads(line)


@contextmanager
def server(root: Path) -> Iterator[Server]:
    if importlib.util.find_spec("vllm_omni") is None:
        pytest.skip("vllm-omni is not installed")
    storage_class = "tmpfs" if make_hostweights.fs_type(root) == "tmpfs" else "disk"
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVER, str(root), storage_class],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n", process.stderr and process.stderr.read()
        yield Server(process)
    finally:
        process.communicate(timeout=30)


def test_a_leased_artifact_stays_and_the_others_can_be_opened_meanwhile(tmp_path: Path) -> None:
    root = make_hostweights.make_store(tmp_path / "store")
    for number in range(3):
        make_hostweights.make_artifact(root, number, locks=False)
    held, other, victim = (make_hostweights.key_of(number) for number in range(3))
    with server(root) as omni:
        assert omni.ask("lookup", make_hostweights.identity(0)) == "hit"
        inode = (root / "artifacts" / held).stat().st_ino

        run = hwctl_("evict", root / "artifacts" / victim, "-y", "--json")
        assert run.status == 0
        assert omni.ask("lookup", make_hostweights.identity(1)) == "hit"
        assert omni.ask("lookup", make_hostweights.identity(2)) == "miss"
        assert omni.ask("close", other) == "closed"

        run = hwctl_("evict", root, "--all", "-y", "--json")
        outcomes = {row["key"]: row["outcome"] for row in run.results}
        assert run.status == 11
        assert (outcomes[held], outcomes[other]) == ("skipped", "done")

        assert hwctl_("evict", root / "artifacts" / held, "-y").status == 11
        assert hwctl_("reclaim-stale", root, "-y").status == 0
        assert (root / "artifacts" / held).stat().st_ino == inode
        assert omni.ask("sum", held) == 0.0

        run = hwctl_("quarantine", root / "artifacts" / held, "--reason", "doubt", "-y", "--json")
        assert run.status == 11
        assert (root / "artifacts" / held).stat().st_ino == inode
        assert omni.ask("sum", held) == 0.0
        assert omni.ask("lookup", make_hostweights.identity(0)) == "invalid"

        assert hwctl_("quarantine", root, "--restore", held, "-y").status == 11
        assert omni.ask("close", held) == "closed"
        assert hwctl_("quarantine", root, "--restore", held, "-y").status == 0
        assert omni.ask("lookup", make_hostweights.identity(0)) == "hit"


def test_lookups_hit_while_everything_else_is_being_evicted(tmp_path: Path) -> None:
    root = make_hostweights.make_store(tmp_path / "store")
    for number in range(60):
        make_hostweights.make_artifact(root, number, locks=False)
    stays = make_hostweights.key_of(0)
    with server(root) as omni:
        evicting = start("evict", root, "--all", "--exclude", stays, "-y", "--json")
        lookups = 0
        while evicting.poll() is None:
            assert omni.ask("lookup", make_hostweights.identity(0)) == "hit"
            assert omni.ask("close", stays) == "closed"
            lookups += 1
        out, err = evicting.communicate()
    assert evicting.returncode == 0, err
    assert json.loads(out)["totals"]["done"] == 59 and lookups > 0
    assert [path.name for path in (root / "artifacts").iterdir()] == [stays]


def test_what_hwctl_set_aside_and_restored_is_a_hit_again(tmp_path: Path) -> None:
    root = make_hostweights.make_store(tmp_path / "store")
    path = make_hostweights.make_artifact(root, 7, locks=False)
    with server(root) as omni:
        run = hwctl_("quarantine", path, "--reason", "doubt", "-y", "--json")
        assert run.status == 0
        assert omni.ask("lookup", make_hostweights.identity(7)) == "miss"
        assert hwctl_("quarantine", "--restore", run.results[0]["moved_to"], "-y").status == 0
        assert omni.ask("lookup", make_hostweights.identity(7)) == "hit"
        assert omni.ask("sum", path.name) == 7.0 * 1024


def test_last_use_moves_when_a_holder_is_met(tmp_path: Path) -> None:
    """EVI-01: upstream keeps no clock, so hwctl notes what it sees in /proc/locks."""
    root = make_hostweights.make_store(tmp_path / "store")
    for number in range(2):
        make_hostweights.make_artifact(root, number)
        make_hostweights.set_last_use(root, number, 10**18 + number)
    with server(root) as omni:
        assert omni.ask("lookup", make_hostweights.identity(0)) == "hit"
        assert hwctl_("evict", root, "--keep", "1", "-y", "--json").status == 0
        assert omni.ask("close", make_hostweights.key_of(0)) == "closed"
    lock = root / "locks" / f"{make_hostweights.key_of(0)}.artifact.lock"
    assert lock.stat().st_mtime_ns > 10**18 + 1
    assert not (root / "artifacts" / make_hostweights.key_of(1)).exists()
