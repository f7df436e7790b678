"""Copying artifacts that no writer of ours made: other spellings, other file names, other storage keys."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import make_hostweights
import pytest

from hwctl.core.publish_hostweights import Request, publish
from hwctl.core.publishing import Publishing
from hwctl.errors import Damaged

VALUES = {"a": b"\1\2", "b": b"\3\4\5"}


def container(entries: list[tuple[str, bytes]]) -> bytes:
    """Tensors in this order; a repeated name is written as often as it is given."""
    parts, at = [], 0
    for name, data in entries:
        entry = {"dtype": "U8", "shape": [len(data)], "data_offsets": [at, at + len(data)]}
        parts.append(f"{json.dumps(name)}: {json.dumps(entry)}")
        at += len(data)
    header = (" {" + ", ".join(parts) + "}\n").encode()
    return struct.pack("<Q", len(header)) + header + b"".join(data for _name, data in entries)


def make_artifact(root: Path, payloads: dict[str, bytes], places: dict[str, tuple[str, str]]) -> Path:
    """An artifact of VALUES whose tensors lie at (file, storage key), sealed as if upstream had."""
    tensors = []
    for name, (file, key) in sorted(places.items()):
        data = VALUES[name]
        described: dict[str, Any] = {"name": name, "kind": "buffer", "role": "scale", "dtype": "torch.uint8"}
        described |= {"shape": [len(data)], "stride": [1], "nbytes": len(data)}
        described["sha256"] = hashlib.sha256(data).hexdigest()
        tensors.append(described | {"file_name": file, "storage_key": key})
    content = hashlib.sha256()
    for entry in tensors:
        without = {key: value for key, value in entry.items() if key not in ("file_name", "storage_key")}
        content.update(make_hostweights.canonical(without))
    key = make_hostweights.key_of(5)
    manifest = {
        "schema_version": 1,
        "artifact_key": key,
        "identity": make_hostweights.identity(5),
        "producer_schema": "m",
        "restorer_schema": "r",
        "tensors": tensors,
        "files": [
            {"file_name": name, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            for name, data in sorted(payloads.items())
        ],
        "artifact_content_sha256": content.hexdigest(),
        "format_metadata": ["kept", None],
    }
    ready = {
        "schema_version": 1,
        "publication_id": "0" * 32,
        "manifest_sha256": make_hostweights.sha256(make_hostweights.canonical(manifest)),
        "artifact_content_sha256": content.hexdigest(),
        "integrity_mode": "full_checksum",
    }
    folder = root / "artifacts" / key
    folder.mkdir(mode=0o700)
    documents = {"manifest.json": manifest, "READY.json": ready}
    files = payloads | {name: make_hostweights.canonical(document) for name, document in documents.items()}
    for name, data in files.items():
        (folder / name).write_bytes(data)
        (folder / name).chmod(0o444)
    folder.chmod(0o555)
    return folder


@pytest.fixture
def other(tmp_path: Path) -> Path:
    return make_hostweights.make_store(tmp_path / "other")


def copy(artifact: Path, store: Path) -> dict[str, Any]:
    """The manifest of the copy, whose content is the source's."""
    result = publish(Request(artifact, store))
    assert result.outcome is Publishing.PUBLISHED
    ours: dict[str, Any] = json.loads((result.path / "manifest.json").read_bytes())
    theirs = json.loads((artifact / "manifest.json").read_bytes())
    for field in ("identity", "artifact_content_sha256", "format_metadata"):
        assert ours[field] == theirs[field]
    assert {entry["name"]: entry["sha256"] for entry in ours["tensors"]} == {
        name: hashlib.sha256(data).hexdigest() for name, data in VALUES.items()
    }
    assert {(entry["kind"], entry["role"]) for entry in ours["tensors"]} == {("buffer", "scale")}
    return ours


def test_another_order_and_spelling(other: Path, tmp_path: Path) -> None:
    payload = container([("b", VALUES["b"]), ("a", VALUES["a"])])
    places = {name: ("w.safetensors", name) for name in VALUES}
    copy(make_artifact(other, {"w.safetensors": payload}, places), tmp_path / "store")


def test_a_name_that_stands_twice_where_the_library_takes_the_last(other: Path, tmp_path: Path) -> None:
    parts = container([("a", VALUES["a"]), ("b", VALUES["b"])])
    length = struct.unpack("<Q", parts[:8])[0]
    header = parts[8 : 8 + length].replace(b' {"a"', b' {"b": ["I8", [9], [0, 9]], "a"')
    payload = struct.pack("<Q", len(header)) + header + parts[8 + length :]
    places = {name: ("w.safetensors", name) for name in VALUES}
    copy(make_artifact(other, {"w.safetensors": payload}, places), tmp_path / "store")


def test_other_storage_keys_shared_by_two_files(other: Path, tmp_path: Path) -> None:
    payloads = {f"{name}.safetensors": container([("x", data)]) for name, data in VALUES.items()}
    places = {name: (f"{name}.safetensors", "x") for name in VALUES}
    manifest = copy(make_artifact(other, payloads, places), tmp_path / "store")
    assert [entry["storage_key"] for entry in manifest["tensors"]] == ["a", "b"]
    assert [entry["file_name"] for entry in manifest["files"]] == ["a.safetensors", "b.safetensors"]


def test_a_file_name_without_the_suffix(other: Path, tmp_path: Path) -> None:
    payloads = {f"{name}.bin": container([(name, data)]) for name, data in VALUES.items()}
    places = {name: (f"{name}.bin", name) for name in VALUES}
    manifest = copy(make_artifact(other, payloads, places), tmp_path / "store")
    assert [entry["file_name"] for entry in manifest["files"]] == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ]


def test_tensors_that_were_exchanged_are_noticed(other: Path, tmp_path: Path) -> None:
    """Files and seal are sound, only the tensors' own digests are not theirs: no reader upstream looks."""
    payload = container([("a", b"\7\7"), ("b", VALUES["b"])])
    places = {name: ("w.safetensors", name) for name in VALUES}
    artifact = make_artifact(other, {"w.safetensors": payload}, places)
    with pytest.raises(Damaged) as caught:
        publish(Request(artifact, tmp_path / "store"))
    assert [finding.code for finding in caught.value.findings] == ["content-digest"]
    assert list((tmp_path / "store" / "artifacts").iterdir()) == []
    assert list((tmp_path / "store" / "tmp").iterdir()) == []
