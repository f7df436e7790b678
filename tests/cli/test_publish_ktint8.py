"""``hwctl publish ktint8`` as a process: outcomes, statuses, documents, signals."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import make_ktint8
import pytest
from run_hwctl import hwctl_, start

GOLDEN = Path(__file__).parents[1] / "data/ktint8/golden"
LAYERS = GOLDEN / "layers"
TWO_PARTS = GOLDEN / "two-parts"
MANIFEST = make_ktint8.MANIFEST


@pytest.fixture
def base(shm: Path) -> Path:
    return shm


@pytest.fixture
def run() -> str:
    return f"test-{secrets.token_hex(4)}"


def manifest(root: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((root / MANIFEST).read_text())
    return loaded


def test_a_checkpoint(base: Path, run: str) -> None:
    done = hwctl_("publish", "ktint8", "--from", LAYERS, "--run-id", run, "--base", base, "--json")
    assert done.status == 0, done.err
    (result,) = done.results
    root = base / f"kt-int8-{run}"
    assert (result["outcome"], result["state"], result["path"]) == ("published", "ready", str(root))
    assert result["detail"]["layers"]["indices"] == [2, 4]
    assert os.listdir(base) == [root.name]
    assert [layer["index"] for layer in manifest(root)["layers"]] == [2, 4]
    again = hwctl_("publish", "ktint8", "--from", LAYERS, "--run-id", run, "--base", base, "--json")
    assert (again.status, again.results[0]["outcome"]) == (0, "already-published")
    assert again.results[0]["manifest_sha256"] == result["manifest_sha256"]


def test_text_is_the_path_alone(base: Path, run: str) -> None:
    done = hwctl_("publish", "ktint8", "--from", TWO_PARTS, "--run-id", run, "--base", base, "--numa", "2")
    assert done.out == f"{base}/kt-int8-{run}\n"
    assert done.err.startswith("published: 1 layer")
    assert manifest(base / f"kt-int8-{run}")["threadpool_count"] == 2


@pytest.mark.parametrize("cut", [True, False])
def test_a_tree_that_lost_bytes_is_not_called_published(base: Path, run: str, cut: bool) -> None:
    words = ("publish", "ktint8", "--from", TWO_PARTS, "--run-id", run, "--base", base, "--numa", "2")
    root = Path(hwctl_(*words).out.strip())
    again = hwctl_(*words)
    assert again.status == 0
    assert again.err.startswith("already published (sizes checked; hwctl verify reads every byte): 1 layer, ")
    (seen,) = hwctl_("inspect", base, "--json").results
    assert hwctl_(*words, "--json").results[0]["bytes"] == seen["bytes"]
    victim = sorted(root.rglob("*.kt"))[0]
    victim.write_bytes(b"short") if cut else victim.unlink()
    for more in ((), ("-n",)):
        damaged = hwctl_(*words, *more, "--json")
        assert damaged.status == 65
        found = [(item["code"], item["file"]) for item in damaged.results[0]["findings"]]
        assert found == [("file-size" if cut else "missing-file", str(victim.relative_to(root)))]
        assert "quarantine it" in damaged.error["message"]
    assert not victim.exists() or victim.read_bytes() == b"short"


def test_layers_and_jobs(base: Path, run: str) -> None:
    words = ("publish", "ktint8", "--from", LAYERS, "--base", base)
    one = hwctl_(*words, "--run-id", run, "--layers", "3-", "--jobs", "1", "--json")
    assert one.results[0]["detail"]["layers"]["indices"] == [4]
    two = hwctl_(*words, "--run-id", f"{run}b", "--layers", "4", "--jobs", "4", "--json")
    files = [
        [(file["path"], file["sha256"]) for file in layer["files"]]
        for name in (run, f"{run}b")
        for layer in manifest(base / f"kt-int8-{name}")["layers"]
    ]
    assert two.status == 0
    assert files[0] == files[1]


def test_a_dry_run_writes_nothing(base: Path, run: str) -> None:
    done = hwctl_("publish", "ktint8", "--from", LAYERS, "--run-id", run, "--base", base, "-n", "--json")
    assert (done.status, done.results[0]["outcome"], done.document["dry_run"]) == (0, "planned", True)
    assert done.results[0]["state"] == "absent"
    assert done.results[0]["manifest_sha256"] is None
    assert os.listdir(base) == []
    staging = make_ktint8.make_staging(base, run)
    before = sorted(staging.rglob("*"))
    done = hwctl_("publish", "ktint8", "--from", staging, "-n", "--json")
    assert (done.status, done.results[0]["outcome"]) == (0, "planned")
    assert sorted(staging.rglob("*")) == before


def test_the_base_is_made(base: Path, run: str) -> None:
    done = hwctl_("publish", "ktint8", "--from", LAYERS, "--run-id", run, "--base", base / "a/b")
    assert done.status == 0
    assert (base / "a/b").stat().st_mode & 0o777 == 0o700


def test_a_damaged_checkpoint(base: Path, run: str, tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "sharded", tmp_path / "model")
    next(path for path in (tmp_path / "model").glob("*00002*")).unlink()
    done = hwctl_(
        "publish", "ktint8", "--from", tmp_path / "model", "--run-id", run, "--base", base, "--json"
    )
    assert done.status == 65
    assert done.error["code"] == "damaged"
    assert done.results[0]["findings"]
    assert os.listdir(base) == []


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (("--run-id", "abc"), 2),
        (("--run-id", "abcdef.staging"), 2),
        ((), 2),
        (("--run-id", "abcdef", "--numa", "3"), 2),
        (("--run-id", "abcdef", "--numa", "0"), 2),
        (("--run-id", "abcdef", "--layers", "9-"), 2),
        (("--run-id", "abcdef", "--layers", "x"), 2),
        (("--run-id", "abcdef", "--persistent", "/nowhere/x"), 2),
        (("--run-id", "abcdef", "--family", "hostweights"), 2),
    ],
)
def test_usage(base: Path, words: tuple[str, ...], status: int) -> None:
    where = () if "--persistent" in words else ("--base", base)
    assert hwctl_("publish", "ktint8", "--from", LAYERS, *where, *words).status == status
    assert os.listdir(base) == []


def test_nothing_there(base: Path, run: str) -> None:
    assert hwctl_("publish", "ktint8", "--from", base / "x", "--run-id", run, "--base", base).status == 10


def test_a_name_that_is_taken(base: Path, run: str) -> None:
    root = make_ktint8.make_ready(base, run)
    before = sorted(base.rglob("*"))
    done = hwctl_("publish", "ktint8", "--from", LAYERS, "--run-id", run, "--base", base, "--json")
    assert (done.status, done.error["code"]) == (12, "refused")
    assert str(root) in done.error["message"]
    assert sorted(base.rglob("*")) == before


def test_a_staging_tree_of_another_converter(base: Path, run: str) -> None:
    staging = make_ktint8.make_staging(base, run, layers=3)
    done = hwctl_("publish", "ktint8", "--from", staging, "--run-id", run, "--layers", "0-2", "--json")
    assert done.status == 0, done.err
    root = base / f"kt-int8-{run}"
    assert done.results[0]["path"] == str(root)
    document = manifest(root)
    assert all(len(file["sha256"]) == 64 for layer in document["layers"] for file in layer["files"])
    assert sorted(os.listdir(root)) == ["_layer_0", "_layer_1", "_layer_2", MANIFEST]
    assert hwctl_("verify", root).status == 0


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (("--layers", "0-3"), 65),
        (("--numa", "2"), 65),
        (("--run-id", "other-run"), 2),
        (("--base", "/dev/shm"), 2),
    ],
)
def test_a_staging_tree_that_is_not_what_was_expected(
    base: Path, words: tuple[str, ...], status: int
) -> None:
    staging = make_ktint8.make_staging(base, "run-0001")
    before = sorted(base.rglob("*"))
    done = hwctl_("publish", "ktint8", "--from", staging, *words, "--json")
    assert done.status == status
    assert sorted(base.rglob("*")) == before


def test_a_base_is_the_same_by_any_name(base: Path, run: str, tmp_path: Path) -> None:
    staging = make_ktint8.make_staging(base, run)
    (tmp_path / "link").symlink_to(base)
    (tmp_path / "loop").symlink_to("loop")
    circle = hwctl_("publish", "ktint8", "--from", staging, "--base", tmp_path / "loop", "-n")
    assert circle.status == 2 and "does not lie in" in circle.err
    assert hwctl_("publish", "ktint8", "--from", staging, "--base", tmp_path / "link", "-n").status == 0


def test_a_staging_tree_whose_producer_lives(base: Path, run: str) -> None:
    staging = make_ktint8.make_staging(base, run, pid=os.getpid())
    done = hwctl_("publish", "ktint8", "--from", staging, "--json")
    assert done.status == 12
    assert str(os.getpid()) in done.error["message"]
    assert (staging / make_ktint8.LEASE).exists()


def test_a_persistent_store(base: Path, run: str, tmp_path: Path) -> None:
    hwctl_("publish", "ktint8", "--from", LAYERS, "--run-id", run, "--base", base)
    direct = hwctl_("publish", "ktint8", "--from", LAYERS, "--persistent", tmp_path / "a/direct", "--json")
    assert direct.status == 0, direct.err
    words = ("publish", "ktint8", "--from", base / f"kt-int8-{run}", "--persistent", tmp_path / "copied")
    planned = hwctl_(*words, "-n", "--json")
    assert planned.results[0]["outcome"] == "planned"
    assert planned.document["totals"] == direct.document["totals"]
    assert not (tmp_path / "copied").exists()
    copied = hwctl_(*words)
    assert copied.status == 0, copied.err
    documents = [
        json.loads((path / "kt-weight-manifest.json").read_text())
        for path in (tmp_path / "a/direct", tmp_path / "copied")
    ]
    assert documents[0]["layers"] == documents[1]["layers"]
    assert all(document["schema_version"] == 2 for document in documents)
    assert (base / f"kt-int8-{run}").exists()
    for path in (tmp_path / "a/direct", tmp_path / "copied"):
        assert hwctl_("verify", path).status == 0
    again = hwctl_("publish", "ktint8", "--from", LAYERS, "--persistent", tmp_path / "a/direct", "--json")
    assert again.results[0]["outcome"] == "already-published"
    over = hwctl_("publish", "ktint8", "--from", TWO_PARTS, "--persistent", tmp_path / "copied")
    assert over.status == 12
    assert sorted(os.listdir(tmp_path)) == ["a", "copied"]


def test_a_flipped_byte_is_not_copied(base: Path, run: str, tmp_path: Path) -> None:
    hwctl_("publish", "ktint8", "--from", LAYERS, "--run-id", run, "--base", base)
    path = next((base / f"kt-int8-{run}").rglob("*quant*"))
    data = bytearray(path.read_bytes())
    data[9] ^= 1
    path.write_bytes(data)
    done = hwctl_(
        "publish", "ktint8", "--from", base / f"kt-int8-{run}", "--persistent", tmp_path / "s", "--json"
    )
    assert done.status == 65
    assert done.results[0]["findings"][0]["code"] == "digest-mismatch"
    assert os.listdir(tmp_path) == []


def test_two_at_once(base: Path, run: str) -> None:
    words = ("publish", "ktint8", "--from", LAYERS, "--run-id", run, "--base", base, "--json")
    processes = [start(*words) for _ in range(3)]
    outcomes = []
    for process in processes:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        outcomes.append(json.loads(out)["results"][0]["outcome"])
    assert sorted(outcomes).count("published") == 1
    assert set(outcomes) <= {"published", "joined", "already-published"}
    assert os.listdir(base) == [f"kt-int8-{run}"]


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_removes_the_staging(base: Path, run: str, tmp_path: Path, signum: signal.Signals) -> None:
    """PUB-07: the ready name is never half there, and the process dies of the signal."""
    model = large(tmp_path / "model")
    process = start("publish", "ktint8", "--from", model, "--run-id", run, "--base", base, "--jobs", "2")
    staging = base / f"kt-int8-{run}.staging"
    while not any(staging.glob("_layer_[0-9]")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)
    process.send_signal(signum)
    process.communicate(timeout=60)
    assert process.returncode == -signum
    assert os.listdir(base) == []


def test_after_sigkill_the_next_run_goes_on(base: Path, run: str, tmp_path: Path) -> None:
    model = large(tmp_path / "model")
    words = ("publish", "ktint8", "--from", model, "--run-id", run, "--base", base)
    process = start(*words)
    staging = base / f"kt-int8-{run}.staging"
    # A layer has its name a moment before the lease says so: where the second has it, the first is on record.
    while len(list(staging.glob("_layer_[0-9]"))) < 2:
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)
    process.kill()
    process.communicate()
    assert not (base / f"kt-int8-{run}").exists()
    done = hwctl_(*words, "--json")
    assert done.status == 0, done.err
    assert done.results[0]["kept_layers"] >= 1
    assert hwctl_("verify", base / f"kt-int8-{run}", "--for", model).status == 0
    assert os.listdir(base) == [f"kt-int8-{run}"]


def large(folder: Path) -> Path:
    """A model whose conversion takes long enough to be interrupted: 8 layers of 8 experts, 256 x 512."""
    import torch
    from safetensors.torch import save_file

    config = {
        "model_type": "qwen3_moe",
        "hidden_size": 512,
        "moe_intermediate_size": 256,
        "num_experts": 8,
        "num_hidden_layers": 8,
    }
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    torch.manual_seed(1)
    gate, down = torch.randn(256, 512).bfloat16(), torch.randn(512, 256).bfloat16()
    tensors = {
        f"model.layers.{layer}.mlp.experts.{expert}.{name}_proj.weight": (
            down if name == "down" else gate
        ).clone()
        for layer in range(8)
        for expert in range(8)
        for name in ("gate", "up", "down")
    }
    save_file(tensors, folder / "model.safetensors")
    return folder
