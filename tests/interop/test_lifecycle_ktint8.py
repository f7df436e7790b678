"""KTransformers' own producer and consumer at work while hwctl reclaims in a loop around them."""

from __future__ import annotations

import importlib.util
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import make_ktint8
import pytest
from run_hwctl import Run, environment, hwctl_

pytestmark = pytest.mark.interop

ROUNDS = int(os.environ.get("HWCTL_TEST_ROUNDS", "2"))
BASE = Path("/dev/shm")
GRACE = "1.5s"

# Loaded as one file: the package around it wants torch and the compiled kernels, this part does not.
_LOAD = """
import importlib.util, os, sys, time
from pathlib import Path
spec = importlib.util.spec_from_file_location("ephemeral", sys.argv[1])
ephemeral = importlib.util.module_from_spec(spec)
spec.loader.exec_module(ephemeral)
run, makers, layers = sys.argv[2], sys.argv[3], 3
shape = dict(layer_indices=range(layers), numa_count=1, expert_num=1, hidden_size=64, intermediate_size=64)
"""
_PRODUCE = (
    _LOAD
    + """
sys.path.insert(0, makers)
import make_ktint8
root = Path("/dev/shm") / f"kt-int8-{run}.staging"
root.mkdir(mode=0o700)
ephemeral.write_ephemeral_staging_lease(root, run_id=run, producer_pid=os.getpid())
print("staged", flush=True)
for layer in range(layers):
    make_ktint8.fill(root, range(layer, layer + 1))
    time.sleep(0.05)
print(ephemeral.publish_ephemeral_int8_weights(root, run_id=run, **shape), flush=True)
"""
)
_CONSUME = (
    _LOAD
    + """
root = Path("/dev/shm") / f"kt-int8-{run}"
store = ephemeral.EphemeralKTWeightStore.open(root, **shape)
for layer in range(layers):
    for path in sorted((root / f"_layer_{layer}").rglob("*.kt")):
        assert len(path.read_bytes()) in (4096, 256)
    time.sleep(0.05)
    store.consume_layer(layer)
store.finish()
print("finished", flush=True)
"""
)


@pytest.fixture
def prefix() -> Iterator[str]:
    """A run id that nobody else has; whatever a failing test leaves under it is taken away."""
    spec = importlib.util.find_spec("kt_kernel")
    if spec is None or not BASE.is_dir():
        pytest.skip("kt-kernel is not installed, or there is no /dev/shm")
    name = f"hwctl-test-{secrets.token_hex(6)}"
    yield name
    for path in BASE.glob(f"kt-int8-{name}*"):
        shutil.rmtree(path)


def upstream(code: str, run: str) -> subprocess.Popen[str]:
    spec = importlib.util.find_spec("kt_kernel")
    assert spec is not None and spec.submodule_search_locations
    module = Path(next(iter(spec.submodule_search_locations))) / "sft" / "ephemeral.py"
    makers = Path(make_ktint8.__file__).parent
    return subprocess.Popen(
        [sys.executable, "-c", code, str(module), run, str(makers)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )


def reclaim(prefix: str) -> Run:
    run = hwctl_("reclaim-stale", BASE, "-y", "--json", "--match", f"{prefix}*", "--older-than", GRACE)
    assert run.status == 0, run.err
    return run


def left(prefix: str) -> list[str]:
    return sorted(path.name for path in BASE.glob(f"kt-int8-{prefix}*"))


def finish(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return out


def test_nothing_live_is_lost_and_nothing_dead_is_kept(prefix: str) -> None:
    """One producer lives and its tree is consumed; another is killed on the way; reclaim never rests."""
    for number in range(ROUNDS):
        alive, doomed = f"{prefix}-{number}-alive", f"{prefix}-{number}-doomed"
        producer, victim = upstream(_PRODUCE, alive), upstream(_PRODUCE, doomed)
        assert victim.stdout is not None and victim.stdout.readline() == "staged\n"
        victim.send_signal(signal.SIGKILL)
        victim.communicate()
        while producer.poll() is None:
            reclaim(prefix)
        assert finish(producer).endswith(f"/kt-int8-{alive}\n")
        consumer = upstream(_CONSUME, alive)
        while consumer.poll() is None:
            reclaim(prefix)
        assert finish(consumer) == "finished\n"
        assert f"kt-int8-{alive}" not in left(prefix)
    time.sleep(float(GRACE[:-1]))
    last = reclaim(prefix)
    assert left(prefix) == [], last.out


def test_a_consumer_that_was_killed_leaves_what_reclaim_takes(prefix: str) -> None:
    """REC-06: half consumed is garbage once nobody works on it."""
    finish(upstream(_PRODUCE, prefix))
    consumer = upstream(_CONSUME, prefix)
    while '"consumed"' not in (BASE / f"kt-int8-{prefix}" / make_ktint8.MANIFEST).read_text():
        time.sleep(0.005)
    consumer.send_signal(signal.SIGKILL)
    consumer.communicate()
    run = reclaim(prefix)
    assert run.results[0]["action"] == "keep" and "changed" in run.results[0]["reason"]
    time.sleep(float(GRACE[:-1]))
    assert reclaim(prefix).results[0]["outcome"] == "done"
    assert left(prefix) == []


def test_a_child_that_is_done_is_no_proof_while_its_parent_works_on(prefix: str) -> None:
    """REC-04: the lease names a dead converter, the parent still writes."""
    staging = make_ktint8.make_staging(BASE, prefix, lease=False)
    child = subprocess.Popen(["true"])
    child.wait()
    (staging / make_ktint8.LEASE).write_bytes(
        make_ktint8.compact(
            {"schema_version": 1, "run_id": prefix, "owner_uid": os.geteuid(), "producer_pid": child.pid}
        )
    )
    run = reclaim(prefix)
    assert run.results[0]["action"] == "keep" and staging.exists()
    with (staging / "_layer_0" / "_numa_0" / "open.kt").open("wb"):
        time.sleep(float(GRACE[:-1]))
        run = reclaim(prefix)
        assert f"pid {os.getpid()}" in run.results[0]["reason"] and staging.exists()
    time.sleep(float(GRACE[:-1]))
    assert reclaim(prefix).results[0]["outcome"] == "done"
