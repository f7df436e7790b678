"""The safetensors container: reading a header strictly and within bounds, and building one.

Judging is pure: bytes and a size go in, a Header or findings come out, whatever the bytes are. The one
function that does I/O reads eight bytes and the header, never the payload. The grammar is in header_json,
the tiling of the data in tensor_layout, the element types in dtypes, the naming of other files in sniff.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from hwctl.errors import Finding
from hwctl.weights.dtypes import DTYPE_BITS
from hwctl.weights.header_json import METADATA_KEY, RawMetadata, read_entries
from hwctl.weights.json_cursor import Malformed
from hwctl.weights.sniff import HEAD_BYTES, TAIL_BYTES, sniff
from hwctl.weights.tensor_layout import (
    Findings,
    TensorEntry,
    judge_layout,
    judge_size,
    quoted,
    tensor_bits,
)

HEADER_LIMIT = 100_000_000
"""Bytes of JSON a header may have; the safetensors library stops there too."""

PREFIX_BYTES = 8


@dataclass(frozen=True, slots=True)
class Header:
    """A sound header. ``tensors`` in the order of their data (then name), which they tile without gaps.

    ``data_start`` is the file offset of the data, ``data_bytes`` its length. ``tolerated`` holds findings
    that were passed over because ``strict`` was off or unknown dtypes were allowed.
    """

    tensors: tuple[TensorEntry, ...]
    metadata: Mapping[str, str]
    data_start: int
    data_bytes: int
    by_name: Mapping[str, TensorEntry] = field(repr=False, compare=False)
    tolerated: tuple[Finding, ...] = ()


def parse_header(
    raw: bytes, file_size: int, *, strict: bool = True, unknown_dtypes: bool = False
) -> Header | tuple[Finding, ...]:
    """Judge ``raw`` (the 8-byte prefix and at least the header) of a file of ``file_size`` bytes.

    With ``strict`` off, all that the safetensors library opens is a Header: of a repeated name the last
    one counts, and ``Header.tolerated`` says so. ``unknown_dtypes`` lists tensors of a dtype that is not in
    DTYPE_BITS instead of refusing them (INS-04); their size cannot be held against their shape.
    """
    length = _header_length(raw, file_size)
    if isinstance(length, Finding):
        return (length,)
    header = raw[PREFIX_BYTES : PREFIX_BYTES + length]
    if len(header) < length:
        raise ValueError(f"the header has {length} bytes, only {len(header)} were given")
    return _judge(header, file_size, strict, unknown_dtypes)


def read_header(
    fd: int, file_size: int, *, name: str, strict: bool = True, unknown_dtypes: bool = False
) -> Header | tuple[Finding, ...]:
    """Read and judge the header behind ``fd``; findings carry ``name`` as their file. OSError passes through.

    A file that is something else altogether is called that, rather than a damaged container (VER-01).
    """
    prefix = os.pread(fd, PREFIX_BYTES, 0)
    length = _header_length(prefix, file_size)
    if isinstance(length, Finding):
        findings: Header | tuple[Finding, ...] = (length,)
    else:
        header = _pread_all(fd, length, PREFIX_BYTES)
        if len(header) < length:
            findings = (_past_end(length, PREFIX_BYTES + len(header)),)
        else:
            findings = _judge(header, file_size, strict, unknown_dtypes)
    if isinstance(findings, Header):
        return findings
    if findings[0].code not in ("truncated", "trailing-bytes"):
        head = os.pread(fd, HEAD_BYTES, 0)
        tail = os.pread(fd, TAIL_BYTES, max(0, file_size - TAIL_BYTES))
        known = sniff(head, file_size, tail=tail)
        if known is not None:
            findings = (known,)
    return tuple(replace(finding, file=name) for finding in findings)


def build_header(
    tensors: Sequence[tuple[str, str, Sequence[int]]], metadata: Mapping[str, str] | None
) -> tuple[bytes, tuple[TensorEntry, ...]]:
    """Prefix and header for tensors (name, dtype code, shape) laid out back to back in the given order.

    The JSON is canonical (sorted keys, ASCII, no blanks) and padded with blanks to a multiple of 8, byte
    for byte what the reference writer of host weight stores makes. ``metadata`` None leaves the key out.
    Raises ValueError for what no reader would take back: the name ``__metadata__``, a repeated name, an
    unknown dtype, a shape that does not fill whole bytes, a header over the limit.
    """
    document: dict[str, object] = {} if metadata is None else {METADATA_KEY: dict(metadata)}
    entries: list[TensorEntry] = []
    begin = 0
    for name, dtype, shape in tensors:
        if name == METADATA_KEY or name in document:
            raise ValueError(f"tensor name {name!r} is reserved or stands twice")
        bits = tensor_bits(dtype, shape)
        if bits is None or bits % 8:
            raise ValueError(f"{name!r}: shape {list(shape)} of {dtype} does not fill whole bytes")
        entry = TensorEntry(name, dtype, tuple(shape), begin, begin + bits // 8)
        document[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [entry.begin, entry.end]}
        entries.append(entry)
        begin = entry.end
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")
    text += b" " * (-len(text) % 8)
    if len(text) > HEADER_LIMIT:
        raise ValueError(f"a header of {len(text)} bytes is over the 100 MB header limit")
    return struct.pack("<Q", len(text)) + text, tuple(entries)


def _header_length(prefix: bytes, file_size: int) -> int | Finding:
    """The length the prefix states, or why it cannot be: decided before anything is allocated (VER-04)."""
    if file_size == 0:
        return Finding("file-empty", "the file is empty", expected="a safetensors file", actual=0)
    if file_size < PREFIX_BYTES or len(prefix) < PREFIX_BYTES:
        return Finding(
            "file-too-short",
            f"{file_size} bytes are too short for the 8-byte length of the header",
            expected=PREFIX_BYTES,
            actual=file_size,
        )
    length: int = struct.unpack_from("<Q", prefix)[0]
    if length > HEADER_LIMIT:
        return Finding(
            "header-too-large",
            f"a header of {length} bytes is over the 100 MB header limit",
            expected=HEADER_LIMIT,
            actual=length,
        )
    if length == 0:
        return Finding("header-empty", "the header's length is given as zero")
    if PREFIX_BYTES + length > file_size:
        return _past_end(length, file_size)
    return length


def _past_end(length: int, file_size: int) -> Finding:
    return Finding(
        "header-past-end",
        f"the header goes past the end of the file (have {file_size} bytes, need {PREFIX_BYTES + length})",
        expected=PREFIX_BYTES + length,
        actual=file_size,
    )


def _judge(header: bytes, file_size: int, strict: bool, unknown_dtypes: bool) -> Header | tuple[Finding, ...]:
    data_start = PREFIX_BYTES + len(header)
    try:
        by_name, metadata, repeated = _collect(header, strict)
    except Malformed as exc:
        return (Finding(exc.code, f"header of {len(header)} bytes, {exc.message}"),)
    tensors = sorted(by_name.values(), key=lambda entry: (entry.begin, entry.end, entry.name))
    problems, unknown = judge_layout(tensors)
    if problems or (unknown and not unknown_dtypes):
        return problems.all() if unknown_dtypes else (*unknown.all(), *problems.all())
    data_bytes = max((entry.end for entry in tensors), default=0)
    problem = judge_size(data_start + data_bytes, file_size)
    if problem is not None:
        return (problem,)
    tolerated = (*repeated.all(), *unknown.all())
    return Header(tuple(tensors), metadata, data_start, data_bytes, by_name, tolerated)


def _collect(header: bytes, strict: bool) -> tuple[dict[str, TensorEntry], Mapping[str, str], Findings]:
    """All entries by name, the last of a repeated name; the repetitions are findings, or end it if strict."""
    by_name: dict[str, TensorEntry] = {}
    metadata: dict[str, str] = {}
    repeated = Findings()
    dtypes: dict[str, str] = {}
    shapes: dict[tuple[int, ...], tuple[int, ...]] = {}

    for item in read_entries(header):
        twice: str | None = None
        if isinstance(item, RawMetadata):
            metadata = item.values
            if item.repeated is not None:
                twice = f"{METADATA_KEY}: {quoted(item.repeated)} stands twice"
        else:
            earlier = by_name.get(item.name)
            if earlier is not None:
                twice = f"tensor {quoted(item.name)} stands twice"
                if earlier.dtype not in DTYPE_BITS:  # the library reads, and refuses, what it would drop
                    raise Malformed("unknown-dtype", f"unknown dtype {quoted(earlier.dtype)}")
            elif item.repeated is not None:
                twice = f"tensor {quoted(item.name)}: {quoted(item.repeated)} stands twice"
            # Thousands of layers share a few shapes and dtypes; sharing the objects halves the memory.
            dtype = dtypes.setdefault(item.dtype, item.dtype)
            shape = shapes.setdefault(item.shape, item.shape)
            by_name[item.name] = TensorEntry(item.name, dtype, shape, item.begin, item.end)
        if twice is not None:
            if strict:
                raise Malformed("header-duplicate-key", twice)
            repeated.add(partial(Finding, "header-duplicate-key", twice))
    return by_name, metadata, repeated


def _pread_all(fd: int, count: int, offset: int) -> bytes:
    """``count`` bytes or what there is: one pread stops at 2 GiB and may be short on a signal."""
    pieces: list[bytes] = []
    while count > 0:
        piece = os.pread(fd, count, offset)
        if not piece:
            break
        pieces.append(piece)
        count -= len(piece)
        offset += len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
