"""Both manifests: every key's rule, coverage, and what is kept for a cleanup. Any bytes give findings."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ktroot
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hwctl.fs.liveness import Process
from hwctl.stores.ktint8.layers import LayerState
from hwctl.stores.ktint8.manifest import Manifest, Parsed, Schema
from hwctl.stores.ktint8.manifest_reader import parse
from hwctl.stores.ktint8.manifest_text import (
    Origin,
    Rewriter,
    ephemeral_text,
    layer_text,
    persistent_text,
)
from hwctl.weights.amx import Geometry

Doc = dict[str, Any]
Edit = Callable[[Doc], object]
GEOMETRY = Geometry(hidden=64, intermediate=128, experts=2, parts=2)
PROCESS = Process(4711, 99, "01234567-89ab-cdef-0123-456789abcdef", 4026531836)


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Doc]:
    base: Path = tmp_path_factory.mktemp("trees")
    root = ktroot.persistent(base)
    return {1: ktroot.manifest_v1(root, ktroot.RUN, ktroot.GEO), 2: ktroot.manifest_v2(root, ktroot.GEO)}


def copy(document: Doc) -> Doc:
    loaded: Doc = json.loads(json.dumps(document))
    return loaded


def read(document: Doc, schema: int = 1, *, legacy: bool = False) -> Parsed:
    return parse(json.dumps(document).encode(), Schema(schema), legacy=legacy)


def listed_paths(manifest: Manifest) -> list[str]:
    """Every path it lists and that may be touched."""
    return [path for layer in manifest.layers for path in layer.paths(manifest.geometry)]


def codes(parsed: Parsed) -> set[str]:
    return {finding.code for finding in parsed.findings}


@pytest.mark.parametrize("schema", [1, 2])
def test_sound(documents: dict[int, Doc], schema: int) -> None:
    parsed = read(documents[schema], schema)
    assert parsed.findings == ()
    manifest = parsed.manifest
    assert manifest is not None
    assert manifest.geometry == GEOMETRY
    assert manifest.indices == (3, 4)
    assert manifest.bytes == 2 * GEOMETRY.layer_bytes
    assert manifest.run_id == (ktroot.RUN if schema == 1 else None)
    assert not manifest.half_consumed
    assert all(layer.listed is None for layer in manifest.layers)
    assert all(bool(layer.digests) == (schema == 2) for layer in manifest.layers)
    assert len(listed_paths(manifest)) == 2 * GEOMETRY.layer_files


HEAD_FAULTS: list[tuple[int, Edit, str]] = [
    (1, lambda d: d.update(schema_version=True), "manifest-value"),
    (1, lambda d: d.update(schema_version="1"), "manifest-value"),
    (1, lambda d: d.update(schema_version=2), "manifest-value"),
    (1, lambda d: d.update(schema_version=3), "manifest-schema"),
    (1, lambda d: d.pop("schema_version"), "manifest-value"),
    (1, lambda d: d.update(state="staging"), "manifest-value"),
    (1, lambda d: d.update(expert_weight_format="int4"), "manifest-value"),
    (1, lambda d: d.update(backend="amxint8"), "manifest-value"),
    (2, lambda d: d.update(backend="AMXINT8"), "manifest-value"),
    (2, lambda d: d.update(backend=None), "manifest-value"),
    (2, lambda d: d.update(layout="kt-int8"), "manifest-value"),
    (2, lambda d: d.pop("layout"), "manifest-value"),
    (1, lambda d: d.update(run_id="abc"), "manifest-value"),
    (1, lambda d: d.update(run_id=7), "manifest-value"),
    (1, lambda d: d.update(owner_uid=False), "manifest-value"),
    (1, lambda d: d.pop("owner_uid"), "manifest-value"),
    (1, lambda d: d.update(producer_pid="17"), "manifest-value"),
    (1, lambda d: d.update(created_unix_ns=1.5), "manifest-value"),
    (1, lambda d: d.update(expert_num=2.0), "manifest-value"),
    (1, lambda d: d.update(hidden_size=0), "manifest-value"),
    (1, lambda d: d.update(hidden_size=-64), "manifest-value"),
    (1, lambda d: d.update(intermediate_size=2**31), "manifest-value"),
    (1, lambda d: d.update(threadpool_count=True), "manifest-value"),
    (1, lambda d: d.update(hidden_size=96), "shape-rule"),
    (1, lambda d: d.update(threadpool_count=3), "shape-rule"),
    (1, lambda d: d.update(layers=[]), "manifest-value"),
    (1, lambda d: d.update(layers=None), "manifest-value"),
    (1, lambda d: d.update(bytes=1), "byte-total"),
    (1, lambda d: d.pop("bytes"), "manifest-value"),
    (1, lambda d: d.update(hwctl=[]), "manifest-hwctl"),
    (1, lambda d: d.update(hwctl={"producer": {"boot_id": "x"}}), "manifest-hwctl"),
    (1, lambda d: d.update(hwctl={"producer": None}), "manifest-hwctl"),
    (1, lambda d: d.update(hwctl={"source": 7}), "manifest-hwctl"),
]


@pytest.mark.parametrize(("schema", "edit", "code"), HEAD_FAULTS)
def test_head_faults(documents: dict[int, Doc], schema: int, edit: Edit, code: str) -> None:
    document = copy(documents[schema])
    edit(document)
    assert code in codes(read(document, schema))


def first_file(document: Doc) -> Doc:
    file: Doc = document["layers"][0]["files"][0]
    return file


LAYER_FAULTS: list[tuple[Edit, str]] = [
    (lambda d: d["layers"][0].update(numa_count=1), "layer-parts"),
    (lambda d: d["layers"][0].update(numa_count=10**8), "layer-parts"),
    (lambda d: d["layers"][0].update(state="done"), "layer-state"),
    (lambda d: d["layers"][0].update(state=None), "layer-state"),
    (lambda d: d["layers"][0].update(bytes=7), "byte-total"),
    (lambda d: d["layers"][0].update(bytes="7"), "byte-total"),
    (lambda d: d["layers"][0].update(files={}), "manifest-value"),
    (lambda d: d["layers"][0]["files"].pop(), "file-count"),
    (lambda d: d["layers"][0]["files"].append(17), "manifest-value"),
    (lambda d: d["layers"][0].update(index=-1), "manifest-value"),
    (lambda d: d["layers"][0].update(index=2**31), "manifest-value"),
    (lambda d: d["layers"][0].update(index="3"), "manifest-value"),
    (lambda d: d["layers"][0].update(index=4), "file-path"),
    (lambda d: d["layers"].append(d["layers"][0]), "manifest-value"),
    (lambda d: first_file(d).update(path="/" + first_file(d)["path"]), "file-path"),
    (lambda d: first_file(d).update(path=first_file(d)["path"].replace("/", "//", 1)), "file-path"),
    (lambda d: first_file(d).update(path="./" + first_file(d)["path"]), "file-path"),
    (lambda d: first_file(d).update(path=first_file(d)["path"] + "\0"), "file-path"),
    (lambda d: first_file(d).update(path=["x"]), "manifest-value"),
    (lambda d: first_file(d).update(size_bytes=True), "declared-size"),
    (lambda d: first_file(d).update(size_bytes="4096"), "declared-size"),
    (lambda d: first_file(d).update(size_bytes=-1), "declared-size"),
    (lambda d: first_file(d).update(sha256="A" * 64), "declared-digest"),
    (lambda d: first_file(d).update(sha256="a" * 63), "declared-digest"),
    (lambda d: first_file(d).update(sha256=None), "declared-digest"),
]


@pytest.mark.parametrize("schema", [1, 2])
@pytest.mark.parametrize(("edit", "code"), LAYER_FAULTS)
def test_layer_faults(documents: dict[int, Doc], schema: int, edit: Edit, code: str) -> None:
    document = copy(documents[schema])
    edit(document)
    assert code in codes(read(document, schema))


def test_a_hostile_expert_count_builds_no_table(documents: dict[int, Doc]) -> None:
    document = copy(documents[1]) | {"expert_num": 2**31 - 1}
    parsed = read(document)
    assert "file-count" in codes(parsed)
    assert parsed.manifest is not None
    assert set(listed_paths(parsed.manifest)) == {
        file["path"] for layer in document["layers"] for file in layer["files"]
    }


def test_only_paths_inside_a_part_folder_may_be_touched(documents: dict[int, Doc]) -> None:
    document = copy(documents[1])
    files = document["layers"][0]["files"]
    for file, path in zip(
        files,
        (
            "_layer_3/_numa_0/odd name.kt",
            "_layer_3/_numa_0/../x",
            "_layer_3/../../etc/passwd",
            "_layer_4/_numa_0/x",
            "/etc/passwd",
            "_layer_3/_numa_0/..",
            "_layer_3/_numa_00/x",
            "_layer_3/x",
        ),
        strict=False,
    ):
        file["path"] = path
    manifest = read(document).manifest
    assert manifest is not None
    listed = list(manifest.layers[0].paths(manifest.geometry))
    assert "_layer_3/_numa_0/odd name.kt" in listed
    assert len(listed) == len(files) - 7


def test_legacy_reading_asks_for_no_run_and_no_owner(documents: dict[int, Doc]) -> None:
    document = copy(documents[1])
    document.pop("run_id")
    document.pop("owner_uid")
    document["backend"] = "INT8"
    assert read(document).findings
    assert read(document, legacy=True).findings == ()


@pytest.mark.parametrize("backend", ["INT8", "auto", "int8"])
def test_backends_of_schema_2(documents: dict[int, Doc], backend: str) -> None:
    assert read(documents[2] | {"backend": backend}, 2).findings == ()


def test_half_consumed(documents: dict[int, Doc]) -> None:
    document = copy(documents[1])
    document["layers"][1]["state"] = "consumed"
    manifest = read(document).manifest
    assert manifest is not None
    assert manifest.half_consumed


@pytest.mark.parametrize("schema", [1, 2])
def test_what_is_written_is_sound_and_sorted_as_upstream_sorts_it(schema: int) -> None:
    digests = [bytes([slot]) * 32 for slot in range(GEOMETRY.layer_files)]
    layers = {layer: layer_text(GEOMETRY, layer, digests) for layer in (10, 2)}
    origin = Origin("run-0001", 0, PROCESS, "checkpoint:abc")
    compose = ephemeral_text if schema == 1 else persistent_text
    data = compose(GEOMETRY, layers, origin)
    document = json.loads(data)
    assert data.decode() == json.dumps(document, sort_keys=True, separators=(",", ":"))
    assert [layer["index"] for layer in document["layers"]] == [2, 10]
    paths = [file["path"] for file in document["layers"][0]["files"]]
    assert paths == sorted(paths)
    parsed = parse(data, Schema(schema))
    assert parsed.findings == ()
    assert parsed.manifest is not None
    assert parsed.manifest.producer == PROCESS
    assert parsed.manifest.source == "checkpoint:abc"
    assert parsed.manifest.layers[0].digests == tuple(digests)


def test_a_rewrite_keeps_every_other_key(documents: dict[int, Doc]) -> None:
    document = copy(documents[1])
    document["note"] = "kept \u2028"
    document["layers"][0]["extra"] = {"a": [1, 2]}
    first_file(document)["mtime_ns"] = 1
    data = json.dumps(document, indent=2, ensure_ascii=False).encode()
    parsed = parse(data, Schema.EPHEMERAL)
    assert parsed.outline is not None
    rewriter = Rewriter(parsed.outline, [3, 4])
    assert rewriter.document() == data
    rewriter.set_state(3, LayerState.CONSUMING)
    rewriter.set_state(4, LayerState.CONSUMED)
    document["layers"][0]["state"] = "consuming"
    document["layers"][1]["state"] = "consumed"
    assert json.loads(rewriter.document()) == document


PLACES = (
    "schema_version",
    "state",
    "run_id",
    "layers",
    "bytes",
    "expert_num",
    "hidden_size",
    "hwctl",
    "backend",
)
JUNK = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
)


@given(st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150, deadline=None)
def test_any_values_give_findings_and_no_traceback(documents: dict[int, Doc], data: st.DataObject) -> None:
    schema = data.draw(st.sampled_from([1, 2]))
    document = copy(documents[schema])
    junk = JUNK | st.lists(JUNK, max_size=2) | st.dictionaries(st.sampled_from(PLACES), JUNK, max_size=2)
    target = data.draw(st.sampled_from([document, document["layers"][0], first_file(document)]))
    key = data.draw(st.sampled_from(sorted(target)))
    before = target[key]
    target[key] = data.draw(junk)
    try:
        raw = json.dumps(document).encode()
    except ValueError:
        return
    parsed = parse(raw, Schema(schema))
    if parsed.manifest is not None:
        assert all(path.startswith("_layer_") for path in listed_paths(parsed.manifest))
    unchecked = schema == 2 and key in ("run_id", "owner_uid")
    if type(target[key]) is type(before) and target[key] == before:
        assert parsed.findings == ()
    elif not parsed.findings:
        assert unchecked or key in (
            "created_unix_ns",
            "producer_pid",
            "run_id",
            "owner_uid",
            "state",
            "backend",
        )
