"""Publications that would succeed and be wrong, or fail once harm is done: refused with nothing touched."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import private_mounts
import pytest
from run_hwctl import Run, hwctl_

TINY = Path(__file__).parents[1] / "data" / "tiny-llama"
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def publish(source: Path, store: Path, *words: str | Path) -> Run:
    return hwctl_("publish", "hostweights", "--from", source, "--store", store, *words)


def manifest(store: Path) -> Path:
    (found,) = store.glob("artifacts/*/manifest.json")
    return found


def everything(store: Path) -> dict[str, tuple[int, int]]:
    """Every entry with inode and mtime."""
    found = {str(path.relative_to(store)): path.lstat() for path in store.rglob("*")}
    return {name: (st.st_ino, st.st_mtime_ns) for name, st in found.items()}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """A checkpoint of the same tensors with one byte changed."""
    folder = Path(shutil.copytree(TINY, tmp_path / "other"))
    shard = folder / SECOND
    shard.write_bytes(shard.read_bytes()[:-1] + b"\x01")
    return folder


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """The identity that hwctl derived for the tiny checkpoint."""
    assert publish(TINY, tmp_path / "first").status == 0
    path = tmp_path / "identity.json"
    path.write_text(json.dumps(json.loads(manifest(tmp_path / "first").read_bytes())["identity"]))
    return path


def test_an_identity_of_ours_stands_for_its_own_files(other: Path, store: Path, own: Path) -> None:
    run = publish(other, store, "--identity", own, "--json")
    assert (run.status, run.error["details"]["code"]) == (12, "other-checkpoint")
    key = manifest(own.parent / "first").parent.name
    assert run.error["details"]["expected"] == key
    assert run.error["details"]["actual"] in run.error["message"]
    assert not store.exists()
    assert publish(TINY, store, "--identity", own).status == 0
    assert manifest(store).parent.name == key


def test_what_somebody_vouched_for_is_not_taken_for_the_checkpoint(
    tmp_path: Path, store: Path, own: Path
) -> None:
    """Half the tensors under the whole one's key: the checkpoint is not called published then."""
    trusted = publish(TINY / FIRST, store, "--identity", own, "--trust-identity")
    assert trusted.status == 0
    assert "one of 2 shards" in trusted.err
    for words in ((), ("-n",)):
        run = publish(TINY, store, *words, "--json")
        assert (run.status, run.error["details"]["code"]) == (12, "identity-collision")


def test_a_store_whose_uuid_no_reader_takes(store: Path) -> None:
    """Upstream denies the sound artifact, and each rebuild fails and leaves one more copy in quarantine."""
    assert publish(TINY, store).status == 0
    path = store / "domain.json"
    document = json.loads(path.read_bytes()) | {"domain_uuid": "ü"}
    path.chmod(0o644)
    path.write_text(json.dumps(document))
    path.chmod(0o444)
    before = everything(store)
    for words in ((), ("-n",)):
        run = publish(TINY, store, *words)
        assert run.status == 12
        assert f"{path}: the domain_uuid" in run.err
    assert everything(store) == before


def test_folders_of_a_store_on_two_mounts(tmp_path: Path, store: Path) -> None:
    reason = private_mounts.why_not()
    if reason is not None:
        pytest.skip(reason)
    assert publish(TINY, store).status == 0
    with private_mounts.tmpfs(store / "artifacts", "size=8m,mode=700"):
        for words in ((), ("-n",)):
            run = publish(TINY, store, *words)
            assert run.status == 12
            assert f"{store}/artifacts is a mount of its own (tmpfs)" in run.err
        assert os.listdir(store / "artifacts") == os.listdir(store / "tmp") == []
    with private_mounts.tmpfs(store / "quarantine", "size=8m,mode=700"):
        assert publish(TINY, store).status == 0  # nothing has to be moved for what is there already


@pytest.mark.parametrize("below", ["", "store"])
def test_the_blobs_of_a_snapshot_are_its_source(tmp_path: Path, below: str) -> None:
    repository = tmp_path / "hub" / "models--acme--tiny"
    blobs, snapshot = repository / "blobs", repository / "snapshots" / "0123abcd"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for number, path in enumerate(sorted(TINY.iterdir())):
        shutil.copy(path, blobs / f"blob{number}")
        (snapshot / path.name).symlink_to(f"../../blobs/blob{number}")
    before = sorted(os.listdir(blobs))
    run = publish(snapshot, blobs / below)
    assert run.status == 12
    assert "lies among the source's files" in run.err
    assert sorted(os.listdir(blobs)) == before


def test_links_to_files_elsewhere_claim_no_folder(tmp_path: Path) -> None:
    for name in (FIRST, SECOND):
        shutil.copy(TINY / name, tmp_path / name)
    farm = tmp_path / "checkpoint"
    farm.mkdir()
    for path in TINY.iterdir():
        (farm / path.name).symlink_to(f"../{path.name}" if path.name in (FIRST, SECOND) else path)
    assert publish(farm, tmp_path / "store").status == 0


def test_one_shard_of_several_is_published_with_a_warning(store: Path) -> None:
    run = publish(TINY / FIRST, store)
    assert run.status == 0
    assert "the source is one of 2 shards; the others are not in the artifact" in run.err


@pytest.mark.parametrize(("levels", "status"), [(200, 0), (201, 2), (3000, 2)])
def test_metadata_is_no_deeper_than_readers_can_follow(
    tmp_path: Path, store: Path, levels: int, status: int
) -> None:
    path = tmp_path / "metadata.json"
    path.write_text("[" * levels + "]" * levels)
    run = publish(TINY, store, "--format-metadata", path)
    assert run.status == status, run.err
    if status:
        assert "nested" in run.err
        assert not store.exists()
    else:
        assert hwctl_("verify", store).status == 0
