"""``hwctl publish hostweights`` as a process: what lands in the store, what is said, each status."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import make_hostweights
import pytest
from holders import locked, mapped
from run_hwctl import NOBODY, Run, hwctl_, start

TINY = Path(__file__).parents[1] / "data" / "tiny-llama"
TINY_KEY = "f88d3cd5f18795ce6b35abc58ad18b19a18b3d502f514025f6ce1800a70b3700"


def publish(source: Path, store: Path, *words: str | Path) -> Run:
    return hwctl_("publish", "hostweights", "--from", source, "--store", store, *words)


def result(run: Run) -> dict[str, Any]:
    (row,) = run.results
    return row


def manifest_of(artifact: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((artifact / "manifest.json").read_bytes())
    return loaded


def tensors_in(folder: Path) -> dict[str, tuple[str, list[int], bytes]]:
    """Every tensor of every payload below a folder, as the safetensors library reads it."""
    safetensors = pytest.importorskip("safetensors")
    return {
        name: (info["dtype"], info["shape"], bytes(info["data"]))
        for file in folder.glob("*.safetensors")
        for name, info in safetensors.deserialize(file.read_bytes())
    }


def everything(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Every file below a folder with its mode and bytes, lock files left out."""
    return {
        str(path.relative_to(folder)): (path.stat().st_mode, path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.parent.name != "locks"
    }


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "below" / "store"


def identity_file(path: Path, number: int = 1, contract: str | None = None) -> Path:
    document = make_hostweights.identity(number)
    if contract is not None:
        assert isinstance(document["layout"], dict)
        document["layout"]["metadata"] = {"tensor_contract_sha256": contract}
    path.write_text(json.dumps(document))
    return path


def contract_of(folder: Path) -> str:
    """The contract over a folder of two-dimensional or flat bf16 tensors, all of them weights."""
    rows = []
    for name, (_dtype, shape, _data) in sorted(tensors_in(folder).items()):
        stride = [shape[1], 1] if len(shape) == 2 else [1]
        row = {"name": name, "kind": "parameter", "role": "weight", "dtype": "torch.bfloat16"}
        rows.append(row | {"shape": shape, "stride": stride})
    return hashlib.sha256(make_hostweights.canonical(rows)).hexdigest()


def test_a_checkpoint_becomes_an_artifact(store: Path) -> None:
    run = publish(TINY, store)
    assert run.status == 0, run.err
    artifact = store / "artifacts" / TINY_KEY
    assert run.out == f"{artifact}\n"
    assert run.err == "published: 21 tensors, 13.5 KiB in 3 files\n"
    assert sorted(os.listdir(artifact)) == ["READY.json", "manifest.json", "model-00001-of-00001.safetensors"]
    assert tensors_in(artifact) == tensors_in(TINY)
    assert stat.S_IMODE(artifact.stat().st_mode) == 0o555
    assert {stat.S_IMODE(file.stat().st_mode) for file in artifact.iterdir()} == {0o444}
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in (store.parent, store)] == [0o700, 0o700]
    assert os.listdir(store / "tmp") == []


def test_the_document_of_a_publication(store: Path) -> None:
    run = publish(TINY, store, "--json")
    row = result(run)
    ready = json.loads((store / "artifacts" / TINY_KEY / "READY.json").read_bytes())
    assert (row["outcome"], row["state"], row["family"]) == ("published", "ready", "hostweights")
    assert (row["key"], row["path"]) == (TINY_KEY, str(store / "artifacts" / TINY_KEY))
    assert row["manifest_sha256"] == ready["manifest_sha256"]
    assert (row["tensors"], row["findings"], run.err) == (21, [], "")


def test_what_is_published_verifies_in_full(store: Path) -> None:
    publish(TINY, store)
    assert hwctl_("verify", store, "--level", "full").status == 0


def test_published_again_it_is_there_already(store: Path) -> None:
    """PUB-12."""
    first = result(publish(TINY, store, "--json"))
    before = everything(store)
    again = publish(TINY, store, "--json")
    assert (again.status, result(again)["outcome"]) == (0, "already-published")
    assert result(again)["manifest_sha256"] == first["manifest_sha256"]
    assert everything(store) == before
    said = publish(TINY, store).err
    assert said.startswith("already published (sizes checked; hwctl verify reads every byte): 21 tensors, ")


def test_a_publication_is_as_large_as_inspect_says(store: Path) -> None:
    row = result(publish(TINY, store, "--json"))
    (seen,) = hwctl_("inspect", store, "--json").results
    files = (store / "artifacts" / TINY_KEY).iterdir()
    assert (row["bytes"], row["files"]) == (seen["bytes"], seen["files"])
    assert row["bytes"] == sum(file.stat().st_size for file in files)
    planned = publish(TINY, store.with_name("other"), "-n").err
    assert planned == "planned: 21 tensors of 3.33 KiB in 1 payload\n"


@pytest.mark.parametrize(
    ("victim", "why"),
    [
        ("READY.json", "READY.json is missing"),
        ("model-00001-of-00001.safetensors", "'model-00001-of-00001.safetensors' is declared and not there"),
    ],
)
def test_an_artifact_that_lost_a_file_is_set_aside_and_that_is_said(
    store: Path, victim: str, why: str
) -> None:
    artifact = Path(publish(TINY, store).out.strip())
    artifact.chmod(0o755)
    (artifact / victim).unlink()
    artifact.chmod(0o555)
    foreseen = publish(TINY, store, "-n")
    warning = f"hwctl publish hostweights: warning: the artifact that was there was not sound ({why})"
    assert f"{warning} and will be set aside\n" in foreseen.err
    run = publish(TINY, store, "--json")
    (aside,) = (store / "quarantine").iterdir()
    assert (run.status, result(run)["outcome"]) == (0, "published")
    assert run.document["warnings"] == [
        f"the artifact that was there was not sound ({why}) and was set aside: {aside}"
    ]
    assert hwctl_("verify", artifact).status == 0


def test_a_payload_of_another_size_is_met_and_told(store: Path) -> None:
    artifact = Path(publish(TINY, store).out.strip())
    payload = artifact / "model-00001-of-00001.safetensors"
    payload.chmod(0o644)
    payload.write_bytes(payload.read_bytes()[:-1])
    payload.chmod(0o444)
    run = publish(TINY, store)
    assert run.status == 0
    assert f"was set aside: {store}/quarantine/{TINY_KEY}.validation_failure." in run.err
    assert "published: 21 tensors" in run.err
    assert hwctl_("verify", artifact).status == 0


def test_a_renamed_model_has_another_key(store: Path) -> None:
    publish(TINY, store)
    row = result(publish(TINY, store, "--model-id", "acme/tiny", "--revision", "v2", "--json"))
    assert (row["outcome"], row["key"] == TINY_KEY) == ("published", False)
    source = manifest_of(Path(row["path"]))["identity"]["source"]
    assert (source["model_id"], source["revision"]) == ("acme/tiny", "v2")


def test_a_snapshot_names_model_and_revision_and_its_files_become_real(tmp_path: Path, store: Path) -> None:
    repository = tmp_path / "models--acme--tiny"
    snapshot = repository / "snapshots" / ("ab" * 20)
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir()
    for file in TINY.iterdir():
        blob = hashlib.sha256(file.read_bytes()).hexdigest()
        shutil.copy(file, repository / "blobs" / blob)
        (snapshot / file.name).symlink_to(Path("../../blobs") / blob)
    row = result(publish(snapshot, store, "--json"))
    source = manifest_of(Path(row["path"]))["identity"]["source"]
    assert (source["model_id"], source["revision"]) == ("acme/tiny", "ab" * 20)
    assert not any(path.is_symlink() for path in store.rglob("*"))
    assert tensors_in(Path(row["path"])) == tensors_in(TINY)


def test_a_blob_that_is_not_what_its_name_says_is_refused(tmp_path: Path, store: Path) -> None:
    snapshot = tmp_path / "models--acme--tiny" / "snapshots" / "main"
    snapshot.mkdir(parents=True)
    blob = tmp_path / "models--acme--tiny" / "blobs" / ("0" * 64)
    blob.parent.mkdir()
    shutil.copy(TINY / "model-00001-of-00002.safetensors", blob)
    (snapshot / "model.safetensors").symlink_to(blob)
    for words in ((), ("--identity", identity_file(tmp_path / "id.json"), "--trust-identity")):
        run = publish(snapshot, store, *words, "--json")
        assert run.status == 65
        (finding,) = result(run)["findings"]
        assert (finding["code"], finding["expected"]) == ("blob-digest", "0" * 64)
        assert finding["actual"] == hashlib.sha256(blob.read_bytes()).hexdigest()
    assert not store.exists()


def test_a_dry_run_changes_nothing(tmp_path: Path, store: Path) -> None:
    run = publish(TINY, store, "-n", "--json")
    assert (run.status, result(run)["outcome"], result(run)["key"]) == (0, "planned", TINY_KEY)
    assert not store.parent.exists()
    publish(TINY, store)
    before = everything(tmp_path)
    locks = sorted(os.listdir(store / "locks"))
    assert result(publish(TINY, store, "--dry-run", "--json"))["outcome"] == "already-published"
    assert result(publish(TINY, store, "-n", "--model-id", "x", "--json"))["outcome"] == "planned"
    assert everything(tmp_path) == before
    assert sorted(os.listdir(store / "locks")) == locks


def test_an_artifact_of_another_store_is_copied_with_its_identity(tmp_path: Path, store: Path) -> None:
    other = make_hostweights.make_store(tmp_path / "other")
    artifact = make_hostweights.make_artifact(other, 3)
    row = result(publish(artifact, store, "--json"))
    copy = Path(row["path"])
    assert (row["outcome"], copy.name) == ("published", artifact.name)
    theirs, ours = manifest_of(artifact), manifest_of(copy)
    for field in ("identity", "artifact_content_sha256", "format_metadata", "tensors"):
        assert ours[field] == theirs[field]
    assert tensors_in(copy) == tensors_in(artifact)
    assert result(publish(artifact, store, "--json"))["outcome"] == "already-published"
    assert hwctl_("verify", store).status == 0


def damage_payload(artifact: Path) -> str:
    payload = artifact / "model.safetensors"
    payload.chmod(0o644)
    data = bytearray(payload.read_bytes())
    data[-1] ^= 1
    payload.write_bytes(data)
    payload.chmod(0o444)
    return "digest-mismatch"


def lie_about_a_tensor(artifact: Path) -> str:
    """A manifest whose tensor digest is false, sealed as if it were true; no reader upstream notices."""
    manifest = manifest_of(artifact)
    entry = manifest["tensors"][0]
    entry["sha256"] = "0" * 64
    described = {name: value for name, value in entry.items() if name not in ("file_name", "storage_key")}
    manifest["artifact_content_sha256"] = make_hostweights.sha256(make_hostweights.canonical(described))
    ready = json.loads((artifact / "READY.json").read_bytes())
    ready["artifact_content_sha256"] = manifest["artifact_content_sha256"]
    ready["manifest_sha256"] = make_hostweights.sha256(make_hostweights.canonical(manifest))
    for name, document in (("manifest.json", manifest), ("READY.json", ready)):
        (artifact / name).chmod(0o644)
        (artifact / name).write_bytes(make_hostweights.canonical(document))
        (artifact / name).chmod(0o444)
    return "content-digest"


@pytest.mark.parametrize("damage", [damage_payload, lie_about_a_tensor])
def test_a_damaged_artifact_is_not_copied(damage: Any, tmp_path: Path, store: Path) -> None:
    artifact = make_hostweights.make_artifact(make_hostweights.make_store(tmp_path / "other"), 3)
    code = damage(artifact)
    run = publish(artifact, store, "--json")
    assert run.status == 65
    assert [finding["code"] for finding in result(run)["findings"]] == [code]
    assert not store.exists() or (os.listdir(store / "artifacts"), os.listdir(store / "tmp")) == ([], [])


def test_a_denied_artifact_is_not_copied(tmp_path: Path, store: Path) -> None:
    other = make_hostweights.make_store(tmp_path / "other")
    artifact = make_hostweights.make_artifact(other, 3)
    (other / "deny" / f"{artifact.name}.json").touch()
    assert publish(artifact, store).status == 65


def test_an_artifact_that_is_not_there(tmp_path: Path, store: Path) -> None:
    other = make_hostweights.make_store(tmp_path / "other")
    assert publish(other / "artifacts" / make_hostweights.key_of(3), store).status == 10
    assert not store.exists()


def test_copying_changes_nothing_in_the_other_store(tmp_path: Path, store: Path) -> None:
    other = make_hostweights.make_store(tmp_path / "other")
    artifact = make_hostweights.make_artifact(other, 3, locks=False)
    before = everything(other)
    assert publish(artifact, store).status == 0
    assert everything(other) == before
    assert os.listdir(other / "locks") == ["domain-init.lock"]


def test_an_artifact_brings_its_own_identity(tmp_path: Path, store: Path) -> None:
    artifact = make_hostweights.make_artifact(make_hostweights.make_store(tmp_path / "other"), 3)
    assert publish(artifact, store, "--model-id", "x").status == 2
    assert publish(artifact.parents[1], store).status == 2  # a whole store is no artifact
    assert not store.exists()


def test_an_identity_of_another_producer_needs_the_contract_or_trust(tmp_path: Path, store: Path) -> None:
    plain = identity_file(tmp_path / "plain.json")
    run = publish(TINY, store, "--identity", plain, "--json")
    assert run.status == 12
    assert "--trust-identity" in run.error["message"]
    assert not store.exists()
    stated = identity_file(tmp_path / "stated.json", contract=contract_of(TINY))
    row = result(publish(TINY, store, "--identity", stated, "--json"))
    assert manifest_of(Path(row["path"]))["identity"] == json.loads(stated.read_text())
    wrong = identity_file(tmp_path / "wrong.json", contract="0" * 64)
    assert publish(TINY, store, "--identity", wrong).status == 12
    assert publish(TINY, store, "--identity", wrong, "--trust-identity").status == 0


def test_other_bytes_under_the_same_identity_are_refused(tmp_path: Path, store: Path) -> None:
    """PUB-12: both digests are shown, the first artifact is not touched, and its readers keep their bytes."""
    words = ("--identity", identity_file(tmp_path / "id.json"), "--trust-identity")
    first = Path(result(publish(TINY, store, *words, "--json"))["path"])
    assert result(publish(TINY, store, *words, "--json"))["outcome"] == "already-published"
    other = Path(shutil.copytree(TINY, tmp_path / "other"))
    shard = other / "model-00002-of-00002.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1] + b"\x01")
    before = everything(store)
    run = publish(other, store, *words, "--json")
    assert run.status == 12
    details = run.error["details"]
    assert details["existing_content_sha256"] == manifest_of(first)["artifact_content_sha256"]
    assert details["new_content_sha256"] != details["existing_content_sha256"]
    assert details["existing_content_sha256"] in run.error["message"]
    assert details["new_content_sha256"] in run.error["message"]
    assert everything(store) == before
    assert publish(other, store, *words, "-n").status == 12


def test_format_metadata_is_kept_and_held_against_what_is_there(tmp_path: Path, store: Path) -> None:
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    one.write_text('{"note": ["ü", 1.5, null]}')
    two.write_text("null")
    row = result(publish(TINY, store, "--format-metadata", one, "--json"))
    assert manifest_of(Path(row["path"]))["format_metadata"] == {"note": ["ü", 1.5, None]}
    assert publish(TINY, store, "--format-metadata", one).status == 0
    assert publish(TINY, store).status == 0
    assert publish(TINY, store, "--format-metadata", two).status == 12
    one.write_text('{"a": NaN}')
    assert publish(TINY, store, "--format-metadata", one).status == 2
    assert publish(TINY, store, "--format-metadata", tmp_path / "absent").status == 2


def test_the_limits_of_a_new_store(tmp_path: Path, store: Path) -> None:
    run = publish(TINY, store, "--max-artifact-size", "4KiB", "--json")
    assert (run.status, run.error["code"]) == (14, "no-room")
    policy = json.loads((store / "domain-policy.json").read_bytes())
    assert (policy["max_artifact_bytes"], policy["max_store_bytes"]) == (4096, None)
    assert publish(TINY, store).status == 14  # the store keeps its limits
    assert publish(TINY, store, "--max-artifact-size", "1GiB").status == 12  # and does not change them
    assert (os.listdir(store / "artifacts"), os.listdir(store / "tmp")) == ([], [])
    other = tmp_path / "other"
    words = ("--scope", "numa", "--domain-id", "numa1", "--max-store-size", "1GiB", "--min-free", "1MiB")
    assert publish(TINY, other, *words).status == 0
    domain = json.loads((other / "domain.json").read_bytes())
    assert (domain["scope"], domain["domain_id"]) == ("numa", "numa1")


def test_a_store_without_options_is_one_vllm_omni_opens(store: Path) -> None:
    publish(TINY, store)
    policy = json.loads((store / "domain-policy.json").read_bytes())
    assert (policy["max_artifact_bytes"], policy["max_store_bytes"], policy["min_free_bytes"]) == (
        None,
        None,
        0,
    )


@pytest.mark.parametrize("ordered", [(), ("--ordered",)], ids=["default", "ordered"])
def test_every_kind_of_tensor_is_published(ordered: Sequence[str], tmp_path: Path, store: Path) -> None:
    """Scalars, empty tensors and eight-bit floats among them; upstream cannot write the first two."""
    torch = pytest.importorskip("torch")
    save = pytest.importorskip("safetensors.torch").save_file
    tensors = {
        "z.scalar": torch.tensor(1.5),
        "a.empty": torch.zeros(3, 0, 2),
        "b.bool": torch.tensor([True, False, True]),
        "c.fp8": torch.arange(6).to(torch.float8_e4m3fn).reshape(2, 3),
        "d.ü": torch.arange(5, dtype=torch.int64),
        "e.e8m0": torch.ones(3).to(torch.float8_e8m0fnu),
        "f.complex": torch.ones(2, dtype=torch.complex64),
        "g.large": torch.arange(3 << 20, dtype=torch.int16),
    }
    source = tmp_path / "model.safetensors"
    save(tensors, source)
    row = result(publish(source, store, *ordered, "--json"))
    assert row["outcome"] == "published"
    artifact = Path(row["path"])
    assert tensors_in(artifact) == tensors_in(tmp_path)
    manifest = manifest_of(artifact)
    assert manifest["identity"]["representation"]["dtype"] == "mixed"
    for entry in manifest["tensors"]:
        tensor = tensors[entry["name"]]
        assert (entry["shape"], entry["stride"]) == (list(tensor.shape), list(tensor.stride()))
        assert entry["dtype"] == str(tensor.dtype)
    assert hwctl_("verify", store).status == 0


def test_four_bit_tensors_have_the_shape_torch_gives_them(tmp_path: Path, store: Path) -> None:
    header = b'{"w":{"dtype":"F4","shape":[2,8],"data_offsets":[0,8]}}'
    (tmp_path / "m.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(range(8)))
    row = result(publish(tmp_path / "m.safetensors", store, "--json"))
    (entry,) = manifest_of(Path(row["path"]))["tensors"]
    assert (entry["dtype"], entry["shape"], entry["nbytes"]) == ("torch.float4_e2m1fn_x2", [2, 4], 8)
    assert hwctl_("verify", store).status == 0


def test_six_bit_tensors_cannot_be_published(tmp_path: Path, store: Path) -> None:
    header = b'{"w":{"dtype":"F6_E2M3","shape":[4],"data_offsets":[0,3]}}'
    (tmp_path / "m.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(3))
    assert publish(tmp_path / "m.safetensors", store).status == 13
    assert not store.exists()


def test_files_the_index_leaves_out_are_warned_about(tmp_path: Path, store: Path) -> None:
    source = Path(shutil.copytree(TINY, tmp_path / "tiny"))
    shutil.copy(TINY / "model-00001-of-00002.safetensors", source / "consolidated.safetensors")
    run = publish(source, store, "--json")
    assert run.status == 0
    assert ["consolidated.safetensors" in warning for warning in run.document["warnings"]] == [True]


def test_eight_at_once(tmp_path: Path, store: Path) -> None:
    """PUB-12: one builds, the others join it or find it there."""
    processes = [
        start("publish", "hostweights", "--from", TINY, "--store", store, "--json", "--wait", "1min")
        for _ in range(8)
    ]
    outcomes = []
    for process in processes:
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        outcomes.append(json.loads(out)["results"][0]["outcome"])
    assert outcomes.count("published") == 1
    assert set(outcomes) <= {"published", "joined", "already-published"}
    assert (os.listdir(store / "artifacts"), os.listdir(store / "tmp")) == ([TINY_KEY], [])


def test_a_busy_key_is_waited_for_and_then_busy(store: Path) -> None:
    publish(TINY, store)
    (store / "artifacts" / TINY_KEY).chmod(0o700)
    shutil.rmtree(store / "artifacts" / TINY_KEY)
    with locked(store / "locks" / f"{TINY_KEY}.build.lock", "exclusive") as pid:
        run = publish(TINY, store, "--wait", "0.2s", "--json")
    assert (run.status, run.error["retryable"]) == (11, True)
    assert str(pid) in json.dumps(run.error)
    assert publish(TINY, store).status == 0


def test_a_damaged_artifact_is_replaced(store: Path) -> None:
    """As upstream's get-or-build does: it is set aside, and the key is built anew."""
    artifact = Path(result(publish(TINY, store, "--json"))["path"])
    (artifact / "manifest.json").chmod(0o644)
    row = result(publish(TINY, store, "--json"))
    assert row["outcome"] == "published"
    assert len(os.listdir(store / "quarantine")) == 1
    assert os.listdir(store / "deny") == []
    assert hwctl_("verify", artifact).status == 0


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's store")


@needs_root
def test_another_users_store_is_refused_with_the_command_for_its_owner(store: Path) -> None:
    store.mkdir(parents=True)
    os.chown(store, NOBODY, NOBODY)
    run = publish(TINY, store, "--json")
    assert run.status == 12
    assert f"sudo -u '#{NOBODY}' hwctl publish hostweights" in run.error["message"]
    assert os.listdir(store) == []


def test_readers_of_an_old_artifact_keep_their_bytes(store: Path) -> None:
    """PUB-01: nothing is written over an artifact that somebody has mapped."""
    artifact = Path(result(publish(TINY, store, "--json"))["path"])
    payload = artifact / "model-00001-of-00001.safetensors"
    inode = payload.stat().st_ino
    with mapped(payload):
        publish(TINY, store)
        assert payload.stat().st_ino == inode


def test_a_later_versions_artifact_is_neither_replaced_nor_copied(store: Path, tmp_path: Path) -> None:
    """Upstream sets it aside and builds anew; hwctl says that another version is wanted, and leaves it."""
    artifact = Path(result(publish(TINY, store, "--json"))["path"])
    artifact.chmod(0o755)
    manifest, ready = artifact / "manifest.json", artifact / "READY.json"
    for path in (manifest, ready):
        path.chmod(0o644)
    manifest.write_bytes(
        make_hostweights.canonical(json.loads(manifest.read_bytes()) | {"schema_version": 2})
    )
    seal = {"manifest_sha256": make_hostweights.sha256(manifest.read_bytes())}
    ready.write_bytes(make_hostweights.canonical(json.loads(ready.read_bytes()) | seal))
    for path in (manifest, ready):
        path.chmod(0o444)
    artifact.chmod(0o555)
    for words in ((TINY, store), (TINY, store, "-n"), (artifact, tmp_path / "other")):
        run = publish(*words)
        assert run.status == 13 and "schema 2" in run.err, run
    assert hwctl_("verify", artifact).status == 13
    assert not list((store / "quarantine").iterdir())
