"""The header reader against the safetensors library: what one takes, the other takes, with equal contents.

Compared in lenient mode. The library is the authority; nothing here knows the grammar.
"""

from __future__ import annotations

import json
import os
import struct

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from hwctl.weights.dtypes import DTYPE_BITS
from hwctl.weights.safetensors_file import Header, build_header, parse_header

safetensors = pytest.importorskip("safetensors")

ROUNDS = int(os.environ.get("HWCTL_FUZZ_ROUNDS", "400"))
FUZZ = settings(max_examples=ROUNDS, deadline=None, suppress_health_check=list(HealthCheck))


def container(header: bytes, data: bytes = b"") -> bytes:
    return struct.pack("<Q", len(header)) + header + data


def agree(blob: bytes) -> None:
    """Both refuse, or both accept and see the same tensors."""
    try:
        theirs = {
            name: (info["dtype"], tuple(info["shape"]), bytes(info["data"]))
            for name, info in safetensors.deserialize(blob)
        }
    except safetensors.SafetensorError as exc:
        theirs, why = None, str(exc)
    ours = parse_header(blob, len(blob), strict=False)
    if theirs is None:
        assert not isinstance(ours, Header), f"the library refuses: {why}"
        return
    assert isinstance(ours, Header), f"the library accepts, we say {ours}"
    data = blob[ours.data_start :]
    assert theirs == {
        entry.name: (entry.dtype, entry.shape, data[entry.begin : entry.end]) for entry in ours.tensors
    }


# --- documents: JSON rendered by hand, so that keys can repeat and numbers can be odd ------------------


@st.composite
def spaced(draw: st.DrawFn, text: str) -> str:
    return draw(st.sampled_from(["", "", "", " ", "\n\t", "\r "])) + text


@st.composite
def string(draw: st.DrawFn, text: str) -> str:
    """A JSON string for ``text``, some characters escaped that need not be."""
    out = []
    for char in text:
        how = draw(st.sampled_from(["plain", "plain", "plain", "escape"]))
        escaped = json.dumps(char)[1:-1]
        if how == "escape" and len(char.encode("utf-16-be", "surrogatepass")) == 2:
            escaped = f"\\u{ord(char):04x}"
        out.append(escaped)
    return '"' + "".join(out) + '"'


NAMES = st.one_of(
    st.sampled_from(["a", "b", "__metadata__", "", "dtype", "é", "\U0001f600", "a\x00", "x\x1b[2J", "0"]),
    st.text(max_size=4).filter(lambda text: not any("\ud800" <= char <= "\udfff" for char in text)),
)
# Texts of JSON numbers and near misses.
ODD_NUMBERS = {
    "-0", "-1", "1.0", "1e2", "0e0", "01", "1e999", "-1e400", "+1", ".5", "1.", "1e", "NaN", "Infinity",
    "0x1", "4294967296", "18446744073709551615", "18446744073709551616", "9" * 30, "9" * 308, "9" * 320,
}  # fmt: skip
NUMBERS = st.one_of(st.integers(0, 9).map(str), st.sampled_from(sorted(ODD_NUMBERS)))
VALUES = st.recursive(
    st.one_of(
        NUMBERS,
        st.sampled_from(
            ["null", "true", "false", '"x"', '"\\ud800"', '"\\ud83d\\ude00"', '"\\x"', "nul", ""]
        ),
        NAMES.flatmap(string),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: "[" + ",".join(items) + "]"),
        st.lists(st.tuples(NAMES.flatmap(string), inner), max_size=3).map(
            lambda items: "{" + ",".join(f"{key}:{value}" for key, value in items) + "}"
        ),
    ),
    max_leaves=6,
)
SMALL = st.integers(0, 3)
RARELY = st.integers(0, 11).map(lambda n: n == 0)


@st.composite
def entry(draw: st.DrawFn, begin: int) -> tuple[str, int]:
    """The JSON of one tensor that starts at ``begin``, mostly sound, and where it ends."""
    dtype = draw(st.sampled_from([*DTYPE_BITS, "U8", "BF16", "F4"]))
    shape = draw(st.lists(SMALL, max_size=3))
    count = 1
    for extent in shape:
        count *= extent
    end = begin + count * DTYPE_BITS[dtype] // 8
    if draw(RARELY):
        begin, end = draw(st.tuples(SMALL, st.integers(0, 16)))
    fields = [
        ("dtype", draw(string(dtype))),
        ("shape", "[" + ",".join(draw(spaced(str(extent))) for extent in shape) + "]"),
        ("data_offsets", f"[{begin},{draw(spaced(str(end)))} ]"),
    ]
    if draw(RARELY):
        fields[draw(st.integers(0, 2))] = (draw(st.sampled_from(["dtype", "shape", "x"])), draw(VALUES))
    if draw(RARELY):
        fields[0] = (
            "dtype",
            "{" + draw(string(dtype)) + ":" + draw(st.sampled_from(["null", "1", "{}"])) + "}",
        )
    if draw(RARELY):
        return "[" + ",".join(value for _field, value in fields) + "]", end
    if draw(RARELY):
        fields.append((draw(st.sampled_from(["extra", "dtype", "shape", "data_offsets", ""])), draw(VALUES)))
    if draw(RARELY):
        fields.append(draw(st.sampled_from(fields)))
    if draw(RARELY):
        del fields[draw(st.integers(0, len(fields) - 1))]
    fields = draw(st.permutations(fields))
    members = [f"{draw(spaced(draw(string(field))))}:{draw(spaced(value))}" for field, value in fields]
    return "{" + ",".join(members) + draw(spaced("}")), end


@st.composite
def documents(draw: st.DrawFn) -> bytes:
    members: list[tuple[str, str]] = []
    at = 0
    for _ in range(draw(st.integers(0, 4))):
        name = draw(NAMES)
        if name == "__metadata__" and draw(RARELY):
            continue
        text, end = draw(entry(at))
        members.append((name, text))
        at = end if not draw(RARELY) else at
    if draw(st.booleans()):
        pairs = draw(st.lists(st.tuples(NAMES, NAMES), max_size=3))
        value = "{" + ",".join(f"{draw(string(key))}:{draw(string(item))}" for key, item in pairs) + "}"
        value = draw(VALUES) if draw(RARELY) else value
        members.insert(draw(st.integers(0, len(members))), ("__metadata__", value))
    if members and draw(RARELY):
        members.append(draw(st.sampled_from(members)))
    body = draw(spaced(",")).join(f"{draw(string(name))}:{draw(spaced(text))}" for name, text in members)
    text = (
        draw(spaced("{")) + body + draw(spaced("}")) + draw(st.sampled_from(["", "", "  ", "\n", "\0", "x"]))
    )
    size = min(at, 4096) + (draw(st.integers(-2, 2)) if draw(RARELY) else 0)
    return container(text.encode(), bytes(index % 251 for index in range(max(0, size))))


@FUZZ
@given(documents())
@example(container(b'{"a":["U8",[1],[0,1]]}', b"x"))
@example(container(b'{"a":{"dtype":{"U8":null},"shape":[1],"data_offsets":[0,1]}}', b"x"))
@example(container(b'{"a":["XX",[1],[0,1]],"a":["U8",[1],[0,1]]}', b"x"))
@example(container(b'{"a":[{},[1],[0,1]],"a":["U8",[1],[0,1]]}', b"x"))
@example(container(b'{"__metadata__":null}'))
@example(container(b'{"__metadata__":{},"__metadata__":{}}'))
@example(container(b'{"a":{"dtype":"U8","shape":[18446744073709551615,2,0],"data_offsets":[0,0]}}'))
@example(container(b'{"a":{"dtype":"U8","shape":[0,18446744073709551615,2],"data_offsets":[0,0]}}'))
def test_documents_are_judged_alike(blob: bytes) -> None:
    agree(blob)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A sound file with a few bytes changed, inserted or dropped."""
    tensors = draw(
        st.lists(
            st.tuples(
                NAMES.filter("__metadata__".__ne__),
                st.sampled_from(["U8", "F32"]),
                st.lists(SMALL, max_size=2),
            ),
            max_size=3,
            unique_by=lambda item: item[0],
        )
    )
    raw, entries = build_header(tensors, draw(st.none() | st.dictionaries(NAMES, NAMES, max_size=2)))
    blob = bytearray(raw + bytes(entries[-1].end if entries else 0))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(blob) - 1))
        how = draw(st.integers(0, 2))
        byte = draw(st.sampled_from(list(b'{}[]",:0123456789 \\ue-+.\x00\x80\xff\n')) | st.integers(0, 255))
        if how == 0:
            blob[at] = byte
        elif how == 1:
            blob.insert(at, byte)
            blob[:8] = struct.pack("<Q", struct.unpack("<Q", blob[:8])[0] + (1 if draw(st.booleans()) else 0))
        elif len(blob) > 9:
            del blob[at]
    return bytes(blob)


@FUZZ
@given(mutated())
def test_mutated_files_are_judged_alike(blob: bytes) -> None:
    agree(blob)


@FUZZ
@given(st.binary(max_size=64))
def test_arbitrary_bytes_are_judged_alike(blob: bytes) -> None:
    agree(blob)
    agree(container(blob))


@pytest.mark.parametrize("depth", range(120, 132))
@pytest.mark.parametrize("pair", ["[]", "{}"])
def test_nesting_is_bounded_where_the_library_bounds_it(depth: int, pair: str) -> None:
    inner = "[" * depth + "]" * depth if pair == "[]" else '{"k":' * depth + "1" + "}" * depth
    agree(container(f'{{"a":{{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":{inner}}}}}'.encode(), b"x"))


@settings(max_examples=50, deadline=None)
@given(
    st.dictionaries(
        NAMES.filter("__metadata__".__ne__),
        st.tuples(
            st.sampled_from([*DTYPE_BITS]), st.lists(st.sampled_from([0, 4, 8]), min_size=1, max_size=3)
        ),
        max_size=5,
    ),
    st.none() | st.dictionaries(NAMES, NAMES, max_size=3),
)
def test_what_we_build_the_library_opens(
    tensors: dict[str, tuple[str, list[int]]], metadata: dict[str, str]
) -> None:
    raw, entries = build_header([(name, dtype, shape) for name, (dtype, shape) in tensors.items()], metadata)
    assert len(raw) % 8 == 0
    blob = raw + bytes(entries[-1].end if entries else 0)
    assert len(safetensors.deserialize(blob)) == len(tensors)
    header = parse_header(blob, len(blob))
    assert isinstance(header, Header)
    assert header.metadata == (metadata or {})
    assert {(entry.name, entry.dtype, entry.shape) for entry in header.tensors} == {
        (name, dtype, tuple(shape)) for name, (dtype, shape) in tensors.items()
    }
