"""What ``hwctl publish hostweights`` refuses, and that nothing was written then (PUB-01, PUB-08, PUB-10)."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import make_hostweights
import pytest
from run_hwctl import Run, hwctl_

TINY = Path(__file__).parents[1] / "data" / "tiny-llama"
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def publish(source: Path, store: Path, *words: str | Path) -> Run:
    return hwctl_("publish", "hostweights", "--from", source, "--store", store, *words)


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return Path(shutil.copytree(TINY, tmp_path / "tiny"))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


def refuse(source: Path, store: Path) -> list[tuple[str, str | None]]:
    """Publishing gives 65 with a document that holds the findings; the store is not even created."""
    run = publish(source, store, "--json")
    assert run.status == 65, run.err
    (row,) = run.results
    assert (row["path"], row["state"]) == (str(source), "damaged")
    assert run.error["code"] == "damaged"
    assert not store.exists()
    return [(finding["code"], finding["file"]) for finding in row["findings"]]


def test_a_missing_shard(tiny: Path, store: Path) -> None:
    (tiny / SECOND).unlink()
    assert refuse(tiny, store) == [("missing-shard", SECOND)]
    told = publish(tiny, store)
    assert (told.status, told.out, len(told.err.splitlines())) == (65, "", 1)
    assert f"1 of 2 shards missing: {SECOND}" in told.err


def test_all_shards_missing(tiny: Path, store: Path) -> None:
    (tiny / FIRST).unlink()
    (tiny / SECOND).unlink()
    assert refuse(tiny, store) == [("missing-shard", FIRST), ("missing-shard", SECOND)]
    assert f"2 of 2 shards missing: {FIRST}, {SECOND}" in publish(tiny, store).err


def test_no_shards_at_all(tmp_path: Path, store: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert refuse(tmp_path / "empty", store) == [("no-weights", None)]


def test_a_directory_named_like_a_shard(tiny: Path, store: Path) -> None:
    (tiny / FIRST).unlink()
    (tiny / FIRST).mkdir()
    assert refuse(tiny, store) == [("not-a-file", FIRST)]
    assert refuse(tiny / FIRST, store) == [("not-a-file", FIRST)]


def test_dangling_links_with_their_targets(tiny: Path, tmp_path: Path, store: Path) -> None:
    """PUB-08: rsync carried the links and not the blobs."""
    farm = tmp_path / "farm"
    farm.mkdir()
    for file in tiny.iterdir():
        (farm / file.name).symlink_to(file)
    (tiny / SECOND).unlink()
    assert refuse(farm, store) == [("dangling-link", SECOND)]
    assert f"{SECOND} -> {tiny / SECOND}" in publish(farm, store).err


def test_what_the_files_really_are(tiny: Path, store: Path) -> None:
    (tiny / FIRST).write_bytes(b"<!doctype html><html></html>")
    (tiny / SECOND).write_bytes((tiny / SECOND).read_bytes() + b"x")
    findings = refuse(tiny, store)
    assert findings == [("html-page", FIRST), ("trailing-bytes", SECOND)]
    told = publish(tiny, store).err
    for code, file in findings:
        assert code in told
        assert str(file) in told


def test_an_unknown_dtype_is_refused(tmp_path: Path, store: Path) -> None:
    header = b'{"w":{"dtype":"Q4_K","shape":[4],"data_offsets":[0,4]}}'
    (tmp_path / "m.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    assert refuse(tmp_path / "m.safetensors", store) == [("unknown-dtype", "m.safetensors")]


def test_control_characters_in_names_are_shown_escaped(tmp_path: Path, store: Path) -> None:
    """CLI-02: a hostile header does not reach the terminal."""
    name = "\x1b[2J\n\u202e"
    entry = {"dtype": "U8", "shape": [2], "data_offsets": [0, 1]}
    header = json.dumps({name: entry}).encode()
    (tmp_path / "m.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(1))
    run = publish(tmp_path / "m.safetensors", store)
    assert (run.status, run.out, len(run.err.splitlines())) == (65, "", 1)
    assert not {"\x1b", "\u202e"} & set(run.err)


def test_the_store_may_not_lie_in_the_source_nor_the_source_in_the_store(tiny: Path, tmp_path: Path) -> None:
    """PUB-01: refused before any byte is written."""
    before = sorted(os.listdir(tiny))
    link = tmp_path / "link"
    link.symlink_to(tiny)
    for place in (tiny, tiny / "store", link / "deep" / "store"):
        assert publish(tiny, place).status == 12
    assert publish(link, tiny / "store").status == 12
    assert sorted(os.listdir(tiny)) == before
    inside = make_hostweights.make_store(tmp_path / "root")
    shutil.copytree(tiny, inside / "tiny")
    assert publish(inside / "tiny", inside).status == 12
    artifact = make_hostweights.make_artifact(inside, 1)
    assert publish(artifact, inside).status == 12
    assert os.listdir(inside / "artifacts") == [artifact.name]


def test_nothing_there(tmp_path: Path, store: Path) -> None:
    run = publish(tmp_path / "absent", store, "--json")
    assert (run.status, run.error["code"]) == (10, "not-found")
    assert not store.exists()


def test_links_in_a_circle(tmp_path: Path, store: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.symlink_to(two)
    two.symlink_to(one)
    assert refuse(one, store) == [("dangling-link", "one")]
    assert publish(TINY, one).status == 15


def test_an_unreadable_source_is_no_damage(tiny: Path, store: Path) -> None:
    """VER-10: what cannot be looked at is "could not check"; here a name too long for the file system."""
    run = publish(tiny / ("x" * 300), store, "--json")
    assert run.status == 15
    assert not store.exists()


USAGE: dict[str, Sequence[str]] = {
    "no source": ("--store", "s"),
    "no store": ("--from", "s"),
    "an empty source": ("--from", "", "--store", "s"),
    "an extra word": ("--from", "a", "--store", "s", "extra"),
    "an unknown option": ("--from", "a", "--store", "s", "--force"),
    "trust without an identity": ("--from", "a", "--store", "s", "--trust-identity"),
    "an identity and a name": ("--from", "a", "--store", "s", "--identity", "i", "--model-id", "m"),
    "another family": ("--from", "a", "--store", "s", "--family", "ktint8"),
    "an unknown scope": ("--from", "a", "--store", "s", "--scope", "rack"),
    "an ambiguous size": ("--from", "a", "--store", "s", "--max-store-size", "5G"),
    "a zero size": ("--from", "a", "--store", "s", "--min-free", "0"),
    "an ambiguous wait": ("--from", "a", "--store", "s", "--wait", "5m"),
    "no such identity file": ("--from", "a", "--store", "s", "--identity", "/absent/id.json"),
}


@pytest.mark.parametrize("words", USAGE.values(), ids=USAGE.keys())
def test_wrong_calls(words: Sequence[str], tmp_path: Path) -> None:
    run = hwctl_("publish", "hostweights", *words, "--json")
    assert (run.status, run.out, run.error["code"]) == (2, "", "usage")


IDENTITIES = {
    "no JSON": "{",
    "a number as text": json.dumps(make_hostweights.identity(1) | {"schema_version": "1"}),
}


@pytest.mark.parametrize("text", IDENTITIES.values(), ids=IDENTITIES.keys())
def test_a_bad_identity_file_is_a_usage_error(text: str, tmp_path: Path, store: Path) -> None:
    (tmp_path / "id.json").write_text(text)
    run = publish(TINY, store, "--identity", tmp_path / "id.json")
    assert run.status == 2
    assert "id.json" in run.err
    assert not store.exists()
