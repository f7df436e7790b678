"""Manifest and marker: every rule, all findings, and one answer whichever way the text is read."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwctl.stores.hostweights import canonical, manifest_text
from hwctl.stores.hostweights.fields import Problems
from hwctl.stores.hostweights.identity import Identity
from hwctl.stores.hostweights.manifest import parse_manifest, parse_ready
from hwctl.stores.hostweights.manifest_text import ManifestText, read_text
from hwctl.stores.hostweights.records import FileEntry, Manifest, TensorEntry, content_digest, seal


def entry(name: str, **changes: Any) -> TensorEntry:
    plain = TensorEntry(
        name, "parameter", "weight", "m.safetensors", name, (2,), "torch.int8", (1,), 2, "0" * 64
    )
    return plain._replace(**changes)


@pytest.fixture
def document(identity: Identity) -> dict[str, Any]:
    """A sound manifest as a document."""
    tensors = [entry("a"), entry("b", kind="buffer", shape=(), stride=(), nbytes=1), entry("c")]
    files = [FileEntry("m.safetensors", 100, "1" * 64), FileEntry("n.safetensors", 0, "2" * 64)]
    sealed = seal(identity, tensors, files, {"x": [1]})
    found: dict[str, Any] = json.loads(sealed.manifest_bytes)
    return found


def parsed(document: object) -> tuple[Manifest | None, Problems]:
    problems = Problems("manifest.json")
    text = read_text(json.dumps(document).encode())
    return parse_manifest(text.value, problems, text.entries), problems


def test_what_was_sealed_is_read_back(identity: Identity, document: dict[str, Any]) -> None:
    found, problems = parsed(document)
    assert found is not None and not problems.found
    assert found.identity == identity and found.artifact_key == identity.key
    assert json.loads(canonical.encode(found.document())) == document
    assert found.artifact_content_sha256 == content_digest(found.tensors)


def test_the_content_digest_does_not_depend_on_the_files(document: dict[str, Any]) -> None:
    found, _ = parsed(document)
    assert found is not None
    moved = [t._replace(file_name="other.safetensors", storage_key="k") for t in found.tensors]
    assert content_digest(reversed(moved)) == found.artifact_content_sha256
    expected = hashlib.sha256()
    for item in document["tensors"]:
        rest = {name: item[name] for name in sorted(item) if name not in ("file_name", "storage_key")}
        expected.update(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode())
    assert expected.hexdigest() == found.artifact_content_sha256


@pytest.mark.parametrize(
    "change",
    [
        {"name": ""},
        {"name": 1},
        {"kind": "constant"},
        {"kind": None},
        {"role": ""},
        {"file_name": "../m.safetensors"},
        {"file_name": "."},
        {"file_name": "gone.safetensors"},
        {"storage_key": ""},
        {"storage_key": "b"},
        {"shape": [True]},
        {"shape": [2.0]},
        {"shape": [-1]},
        {"shape": "2"},
        {"stride": [1, 1]},
        {"stride": []},
        {"stride": [None]},
        {"nbytes": -1},
        {"nbytes": True},
        {"nbytes": 2.0},
        {"dtype": ""},
        {"sha256": "0" * 63},
        {"sha256": "A" * 64},
        {"sha256": None},
        {"name": "z"},
        {"name": "b"},
        {"extra": 1},
    ],
)
def test_one_wrong_field_of_a_tensor_is_refused(document: dict[str, Any], change: dict[str, Any]) -> None:
    document["tensors"][0].update(change)
    found, problems = parsed(document)
    assert found is None and problems.found
    assert all(finding.file == "manifest.json" for finding in problems.found)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("schema_version", True),
        ("schema_version", 0),
        ("artifact_key", "0" * 64),
        ("artifact_key", "x"),
        ("producer_schema", ""),
        ("tensors", []),
        ("tensors", {}),
        ("tensors", [1]),
        ("files", []),
        ("files", [{"file_name": "m.safetensors", "size": -1, "sha256": "1" * 64}]),
        ("artifact_content_sha256", 5),
        ("identity", {}),
        ("more", 1),
    ],
)
def test_a_wrong_top_level_field_is_refused(document: dict[str, Any], name: str, value: object) -> None:
    document[name] = value
    found, problems = parsed(document)
    assert found is None and problems.found


@pytest.mark.parametrize("value", [[], None, "x", 1, {}])
def test_other_json_is_refused(value: object) -> None:
    assert parsed(value)[0] is None
    problems = Problems("READY.json")
    assert parse_ready(value, problems) is None and problems.found


def test_a_million_defects_do_not_make_a_million_findings(document: dict[str, Any]) -> None:
    document["tensors"] = [{"name": number} for number in range(20_000)]
    document.update({f"unknown{number}": 1 for number in range(20_000)})
    _, problems = parsed(document)
    assert len(problems.found) < 100
    document = {name: value for name, value in document.items() if not name.startswith("unknown")}
    _, problems = parsed(document)
    assert 0 < len(problems.found) < 100
    assert sum(len(finding.message) for finding in problems.found) < 20_000


# Both ways of reading the text have to agree.

NAMES = st.text(min_size=1, max_size=6) | st.sampled_from(["a", "layers.0.w", '","tensors":[{"dtype":"'])
SIZES = st.lists(st.integers(0, 3) | st.integers(10**6, 10**40), max_size=3)
VALUES = st.none() | st.booleans() | st.integers(-2, 2**70) | st.floats(allow_nan=False) | NAMES | SIZES


PATCHES = [b"", b" ", b",", b"0", b'"', b"}", b"]", b"\xff", b"\\", b"\x00", b"e1"]


@st.composite
def manifests(draw: st.DrawFn) -> dict[str, Any]:
    """Mostly sound manifests (the identity aside) with a few values replaced by others."""
    names = draw(st.lists(NAMES, min_size=1, max_size=4, unique=True))
    tensors: list[Any] = []
    for name in sorted(names):
        shape = draw(SIZES)
        item = entry(name, storage_key=draw(st.just(name) | NAMES), shape=shape, stride=shape)._asdict()
        for field in draw(st.sets(st.sampled_from(sorted(item)), max_size=1)):
            item[field] = draw(VALUES)
        tensors.append(item)
    return {
        "artifact_content_sha256": "0" * 64,
        "files": [],
        "format_metadata": {"a": draw(VALUES), "tensors": [{"dtype": "x"}]},
        "tensors": tensors,
    }


def general(data: bytes) -> tuple[object, str] | None:
    try:
        found = canonical.parse(data)
    except canonical.BadDocument:
        return None
    return found.value, hashlib.sha256(found.canonical).hexdigest()


def whole(text: ManifestText) -> object:
    """The document again, with the tensors that were read apart put back."""
    if text.entries is None:
        return text.value
    assert isinstance(text.value, dict) and "tensors" not in text.value
    items = [json.loads(canonical.encode(item._asdict())) for item in text.entries]
    return {**text.value, "tensors": items}


def assert_agrees(data: bytes) -> None:
    expected = general(data)
    if expected is None:
        with pytest.raises(canonical.BadDocument):
            read_text(data)
        return
    found = read_text(data)
    assert found.sha256 == expected[1]
    assert canonical.encode(whole(found)) == canonical.encode(expected[0])


@settings(max_examples=300, deadline=None)
@given(manifests())
def test_both_ways_agree_on_canonical_text(document: dict[str, Any]) -> None:
    try:
        data = canonical.encode(document)
    except ValueError:  # an infinity
        return
    assert_agrees(data)


@settings(max_examples=300, deadline=None)
@given(manifests(), st.data())
def test_both_ways_agree_on_damaged_text(document: dict[str, Any], data: st.DataObject) -> None:
    try:
        text = bytearray(canonical.encode(document))
    except ValueError:
        return
    at = data.draw(st.integers(0, len(text) - 1))
    patch = data.draw(
        st.sampled_from([b"", b" ", b",", b"0", b'"', b"}", b"]", b"\xff", b"\\", b"\x00", b"e1"])
    )
    text[at : at + data.draw(st.integers(0, 2))] = patch
    assert_agrees(bytes(text))


def test_a_usual_manifest_is_read_the_quick_way(document: dict[str, Any]) -> None:
    data = canonical.encode(document)
    assert read_text(data).entries is not None
    assert read_text(json.dumps(document).encode()).entries is None
    assert manifest_text.read_text(data).sha256 == hashlib.sha256(data).hexdigest()


def test_reference_manifests_are_read_the_quick_way(tmp_path: Path) -> None:
    import make_hostweights

    root = make_hostweights.make_store(tmp_path / "store")
    folder = make_hostweights.make_artifact(root, 1)
    assert read_text((folder / "manifest.json").read_bytes()).entries is not None
