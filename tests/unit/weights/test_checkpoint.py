"""Checkpoints as people have them: files, folders, indexes, link farms, and what goes missing."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import struct
from pathlib import Path

import pytest

from hwctl.errors import Damaged, NotFound
from hwctl.weights.checkpoint import Checkpoint, open_checkpoint

TINY = Path(__file__).parents[2] / "data" / "tiny-llama"
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"


def container(*names: str) -> bytes:
    """A file with a one-byte tensor per name, the byte being the tensor's place."""
    header = json.dumps(
        {name: {"dtype": "U8", "shape": [1], "data_offsets": [at, at + 1]} for at, name in enumerate(names)}
    ).encode()
    return struct.pack("<Q", len(header)) + header + bytes(range(len(names)))


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return Path(shutil.copytree(TINY, tmp_path / "tiny"))


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    """The tiny checkpoint as the Hugging Face cache keeps it: links into blobs named by their digest."""
    repository = tmp_path / "hub" / "models--acme--tiny-llama"
    folder = repository / "snapshots" / ("0123456789abcdef" * 3)[:40]
    folder.mkdir(parents=True)
    (repository / "blobs").mkdir()
    for file in TINY.iterdir():
        data = file.read_bytes()
        blob = hashlib.sha256(data).hexdigest() if file.suffix == ".safetensors" else "d" * 40 + file.name[:1]
        (repository / "blobs" / blob).write_bytes(data)
        (folder / file.name).symlink_to(Path("../../blobs") / blob)
    return folder


def refuse(path: Path) -> Damaged:
    with pytest.raises(Damaged) as caught:
        open_checkpoint(path)
    assert "\n" not in caught.value.message
    return caught.value


def codes(error: Damaged) -> list[str]:
    return [finding.code for finding in error.findings]


def names(checkpoint: Checkpoint) -> list[str]:
    return [shard.name for shard in checkpoint.shards]


def test_a_sharded_folder_with_an_index() -> None:
    checkpoint = open_checkpoint(TINY)
    assert names(checkpoint) == [FIRST, SECOND]
    assert len(checkpoint.weight_map) == 21
    assert checkpoint.weight_map["lm_head.weight"] == SECOND
    assert (checkpoint.model_id, checkpoint.revision) == ("tiny-llama", "local")
    assert checkpoint.config is not None
    assert checkpoint.config["model_type"] == "llama"


def test_the_folder_of_a_link_and_of_a_dot_is_the_real_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "current").symlink_to(TINY)
    assert open_checkpoint(tmp_path / "current").model_id == "tiny-llama"
    monkeypatch.chdir(TINY)
    assert open_checkpoint(Path(".")).model_id == "tiny-llama"


def test_one_file(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(container("a", "b"))
    (folder / "other.safetensors").write_bytes(container("a"))
    checkpoint = open_checkpoint(folder / "model.safetensors")
    assert names(checkpoint) == ["model.safetensors"]
    assert (checkpoint.model_id, checkpoint.revision, checkpoint.config) == ("my-model", "local", None)


def test_one_shard_of_several_may_be_named(tiny: Path) -> None:
    checkpoint = open_checkpoint(tiny / SECOND)
    assert (names(checkpoint), checkpoint.part_of) == ([SECOND], 2)
    assert open_checkpoint(tiny).part_of == 1


def test_without_an_index_the_missing_are_counted_among_all(tiny: Path) -> None:
    (tiny / INDEX).unlink()
    (tiny / FIRST).rename(tiny / "model-00002-of-00005.safetensors")
    (tiny / SECOND).unlink()
    with pytest.raises(Damaged, match="4 of 5 shards missing: model-00001-of-00005"):
        open_checkpoint(tiny)


def test_a_component_in_a_snapshot_has_the_name_of_the_whole(snapshot: Path) -> None:
    component = snapshot / "transformer" / "deep"
    shutil.copytree(TINY, component)
    whole, part = open_checkpoint(snapshot), open_checkpoint(component)
    assert (part.model_id, part.revision) == (whole.model_id, whole.revision) != ("deep", "local")


def test_the_index_may_be_named(tiny: Path) -> None:
    assert names(open_checkpoint(tiny / INDEX)) == [FIRST, SECOND]


def test_several_files_without_an_index(tiny: Path) -> None:
    (tiny / INDEX).unlink()
    checkpoint = open_checkpoint(tiny)
    assert names(checkpoint) == [FIRST, SECOND]
    assert checkpoint.weight_map == open_checkpoint(TINY).weight_map


def test_a_snapshot_of_the_cache(snapshot: Path) -> None:
    checkpoint = open_checkpoint(snapshot)
    assert (checkpoint.model_id, checkpoint.revision) == ("acme/tiny-llama", snapshot.name)
    for shard in checkpoint.shards:
        assert shard.blob_digest == hashlib.sha256(shard.path.read_bytes()).hexdigest()
        assert shard.path.parent.name == "blobs"
        assert not shard.path.is_symlink()


def test_a_file_of_a_snapshot_is_of_that_snapshot(snapshot: Path) -> None:
    checkpoint = open_checkpoint(snapshot / FIRST)
    assert (checkpoint.model_id, checkpoint.revision) == ("acme/tiny-llama", snapshot.name)


def test_a_model_without_an_organisation(tmp_path: Path) -> None:
    folder = tmp_path / "models--gpt2" / "snapshots" / "abc"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(container("a"))
    assert open_checkpoint(folder).model_id == "gpt2"


def test_blobs_shared_by_all_repositories(snapshot: Path) -> None:
    """Newer caches link a repository's blobs on to a store at the top; the digest is met on the way."""
    blobs = snapshot.parents[1] / "blobs"
    shared = snapshot.parents[2] / "blobs"
    shared.mkdir()
    for blob in list(blobs.iterdir()):
        blob.rename(shared / ("x-" + blob.name))
        blob.symlink_to(Path("../../blobs") / ("x-" + blob.name))
    checkpoint = open_checkpoint(snapshot)
    assert [shard.path.parent for shard in checkpoint.shards] == [shared, shared]
    assert all(shard.blob_digest == shard.path.name.removeprefix("x-") for shard in checkpoint.shards)


def test_dangling_links_are_all_listed_with_their_targets(snapshot: Path) -> None:
    """PUB-08: a copy that carried only the links."""
    blobs = snapshot.parents[1] / "blobs"
    targets = {}
    for name in (FIRST, SECOND):
        targets[name] = blobs / os.readlink(snapshot / name).rsplit("/", 1)[1]
        targets[name].unlink()
    error = refuse(snapshot)
    found = {finding.file: finding.actual for finding in error.findings if finding.code == "dangling-link"}
    assert found == {name: str(target) for name, target in targets.items()}
    assert "2 dangling links" in error.message
    for name, target in targets.items():
        assert f"{name} -> {target}" in error.message


def test_a_dangling_index_or_config_is_named(snapshot: Path) -> None:
    (snapshot.parents[1] / "blobs" / os.readlink(snapshot / INDEX).rsplit("/", 1)[1]).unlink()
    error = refuse(snapshot)
    assert (codes(error), error.findings[0].file) == (["dangling-link"], INDEX)


def test_a_circle_of_links(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").symlink_to("other.safetensors")
    (tmp_path / "other.safetensors").symlink_to("model.safetensors")
    assert codes(refuse(tmp_path / "model.safetensors")) == ["dangling-link"]


def test_a_missing_shard_is_named_in_one_line(tiny: Path) -> None:
    (tiny / SECOND).unlink()
    error = refuse(tiny)
    assert codes(error) == ["missing-shard"]
    assert f"1 of 2 shards missing: {SECOND}" in error.message


def test_all_shards_missing(tiny: Path) -> None:
    (tiny / FIRST).unlink()
    (tiny / SECOND).unlink()
    error = refuse(tiny)
    assert codes(error) == ["missing-shard", "missing-shard"]
    assert f"2 of 2 shards missing: {FIRST}, {SECOND}" in error.message


def test_without_an_index_the_numbers_tell_what_is_missing(tmp_path: Path) -> None:
    for number in (1, 4):
        (tmp_path / f"model-{number:05d}-of-00004.safetensors").write_bytes(container(f"t{number}"))
    error = refuse(tmp_path)
    assert [finding.file for finding in error.findings] == [
        "model-00002-of-00004.safetensors",
        "model-00003-of-00004.safetensors",
    ]


def test_no_shards_at_all(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    error = refuse(tmp_path)
    assert codes(error) == ["no-weights"]
    assert "pytorch_model.bin" in error.message


def test_shards_without_tensors(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(container())
    assert codes(refuse(tmp_path)) == ["no-weights"]


def test_a_directory_in_place_of_a_shard(tiny: Path) -> None:
    (tiny / FIRST).unlink()
    (tiny / FIRST).mkdir()
    error = refuse(tiny)
    assert codes(error) == ["not-a-file"]
    assert f"{FIRST} is a directory, not a file" in error.message
    assert "is a directory" in refuse(tiny / FIRST).message


def test_a_fifo_and_a_socket_do_not_hang(tiny: Path) -> None:
    (tiny / FIRST).unlink()
    os.mkfifo(tiny / FIRST)
    (tiny / SECOND).unlink()
    with socket.socket(socket.AF_UNIX) as listener:
        here = os.getcwd()
        os.chdir(tiny)
        try:
            listener.bind(SECOND)
        finally:
            os.chdir(here)
    assert [(finding.code, finding.actual) for finding in refuse(tiny).findings] == [
        ("not-a-file", "fifo"),
        ("not-a-file", "socket"),
    ]


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        open_checkpoint(tmp_path / "absent")


def test_a_cache_repository_points_to_its_snapshots(snapshot: Path) -> None:
    with pytest.raises(NotFound, match="snapshots"):
        open_checkpoint(snapshot.parents[1])


def rewrite_index(folder: Path, **changes: str | None) -> None:
    index = json.loads((folder / INDEX).read_text())
    for tensor, shard in changes.items():
        if shard is None:
            del index["weight_map"][tensor.replace("__", ".")]
        else:
            index["weight_map"][tensor.replace("__", ".")] = shard
    (folder / INDEX).write_text(json.dumps(index))


def test_the_index_promises_a_tensor_nobody_holds(tiny: Path) -> None:
    rewrite_index(tiny, model__lost__weight=SECOND)
    error = refuse(tiny)
    assert codes(error) == ["index-tensor-missing"]
    assert error.findings[0].actual == ["model.lost.weight"]
    assert "model.lost.weight" in error.message


def test_a_shard_holds_a_tensor_the_index_leaves_out(tiny: Path) -> None:
    rewrite_index(tiny, lm_head__weight=None)
    error = refuse(tiny)
    assert codes(error) == ["index-tensor-unlisted"]
    assert error.findings[0].file == SECOND


def test_the_index_places_a_tensor_in_the_wrong_shard(tiny: Path) -> None:
    rewrite_index(tiny, lm_head__weight=FIRST)
    assert codes(refuse(tiny)) == ["index-tensor-missing", "index-tensor-unlisted"]


def test_a_name_in_two_files(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(container("x", "y"))
    (tmp_path / "b.safetensors").write_bytes(container("y", "z"))
    error = refuse(tmp_path)
    assert codes(error) == ["tensor-in-two-shards"]
    assert "a.safetensors and b.safetensors both hold 1 tensor ('y')" in error.message


def test_files_beside_the_index_are_left_out_and_named(tiny: Path) -> None:
    (tiny / "consolidated.safetensors").write_bytes(container("x"))
    (tiny / ".partial.safetensors").write_bytes(b"")
    checkpoint = open_checkpoint(tiny)
    assert names(checkpoint) == [FIRST, SECOND]
    assert checkpoint.unused == ("consolidated.safetensors",)


def test_two_indexes_without_the_usual_one(tiny: Path) -> None:
    (tiny / INDEX).rename(tiny / "a.safetensors.index.json")
    shutil.copy(tiny / "a.safetensors.index.json", tiny / "b.safetensors.index.json")
    assert codes(refuse(tiny)) == ["index-ambiguous"]
    assert len(open_checkpoint(tiny / "a.safetensors.index.json").shards) == 2


INDEXES = {
    "empty file": (b"", "file-empty"),
    "a list": (b"[]", "index-malformed"),
    "no weight_map": (b'{"metadata":{}}', "index-malformed"),
    "empty weight_map": (b'{"weight_map":{}}', "index-malformed"),
    "a number for a name": (b'{"weight_map":{"a":1}}', "index-malformed"),
    "a path out of the folder": (b'{"weight_map":{"a":"../../etc/passwd"}}', "index-malformed"),
    "a name nobody can open": (b'{"weight_map":{"a":"\\ud800"}}', "index-malformed"),
    "a name that is too long": (b'{"weight_map":{"a":"' + b"x" * 300 + b'"}}', "index-malformed"),
    "key twice": (b'{"weight_map":{"a":"m","a":"n"}}', "index-malformed"),
    "nested": (b"[" * 100_000, "index-malformed"),
    "huge number": (b'{"weight_map":' + b"9" * 5000 + b"}", "index-malformed"),
    "not UTF-8": (b'{"\xff":1}', "index-malformed"),
    "LFS pointer": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 1\n",
        "lfs-pointer",
    ),
    "HTML": (b"<!doctype html><html></html>", "html-page"),
}


@pytest.mark.parametrize(("content", "code"), INDEXES.values(), ids=INDEXES.keys())
def test_an_odd_index_gives_a_reason(content: bytes, code: str, tiny: Path) -> None:
    (tiny / INDEX).write_bytes(content)
    error = refuse(tiny)
    assert codes(error) == [code]
    assert INDEX in error.message


def test_what_the_shards_really_are_is_said_of_each(tiny: Path) -> None:
    (tiny / FIRST).write_bytes(
        b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 7\n"
    )
    (tiny / SECOND).write_bytes((tiny / SECOND).read_bytes()[:-1])
    error = refuse(tiny)
    assert [(finding.code, finding.file) for finding in error.findings] == [
        ("lfs-pointer", FIRST),
        ("truncated", SECOND),
    ]
    assert FIRST in error.message


def test_a_config_that_is_no_json_is_damage(tiny: Path) -> None:
    (tiny / "config.json").write_text("{")
    assert codes(refuse(tiny)) == ["config-malformed"]


def test_python_numbers_in_a_config_are_let_through(tiny: Path) -> None:
    (tiny / "config.json").write_text('{"x": Infinity}')
    assert open_checkpoint(tiny).config == {"x": float("inf")}
