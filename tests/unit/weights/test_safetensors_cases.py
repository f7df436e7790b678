"""The header reader's verdicts one by one: VER-01, VER-03, VER-04, VER-09, INS-04."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from hwctl.errors import Finding
from hwctl.weights.dtypes import CODES, DTYPE_BITS, TORCH_NAMES
from hwctl.weights.safetensors_file import Header, build_header, parse_header, read_header

SOUND = '{"dtype":"U8","shape":[1],"data_offsets":[0,1]}'


def container(header: str | bytes, data: bytes = b"") -> bytes:
    raw = header.encode() if isinstance(header, str) else header
    return struct.pack("<Q", len(raw)) + raw + data


def codes(result: Header | tuple[Finding, ...]) -> list[str]:
    return [] if isinstance(result, Header) else [finding.code for finding in result]


def read(path: Path, **options: bool) -> Header | tuple[Finding, ...]:
    fd = os.open(path, os.O_RDONLY)
    try:
        return read_header(fd, os.fstat(fd).st_size, name=path.name, **options)
    finally:
        os.close(fd)


WHOLE = container(
    json.dumps({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}), struct.pack("<2f", 1, 2)
)
KINDS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "file-empty"),
    "seven bytes": (b"1234567", "file-too-short"),
    "LFS pointer": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"ab" * 32 + b"\nsize 4932307944\n",
        "lfs-pointer",
    ),
    "HTML": (b"<!DOCTYPE html>\n<html><head><title>Sign in</title></head></html>", "html-page"),
    "HTML with a byte order mark": (b"\xef\xbb\xbf <HTML><body>no</body>", "html-page"),
    "XML": (b'<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>', "xml-page"),
    "XHTML": (b'<?xml version="1.0"?><!DOCTYPE html><html xmlns="x"></html>', "html-page"),
    "JSON": (b'{"error":"Repository not found"}', "json-page"),
    "text": ("# Qwen3 \u2013 a model card\n".encode() * 20, "text-file"),
    "text that ends in a cut character": ("just text \u2013".encode()[:-1], "text-file"),
    "eight letters, then rubbish": (b"abcdefgh" + bytes(range(256)), "header-too-large"),
    "GGUF": (b"GGUF" + struct.pack("<IQQ", 3, 291, 24) + bytes(64), "gguf-file"),
    "torch ZIP": (b"PK\x03\x04" + bytes(26) + b"archive/data.pkl" + bytes(64), "pickle-file"),
    "other ZIP": (b"PK\x03\x04" + bytes(26) + b"word/document.xml" + bytes(64), "zip-file"),
    "pickle": (b"\x80\x02}q\x00(X\x05\x00\x00\x00modelq\x01" + bytes(32), "pickle-file"),
    "legacy torch pickle": (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.", "pickle-file"),
    "all zeros": (bytes(100), "all-zeros"),
    "long zeros": (bytes(100_000), "all-zeros"),
    "truncated": (WHOLE[:-3], "truncated"),
    "trailing": (WHOLE + b"xx", "trailing-bytes"),
    "cut in the header": (WHOLE[:30], "header-past-end"),
    "prefix beyond the file": (struct.pack("<Q", 1000) + b"{}", "header-past-end"),
    "prefix 2^63": (struct.pack("<Q", 2**63) + b"{}", "header-too-large"),
    "prefix 2^64-1": (b"\xff" * 8 + b"{}", "header-too-large"),
    "prefix just over the limit": (struct.pack("<Q", 100_000_001) + b"{}", "header-too-large"),
    "zero header length": (bytes(8) + b"x" * 20, "header-empty"),
    "gzip": (b"\x1f\x8b\x08\x00" + bytes(40), "gzip-file"),
    "HDF5": (b"\x89HDF\r\n\x1a\n" + bytes(40), "hdf5-file"),
    "NumPy": (b"\x93NUMPY\x01\x00v\x00" + bytes(40), "npy-file"),
}


@pytest.mark.parametrize(("content", "code"), KINDS.values(), ids=KINDS.keys())
def test_each_kind_of_file_has_its_own_name(content: bytes, code: str, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    result = read(path)
    assert codes(result) == [code]
    assert not isinstance(result, Header)
    assert result[0].file == "model.safetensors"


def test_a_pointer_tells_oid_and_size(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(KINDS["LFS pointer"][0])
    (finding,) = read(path)  # type: ignore[misc]  # the case above shows that it is no Header
    assert "sha256:" + "ab" * 32 in finding.message
    assert "4932307944" in finding.message
    assert finding.actual == {"oid": "sha256:" + "ab" * 32, "size": 4932307944}


def test_truncation_says_have_and_need(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(WHOLE[:-3])
    (finding,) = read(path)  # type: ignore[misc]
    assert (finding.expected, finding.actual) == (len(WHOLE), len(WHOLE) - 3)
    assert f"have {len(WHOLE) - 3} bytes, need {len(WHOLE)}" in finding.message


def test_a_header_over_the_limit_is_not_called_corrupt() -> None:
    """VER-04: 1.29 million tensors in 126 MB of header are no damage."""
    (finding,) = parse_header(struct.pack("<Q", 126_000_000), 200_000_000)  # type: ignore[misc]
    assert "over the 100 MB header limit" in finding.message
    assert "corrupt" not in finding.message


def tensor(begin: object, end: object, shape: object = None, dtype: str = "U8") -> dict[str, object]:
    shape = [end - begin] if shape is None and isinstance(end, int) and isinstance(begin, int) else shape
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


LAYOUTS: dict[str, tuple[dict[str, object], int, list[str]]] = {
    "two tensors on one range": ({"q": tensor(0, 4), "k": tensor(0, 4)}, 4, ["tensor-overlap"]),
    "partial overlap": ({"q": tensor(0, 4), "k": tensor(2, 6)}, 6, ["tensor-overlap"]),
    "gap": ({"q": tensor(0, 4), "k": tensor(5, 6)}, 6, ["tensor-gap"]),
    "gap at the start": ({"q": tensor(1, 4)}, 4, ["tensor-gap"]),
    "reversed": ({"q": tensor(4, 0, [0])}, 4, ["tensor-offsets"]),
    "shape too large": ({"q": tensor(0, 4, [5])}, 4, ["tensor-shape"]),
    "shape too small": ({"q": tensor(0, 4, [2])}, 4, ["tensor-shape"]),
    "overflow": ({"q": tensor(0, 4, [2**63, 4])}, 4, ["tensor-shape"]),
    "overflow to the right size": ({"q": tensor(0, 0, [2**32, 2**32])}, 0, ["tensor-shape"]),
    "negative extent": ({"q": tensor(0, 4, [-2, -2])}, 4, ["tensor-shape"]),
    "fractional extent": ({"q": tensor(0, 4, [4.0])}, 4, ["tensor-shape"]),
    "textual extent": ({"q": tensor(0, 4, ["4"])}, 4, ["tensor-shape"]),
    "boolean extent": ({"q": tensor(0, 1, [True])}, 1, ["tensor-shape"]),
    "negative offset": ({"q": tensor(-4, 0, [4])}, 4, ["tensor-offsets"]),
    "offset of 65 bits": ({"q": tensor(0, 2**64, [4])}, 4, ["tensor-offsets"]),
    "three offsets": ({"q": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4, 4]}}, 4, ["tensor-offsets"]),
    "unknown dtype": ({"q": tensor(0, 4, dtype="Q4_K")}, 4, ["unknown-dtype"]),
    "half a byte": ({"q": tensor(0, 1, [1], "F4")}, 1, ["tensor-shape"]),
    "six bits": ({"q": tensor(0, 1, [1], "F6_E2M3")}, 1, ["tensor-shape"]),
}


@pytest.mark.parametrize(("document", "size", "expected"), LAYOUTS.values(), ids=LAYOUTS.keys())
def test_layout_tricks_are_named(document: dict[str, object], size: int, expected: list[str]) -> None:
    blob = container(json.dumps(document), bytes(size))
    assert codes(parse_header(blob, len(blob))) == expected
    assert codes(parse_header(blob, len(blob), strict=False)) == expected


def test_all_findings_of_a_file_are_listed() -> None:
    document = {"a": tensor(0, 4, [5]), "b": tensor(2, 6), "c": tensor(7, 8), "d": tensor(8, 9, dtype="X")}
    blob = container(json.dumps(document), bytes(9))
    assert sorted(codes(parse_header(blob, len(blob)))) == [
        "tensor-gap",
        "tensor-overlap",
        "tensor-shape",
        "unknown-dtype",
    ]


def test_a_million_findings_are_capped() -> None:
    blob = container(json.dumps({f"t{index}": tensor(0, 2) for index in range(5000)}), bytes(2))
    result = parse_header(blob, len(blob))
    assert not isinstance(result, Header)
    assert len(result) == 101
    assert "4899 more findings" in result[-1].message


MALFORMED: dict[str, tuple[bytes, str]] = {
    "nothing but blanks": (b"    ", "header-not-json"),
    "a list": (b"[]", "header-type"),
    "null": (b"null", "header-type"),
    "text": (b'"x"', "header-type"),
    "not UTF-8": (b'{"\xff":' + SOUND.encode() + b"}", "header-not-json"),
    "half a UTF-8 character": (b'{"a":' + SOUND.encode() + b"}\xe2\x82", "header-not-json"),
    "byte order mark": (b'\xef\xbb\xbf{"a":' + SOUND.encode() + b"}", "header-not-json"),
    "1e400": (b'{"a":{"x":1e400}}', "header-not-json"),
    "5000 digits": (b'{"a":{"x":' + b"9" * 5000 + b"}}", "header-not-json"),
    "5000 digits for a shape": (b'{"a":{"shape":[' + b"9" * 5000 + b"]}}", "header-not-json"),
    "50 digits for a shape": (b'{"a":{"shape":[' + b"9" * 50 + b"]}}", "tensor-shape"),
    "NaN": (b'{"a":{"x":NaN}}', "header-not-json"),
    "control character": (b'{"a\x01":' + SOUND.encode() + b"}", "header-not-json"),
    "lone surrogate": (b'{"\\ud800":' + SOUND.encode() + b"}", "header-not-json"),
    "unknown escape": (b'{"\\x41":' + SOUND.encode() + b"}", "header-not-json"),
    "NUL in the padding": (b'{"a":' + SOUND.encode() + b"}\0", "header-not-json"),
    "a second document": (b"{}{}", "header-not-json"),
    "no closing brace": (b'{"a":' + SOUND.encode(), "header-not-json"),
    "field twice": (
        b'{"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}}',
        "header-duplicate-key",
    ),
    "__metadata__ twice": (b'{"__metadata__":{},"__metadata__":{}}', "header-duplicate-key"),
    "number in __metadata__": (b'{"__metadata__":{"a":1}}', "header-type"),
    "__metadata__ as a list": (b'{"__metadata__":[]}', "header-type"),
    "entry is a number": (b'{"a":1}', "header-type"),
    "entry without dtype": (b'{"a":{"shape":[1],"data_offsets":[0,1]}}', "header-type"),
    "dtype is a number": (b'{"a":{"dtype":8,"shape":[1],"data_offsets":[0,1]}}', "header-type"),
    "100,000 lists": (b'{"a":{"x":' + b"[" * 100_000, "header-not-json"),
    "100,000 objects": (b'{"a":{"x":' + b'{"a":' * 100_000, "header-not-json"),
    "1025 dimensions": (
        b'{"a":{"dtype":"U8","shape":[' + b",".join([b"1"] * 1025) + b'],"data_offsets":[0,1]}}',
        "tensor-shape",
    ),
}


@pytest.mark.parametrize(("header", "code"), MALFORMED.values(), ids=MALFORMED.keys())
@pytest.mark.parametrize("strict", [True, False])
def test_malformed_headers_give_a_reason(header: bytes, code: str, strict: bool) -> None:
    blob = container(header, b"x")
    assert codes(parse_header(blob, len(blob), strict=strict)) == [code]


REPEATED: dict[str, str] = {
    "tensor": f'{{"a":{{"dtype":"I8","shape":[9],"data_offsets":[0,9]}},"a":{SOUND}}}',
    "metadata key": f'{{"__metadata__":{{"k":"1","k":"2"}},"a":{SOUND}}}',
    "unknown field": '{"a":{"dtype":"U8","shape":[1],"x":1,"x":2,"data_offsets":[0,1]}}',
}


@pytest.mark.parametrize("text", REPEATED.values(), ids=REPEATED.keys())
def test_repeated_names_are_refused_or_tolerated_aloud(text: str) -> None:
    blob = container(text, b"x")
    assert codes(parse_header(blob, len(blob))) == ["header-duplicate-key"]
    header = parse_header(blob, len(blob), strict=False)
    assert isinstance(header, Header)
    assert [finding.code for finding in header.tolerated] == ["header-duplicate-key"]
    assert [(entry.name, entry.dtype, entry.shape) for entry in header.tensors] == [("a", "U8", (1,))]


SPELLINGS: dict[str, str] = {
    "a blank before the brace": f' {{"a":{SOUND}}}',
    "tabs and line ends as padding": f'{{"a":{SOUND}}}\t\r\n',
    "unknown field": '{"a":{"dtype":"U8","shape":[1],"note":{"k":[1,"x",null]},"data_offsets":[0,1]}}',
    "escaped field name": '{"a":{"\\u0064type":"U8","shape":[1],"data_offsets":[0,1]}}',
    "other order of fields": '{"a":{"data_offsets":[0,1],"shape":[1],"dtype":"U8"}}',
    "bare list": '{"a":["U8",[1],[0,1]]}',
    "null metadata": f'{{"__metadata__":null,"a":{SOUND}}}',
}


@pytest.mark.parametrize("text", SPELLINGS.values(), ids=SPELLINGS.keys())
def test_other_spellings_of_a_sound_header_are_read(text: str) -> None:
    blob = container(text, b"x")
    header = parse_header(blob, len(blob))
    assert isinstance(header, Header)
    assert [(entry.name, entry.dtype, entry.shape) for entry in header.tensors] == [("a", "U8", (1,))]
    assert header.tolerated == ()


def test_tensors_come_in_the_order_of_their_data() -> None:
    document = {"z": tensor(0, 2), "m": tensor(2, 2, [0]), "a": tensor(2, 3), "b": tensor(2, 2, [0, 7])}
    blob = container(json.dumps(document), bytes(3))
    header = parse_header(blob, len(blob))
    assert isinstance(header, Header)
    assert [entry.name for entry in header.tensors] == ["z", "b", "m", "a"]
    assert (header.data_bytes, header.by_name["a"].begin, header.by_name["a"].nbytes) == (3, 2, 1)


@pytest.mark.parametrize("dtype", [*DTYPE_BITS, "C128", "I4", "Q4_K"])
def test_every_dtype_is_data(dtype: str) -> None:
    """INS-04: dtypes are text with a width; unknown ones are refused for publish and shown by inspect."""
    size = DTYPE_BITS.get(dtype, 16)
    blob = container(json.dumps({"w": tensor(0, size, [2, 4], dtype)}), bytes(size))
    if dtype not in DTYPE_BITS:
        assert codes(parse_header(blob, len(blob))) == ["unknown-dtype"]
    header = parse_header(blob, len(blob), unknown_dtypes=True)
    assert isinstance(header, Header)
    assert header.tensors[0].dtype == dtype
    assert [finding.code for finding in header.tolerated] == (
        [] if dtype in DTYPE_BITS else ["unknown-dtype"]
    )


def test_torch_prints_the_names_we_say() -> None:
    torch = pytest.importorskip("torch")
    for name in TORCH_NAMES.values():
        dtype = getattr(torch, name.removeprefix("torch."), None)
        assert dtype is None or str(dtype) == name
    assert str(torch.bfloat16) == TORCH_NAMES["BF16"]
    assert CODES["torch.float8_e4m3fn"] == "F8_E4M3"
    assert set(TORCH_NAMES) == set(DTYPE_BITS) - {"F6_E2M3", "F6_E3M2"}


def test_the_built_header_is_canonical() -> None:
    raw, entries = build_header(
        [("b.é", "F32", (1,)), ("a", "BOOL", (3,)), ("Z", "F16", ())],
        {"format": "pt", "host_weight_runtime": "1"},
    )
    length = struct.unpack("<Q", raw[:8])[0]
    assert length % 8 == 0
    assert raw[8:].rstrip(b" ") == (
        b'{"Z":{"data_offsets":[7,9],"dtype":"F16","shape":[]},'
        b'"__metadata__":{"format":"pt","host_weight_runtime":"1"},'
        b'"a":{"data_offsets":[4,7],"dtype":"BOOL","shape":[3]},'
        b'"b.\\u00e9":{"data_offsets":[0,4],"dtype":"F32","shape":[1]}}'
    )
    assert [(entry.name, entry.begin, entry.end) for entry in entries] == [
        ("b.é", 0, 4),
        ("a", 4, 7),
        ("Z", 7, 9),
    ]


@pytest.mark.parametrize(
    "call",
    [
        lambda: build_header([("__metadata__", "U8", (1,))], None),
        lambda: build_header([("a", "U8", (1,)), ("a", "U8", (1,))], None),
        lambda: build_header([("a", "F4", (1,))], None),
        lambda: build_header([("a", "XX", (1,))], None),
    ],
    ids=["reserved", "twice", "half a byte", "unknown"],
)
def test_no_header_is_built_that_nobody_reads(call: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r"reserved|whole bytes"):
        call()
