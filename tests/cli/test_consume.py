"""``hwctl consume`` as a process: what happens to the layers, what stops it, and going on afterwards."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import make_ktint8
import pytest
import torch
from run_hwctl import environment, hwctl_, start
from safetensors.torch import load_file

LAYERS = 3
FILE = "_layer_1/_numa_0/INT8_gate_0_4096Byte_quant_.kt"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    base = tmp_path / "base"
    base.mkdir(mode=0o700)
    return make_ktint8.make_ready(base, "run-0001", states=("ready",) * LAYERS)


def states(tree: Path) -> list[str]:
    document: dict[str, Any] = json.loads((tree / make_ktint8.MANIFEST).read_text())
    return [layer["state"] for layer in document["layers"]]


def layers_of(document: dict[str, Any]) -> list[int]:
    return [layer["layer"] for layer in document["results"][0]["layers"]]


def test_dequantised(tree: Path, tmp_path: Path) -> None:
    done = hwctl_("consume", tree, "--to", tmp_path / "out", "--json")
    assert done.status == 0, done.err
    assert layers_of(done.document) == [0, 1, 2]
    assert done.results[0]["outcome"] == "finished"
    assert done.results[0]["state"] == "absent"
    assert done.document["totals"]["bytes_freed"] > 0
    assert os.listdir(tree.parent) == []
    assert sorted(os.listdir(tmp_path / "out")) == [f"layer-{layer:05d}.safetensors" for layer in range(3)]
    weights = load_file(tmp_path / "out/layer-00002.safetensors")
    names = [f"model.layers.2.mlp.experts.0.{name}_proj.weight" for name in ("down", "gate", "up")]
    assert sorted(weights) == names
    for weight in weights.values():
        assert weight.dtype == torch.float32
        assert torch.equal(weight, torch.full((64, 64), 127.0))


def test_another_models_layer_is_not_written_over(tree: Path, tmp_path: Path) -> None:
    """The layer of one tree is gone, the file of the other would be: then nobody has either."""
    (out := tmp_path / "out").mkdir()
    theirs = out / "layer-00001.safetensors"
    theirs.write_bytes(b"weights of another model")
    done = hwctl_("consume", tree, "--to", out)
    assert done.status == 12 and "other content" in done.err and theirs.name in done.err
    assert theirs.read_bytes() == b"weights of another model"
    assert states(tree) == ["consumed", "ready", "ready"]
    assert sorted(os.listdir(out)) == ["layer-00000.safetensors", theirs.name]
    theirs.unlink()
    assert hwctl_("consume", tree, "--to", out).status == 0
    assert len(os.listdir(out)) == LAYERS


def test_each_gets_the_folder_and_its_output_goes_to_stderr(tree: Path, tmp_path: Path) -> None:
    script = tmp_path / "take"
    script.write_text('#!/bin/sh\nls "$2/_numa_0" | wc -l >> "$1"\necho said $(basename "$2")\n')
    script.chmod(0o755)
    done = hwctl_("consume", tree, "--each", f"'{script}' {tmp_path}/log")
    assert done.status == 0, done.err
    assert (tmp_path / "log").read_text().split() == ["6"] * LAYERS
    assert "said _layer_1" in done.err
    assert "said" not in done.out
    assert not tree.exists()


def test_what_is_handed_over_is_deleted_unasked_and_what_is_not_wants_a_yes(
    tree: Path, tmp_path: Path
) -> None:
    """--to and --each alike: deleting after the hand-over is what consuming means."""
    each = make_ktint8.make_ready(tree.parent, "run-0002", states=("ready",) * LAYERS)
    discard = make_ktint8.make_ready(tree.parent, "run-0003", states=("ready",) * LAYERS)
    assert hwctl_("consume", tree, "--to", tmp_path / "out").status == 0
    assert hwctl_("consume", each, "--each", "true").status == 0
    refused = hwctl_("consume", discard, "--discard")
    assert (refused.status, "--yes" in refused.err) == (12, True)
    assert (tree.exists(), each.exists(), discard.exists()) == (False, False, True)
    assert states(discard) == ["ready"] * LAYERS


def test_a_command_that_fails_keeps_its_layer(tree: Path) -> None:
    done = hwctl_("consume", tree, "--each", "sh -c 'case $0 in *_layer_1) exit 7;; esac'", "--json")
    assert done.status == 12
    assert "status 7" in done.error["message"]
    assert layers_of(done.document) == [0]
    assert states(tree) == ["consumed", "ready", "ready"]
    assert (tree / FILE).exists()
    again = hwctl_("consume", tree, "--each", "true", "--json")
    assert again.status == 0
    assert layers_of(again.document) == [1, 2]
    assert not tree.exists()


def test_a_command_that_is_not_there(tree: Path) -> None:
    assert hwctl_("consume", tree, "--each", "/nowhere/x").status == 15
    assert states(tree) == ["ready"] * 3


def test_discard_wants_to_be_told(tree: Path) -> None:
    refused = hwctl_("consume", tree, "--discard")
    assert refused.status == 12
    assert states(tree) == ["ready"] * 3
    assert hwctl_("consume", tree, "--discard", "-y").status == 0
    assert not tree.exists()


def test_check_only(tree: Path) -> None:
    before = sorted((path, path.stat().st_mtime_ns) for path in tree.rglob("*"))
    done = hwctl_("consume", tree, "--check-only", "--layers", "1-", "--json")
    assert (done.status, done.results[0]["outcome"]) == (0, "checked")
    assert layers_of(done.document) == [1, 2]
    assert done.results[0]["left"] == [0, 1, 2]
    assert sorted((path, path.stat().st_mtime_ns) for path in tree.rglob("*")) == before
    (tree / FILE).write_bytes(b"\x80" * 4096)
    done = hwctl_("consume", tree, "--check-only", "--json")
    assert done.status == 65
    assert [finding["code"] for row in done.results for finding in row["findings"]] == ["code-out-of-range"]


def test_a_dry_run_only_reads(tree: Path) -> None:
    done = hwctl_("consume", tree, "--discard", "-n", "--json")
    assert (done.status, done.document["dry_run"]) == (0, True)
    assert states(tree) == ["ready"] * 3


def test_a_damaged_layer_is_not_handed_over(tree: Path, tmp_path: Path) -> None:
    (tree / FILE).write_bytes(b"\x80" * 4096)
    done = hwctl_("consume", tree, "--to", tmp_path / "out", "--json")
    assert done.status == 65
    assert layers_of(done.document) == [0]
    assert sorted(os.listdir(tmp_path / "out")) == ["layer-00000.safetensors"]
    assert states(tree) == ["consumed", "ready", "ready"]


@pytest.mark.parametrize(
    ("words", "status"),
    [
        ((), 2),
        (("--discard", "--check-only"), 2),
        (("--to", "x", "--each", "y"), 2),
        (("--discard", "--layers", "1"), 2),
        (("--check-only", "--layers", "9"), 10),
        (("--each", "  "), 2),
        (("--each", "'"), 2),
        (("--check-only", "--family", "pageweights"), 2),
    ],
)
def test_usage(tree: Path, words: tuple[str, ...], status: int) -> None:
    assert hwctl_("consume", tree, *words).status == status
    assert states(tree) == ["ready"] * 3


def test_what_is_no_ready_tree(tree: Path) -> None:
    base = tree.parent
    assert hwctl_("consume", base, "--discard", "-y").status == 12
    assert hwctl_("consume", base / "kt-int8-not-there", "--discard", "-y").status == 10
    staging = make_ktint8.make_staging(base, "run-0002")
    assert hwctl_("consume", staging, "--discard", "-y").status != 0
    assert staging.exists()


def test_without_torch(tree: Path, tmp_path: Path) -> None:
    """What computes tensors says so, with nothing touched; everything else works."""
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden/torch.py").write_text("raise ImportError('not here')")
    env = {"PYTHONPATH": f"{tmp_path}/hidden:{environment()['PYTHONPATH']}"}
    golden = Path(__file__).parents[1] / "data/ktint8/golden/layers"
    for words in (
        ("consume", tree, "--to", tmp_path / "out"),
        ("publish", "ktint8", "--from", golden, "--run-id", "run-0002", "--base", tree.parent),
        ("publish", "ktint8", "--from", tree, "--persistent", tree.parent / "store"),
    ):
        refused = hwctl_(*words, "--json", env=env)
        assert (refused.status, refused.error["code"]) == (13, "unsupported")
    assert states(tree) == ["ready"] * 3
    assert os.listdir(tree.parent) == [tree.name]
    assert hwctl_("consume", tree, "--check-only", env=env).status == 0
    assert hwctl_("consume", tree, "--each", "true", env=env).status == 0
    assert not tree.exists()


@pytest.mark.needs_root
def test_another_users_tree(tree: Path) -> None:
    """Root may look, and is told how its owner would consume it."""
    if os.geteuid() != 0:
        pytest.skip("only root can give a tree away")
    document = json.loads((tree / make_ktint8.MANIFEST).read_text())
    (tree / make_ktint8.MANIFEST).write_text(json.dumps(document | {"owner_uid": 65534}))
    for path in (tree, *tree.rglob("*")):
        os.chown(path, 65534, 65534)
    assert hwctl_("consume", tree, "--check-only").status == 0
    refused = hwctl_("consume", tree, "--discard", "-y", "--json")
    assert refused.status == 12
    assert "consume" in refused.error["details"]["command"]
    staging = tree.rename(tree.with_name(f"{tree.name}.staging"))
    refused = hwctl_("publish", "ktint8", "--from", staging, "--json")
    assert (refused.status, refused.error["details"]["owner_uid"]) == (12, 65534)
    assert (staging / FILE).exists()


def test_a_second_consumer_is_refused(tree: Path) -> None:
    first = start("consume", tree, "--each", "sleep 30")
    try:
        while not lock_seen(tree):
            assert first.poll() is None, first.communicate()
            time.sleep(0.02)
        second = hwctl_("consume", tree, "--discard", "-y", "--json")
        assert (second.status, second.error["code"]) == (11, "busy")
        assert str(first.pid) in second.error["message"]
        assert states(tree)[1:] == ["ready", "ready"]
    finally:
        first.send_signal(signal.SIGKILL)
        first.communicate()


def lock_seen(tree: Path) -> bool:
    return f":{tree.stat().st_ino} " in Path("/proc/locks").read_text()


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_after_the_layer_in_hand(tree: Path, tmp_path: Path, signum: signal.Signals) -> None:
    mark = tmp_path / "begun"
    process = start("consume", tree, "--each", f"sh -c 'touch {mark}; sleep 1'", "--json")
    while not mark.exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.send_signal(signum)
    out, _err = process.communicate(timeout=60)
    assert process.returncode == -signum
    document = json.loads(out)
    assert (document["results"][0]["outcome"], layers_of(document)) == ("stopped", [0])
    assert states(tree) == ["consumed", "ready", "ready"]
    assert (tree / FILE).exists()
    again = hwctl_("consume", tree, "--discard", "-y", "--json")
    assert layers_of(again.document) == [1, 2]
    assert not tree.exists()


def test_after_sigkill_it_goes_on(tree: Path, tmp_path: Path) -> None:
    mark = tmp_path / "begun"
    process = start(
        "consume", tree, "--each", f"sh -c 'case $0 in *_layer_1) touch {mark}; exec sleep 5;; esac'"
    )
    while not mark.exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert states(tree) == ["consumed", "ready", "ready"]
    done = hwctl_("consume", tree, "--to", tmp_path / "out", "--json")
    assert done.status == 0, done.err
    assert layers_of(done.document) == [1, 2]


def test_under_exec_the_lease_is_converted(tree: Path) -> None:
    inner = f"exec {sys.executable} -P -m hwctl consume $HWCTL_ARTIFACT_PATH --discard -y"
    done = hwctl_("exec", tree, "--", "sh", "-c", inner)
    assert done.status == 0, done.err
    assert not tree.exists()


def test_strangers_files_stay(tree: Path) -> None:
    process = start("consume", tree, "--each", "sh -c 'touch $0/../mine'")
    _out, err = process.communicate(timeout=60)
    assert process.returncode == 12
    assert "mine" in err
    assert sorted(os.listdir(tree)) == [make_ktint8.MANIFEST, "mine"]
    (tree / "mine").unlink()
    assert hwctl_("consume", tree, "--discard", "-y").status == 0
    assert not tree.exists()
