"""Names: exactly one spelling stands for anything, and nothing else is ours (REC-07)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwctl.errors import Usage
from hwctl.stores.ktint8 import layout
from hwctl.weights.amx import Geometry, Kind, Projection

RUN_ID_LETTERS = st.text("abcXYZ019._-", min_size=1, max_size=10)


@pytest.mark.parametrize("text", ["abcdef", "A1.b_c-d", "a" * 128, "x.staging.bak", "123456"])
def test_run_ids(text: str) -> None:
    assert layout.is_run_id(text)
    assert layout.parse_root_name(f"kt-int8-{text}") == layout.RootName(text, False)
    assert layout.parse_root_name(f"kt-int8-{text}.staging") == layout.RootName(text, True)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "abcde",
        "a" * 129,
        ".abcdef",
        "-abcdef",
        "abc/def",
        "abcdef\n",
        "abcd\u00e9f",
        "abcdef.staging",
        "a b c d",
    ],
)
def test_no_run_ids(text: str) -> None:
    assert not layout.is_run_id(text)
    assert layout.parse_root_name(f"kt-int8-{text}.staging") is None
    with pytest.raises(Usage):
        layout.require_run_id(text)


@pytest.mark.parametrize(
    "name", ["kt-int8", "kt-int8-x", "KT-int8-abcdef", "kt_int8_abcdef", "psm_1234", "sem.mp-1"]
)
def test_foreign_names(name: str) -> None:
    assert layout.parse_root_name(name) is None


@given(RUN_ID_LETTERS)
def test_a_root_name_says_what_it_was_made_from(text: str) -> None:
    if layout.is_run_id(text):
        assert layout.parse_root_name(layout.ready_name(text)) == layout.RootName(text, False)
        assert layout.parse_root_name(layout.staging_name(text)) == layout.RootName(text, True)


@pytest.mark.parametrize(
    ("name", "layer"),
    [("_layer_0", 0), ("_layer_61", 61), ("_layer_2147483647", 2147483647)],
)
def test_layer_folders(name: str, layer: int) -> None:
    assert layout.parse_layer_dir(name) == layer
    assert layout.layer_dir(layer) == name
    assert layout.parse_partial_layer_dir(layout.partial_layer_dir(layer)) == layer


@pytest.mark.parametrize(
    "name",
    [
        "_layer_",
        "_layer_01",
        "_layer_-1",
        "_layer_+1",
        "_layer_1 ",
        "_layer_\u0661",
        "_layer_2147483648",
        "layer_1",
    ],
)
def test_no_layer_folders(name: str) -> None:
    assert layout.parse_layer_dir(name) is None


def test_file_names_round_trip() -> None:
    name = layout.file_name(Projection.GATE, 7, Kind.QUANT, 4096)
    assert name == "INT8_gate_7_4096Byte_quant_.kt"
    assert layout.parse_file_name(name) == layout.FileName(Projection.GATE, 7, Kind.QUANT, 4096)


@pytest.mark.parametrize(
    "name",
    [
        "INT8_gate_07_4096Byte_quant_.kt",
        "INT8_gate_7_04096Byte_quant_.kt",
        "INT8_gate_7_0Byte_quant_.kt",
        "INT8_gate_\u0667_4096Byte_quant_.kt",
        "INT8_gate_bwd_7_4096Byte_quant_.kt",
        "INT8_gate_7_4096Byte_quant_.kt.tmp",
        "int8_gate_7_4096Byte_quant_.kt",
        "INT8_gate_7_4096Byte_quant_.kt\n",
    ],
)
def test_no_file_names(name: str) -> None:
    assert layout.parse_file_name(name) is None


@pytest.mark.parametrize(
    ("name", "pid"),
    [
        (".kt-ephemeral-manifest.json.17.tmp", 17),
        (f".kt-ephemeral-staging-lease.json.17.{'0' * 32}.tmp", 17),
        (".kt-weight-manifest.json.17.tmp", 17),
        (".kt-ephemeral-manifest.json.017.tmp", None),
        ("kt-ephemeral-manifest.json.17.tmp", None),
        (".notes.json.17.tmp", None),
    ],
)
def test_temporaries(name: str, pid: int | None) -> None:
    assert layout.temporary_pid(name) == pid


def test_quarantine_names() -> None:
    assert layout.parse_quarantine_name(f"kt-int8-abcdef.{'0af3' * 8}") == "kt-int8-abcdef"
    assert layout.parse_quarantine_name(f"kt-int8-abcdef.{'0AF3' * 8}") is None
    assert layout.parse_quarantine_name("kt-int8-abcdef") is None


def test_part_files_are_those_of_the_geometry() -> None:
    geometry = Geometry(hidden=128, intermediate=256, experts=3, parts=2)
    files = layout.part_files(geometry)
    assert len(files) == 6 * 3
    assert sum(file.size for file in files.values()) * 2 == geometry.layer_bytes
    assert files["INT8_down_2_512Byte_scale_.kt"].size == 4 * 128
    assert files["INT8_gate_0_16384Byte_quant_.kt"].size == 128 * 128
    paths = list(layout.layer_paths(geometry, 5))
    assert len(paths) == len(set(paths)) == geometry.layer_files
    assert paths[0].startswith("_layer_5/_numa_0/INT8_gate_0_")
    assert paths[-1] == "_layer_5/_numa_1/INT8_down_2_512Byte_scale_.kt"


@pytest.mark.parametrize(
    ("geometry", "fault"),
    [
        (Geometry(64, 128, 1, 2), None),
        (Geometry(96, 128, 1, 1), "hidden_size"),
        (Geometry(64, 128, 1, 3), "3 parts"),
        (Geometry(64, 128, 1, 4), "4 parts"),
        (Geometry(64, 2**31 - 64, 1, 2**31 - 1), "parts"),
    ],
)
def test_shape_rule(geometry: Geometry, fault: str | None) -> None:
    found = layout.shape_fault(geometry)
    assert (found is None) == (fault is None)
    assert fault is None or (found is not None and fault in found)
