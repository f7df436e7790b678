"""The safetensors container: reading a header strictly and within bounds, and building one.

Judging is pure: bytes and a size go in, a Header or findings come out, whatever the bytes are. The one
function that does I/O reads eight bytes and the header, never the payload. The container's grammar is in
header_json, the element types in dtypes, the naming of other files in sniff.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hwctl.errors import Finding
from hwctl.weights.dtypes import CODES, DTYPE_BITS, TORCH_NAMES
from hwctl.weights.header_json import METADATA_KEY, Malformed, RawMetadata, read_entries
from hwctl.weights.sniff import HEAD_BYTES, TAIL_BYTES, sniff

__all__ = [
    "CODES",
    "DTYPE_BITS",
    "HEADER_LIMIT",
    "TORCH_NAMES",
    "Header",
    "TensorEntry",
    "build_header",
    "parse_header",
    "read_header",
    "sniff",
]

HEADER_LIMIT = 100_000_000
"""Bytes of JSON a header may have; the safetensors library stops there too."""

PREFIX_BYTES = 8
MAX_FINDINGS = 100
_U64 = 2**64


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor: ``dtype`` is the container's code, the offsets count from the start of the data."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def nbytes(self) -> int:
        return self.end - self.begin


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
    try:
        by_name, metadata, repeated = _collect(header, strict)
    except Malformed as exc:
        where = f"header of {length} bytes, at byte {exc.at}: {exc.message}"
        return (Finding(exc.code, where),)
    tensors = sorted(by_name.values(), key=lambda entry: (entry.begin, entry.end, entry.name))
    problems, unknown = _judge_layout(tensors)
    if unknown and not unknown_dtypes:
        problems = [*unknown, *problems]
    data_start = PREFIX_BYTES + length
    data_bytes = max((entry.end for entry in tensors), default=0)
    if not problems:
        problems = _judge_size(data_start + data_bytes, file_size)
    if problems:
        return _capped(problems)
    return Header(tuple(tensors), metadata, data_start, data_bytes, by_name, _capped([*repeated, *unknown]))


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
        raw = prefix + _pread_all(fd, length, PREFIX_BYTES)
        if len(raw) < PREFIX_BYTES + length:
            findings = (_past_end(length, len(raw)),)
        else:
            findings = parse_header(raw, file_size, strict=strict, unknown_dtypes=unknown_dtypes)
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


def tensor_bits(dtype: str, shape: Iterable[int]) -> int | None:
    """Size in bits, or None when the dtype is unknown or the count leaves 64 bits on the way.

    Multiplied in order, as the library does: [2**40, 2**40, 0] overflows, [0, 2**40, 2**40] is empty.
    """
    count = 1
    for extent in shape:
        count *= extent
        if count >= _U64:
            return None
    bits = count * DTYPE_BITS.get(dtype, _U64)
    return None if bits >= _U64 else bits


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


def _collect(header: bytes, strict: bool) -> tuple[dict[str, TensorEntry], Mapping[str, str], list[Finding]]:
    """All entries by name, the last of a repeated name; the repetitions are findings, or end it if strict."""
    by_name: dict[str, TensorEntry] = {}
    metadata: dict[str, str] = {}
    repeated: list[Finding] = []
    dtypes: dict[str, str] = {}
    shapes: dict[tuple[int, ...], tuple[int, ...]] = {}

    for item in read_entries(header):
        twice: str | None = None
        if isinstance(item, RawMetadata):
            metadata = item.values
            if item.repeated is not None:
                twice = f"{METADATA_KEY}: {_quoted(item.repeated)} stands twice"
        else:
            if item.name in by_name:
                twice = f"tensor {_quoted(item.name)} stands twice"
            elif item.repeated is not None:
                twice = f"tensor {_quoted(item.name)}: {_quoted(item.repeated)} stands twice"
            # Thousands of layers share a few shapes and dtypes; sharing the objects halves the memory.
            dtype = dtypes.setdefault(item.dtype, item.dtype)
            shape = shapes.setdefault(item.shape, item.shape)
            by_name[item.name] = TensorEntry(item.name, dtype, shape, item.offsets[0], item.offsets[1])
        if twice is not None:
            if strict:
                raise Malformed("header-duplicate-key", twice, 0)
            if len(repeated) <= MAX_FINDINGS:
                repeated.append(Finding("header-duplicate-key", twice))
    return by_name, metadata, repeated


def _judge_layout(tensors: Sequence[TensorEntry]) -> tuple[list[Finding], list[Finding]]:
    """Whether the sorted entries tile the data and their shapes fill their ranges; unknown dtypes apart."""
    problems: list[Finding] = []
    unknown: list[Finding] = []
    covered = 0
    before = ""
    for entry in tensors:
        if entry.end < entry.begin:
            message = f"tensor {_quoted(entry.name)}: offsets [{entry.begin}, {entry.end}] run backwards"
            problems.append(Finding("tensor-offsets", message))
        elif entry.begin > covered:
            message = f"{entry.begin - covered} bytes before tensor {_quoted(entry.name)} belong to no tensor"
            problems.append(Finding("tensor-gap", message, expected=covered, actual=entry.begin))
        elif entry.begin < covered:
            message = f"tensors {_quoted(before)} and {_quoted(entry.name)} share bytes"
            problems.append(Finding("tensor-overlap", message, expected=covered, actual=entry.begin))
        if entry.end >= covered:
            covered, before = entry.end, entry.name
        if entry.dtype not in DTYPE_BITS:
            unknown.append(
                Finding(
                    "unknown-dtype", f"tensor {_quoted(entry.name)} has the unknown dtype {entry.dtype!r}"
                )
            )
        elif (problem := _judge_shape(entry)) is not None:
            problems.append(problem)
    return problems, unknown


def _judge_shape(entry: TensorEntry) -> Finding | None:
    bits = tensor_bits(entry.dtype, entry.shape)
    if bits == entry.nbytes * 8:
        return None
    about = f"tensor {_quoted(entry.name)}: shape {_shown(entry.shape)} of {entry.dtype}"
    if bits is None:
        return Finding("tensor-shape", f"{about} overflows 64 bits")
    if bits % 8:
        return Finding(
            "tensor-shape", f"{about} does not end on a byte", expected=bits, actual=entry.nbytes * 8
        )
    message = f"{about} takes {bits // 8} bytes, its offsets span {entry.nbytes}"
    return Finding("tensor-shape", message, expected=bits // 8, actual=entry.nbytes)


def _quoted(text: str) -> str:
    """A name from the file, escaped and cut: it may be the whole header long."""
    return repr(text) if len(text) <= 200 else f"{text[:200]!r}…"


def _shown(shape: tuple[int, ...]) -> str:
    if len(shape) <= 16:
        return str(list(shape))
    return f"{str(list(shape[:16]))[:-1]}, … {len(shape)} dimensions]"


def _judge_size(needed: int, file_size: int) -> list[Finding]:
    if needed > file_size:
        message = f"truncated: have {file_size} bytes, need {needed}"
        return [Finding("truncated", message, expected=needed, actual=file_size)]
    if needed < file_size:
        message = f"{file_size - needed} bytes after the last tensor (have {file_size}, need {needed})"
        return [Finding("trailing-bytes", message, expected=needed, actual=file_size)]
    return []


def _capped(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """At most MAX_FINDINGS: a hostile header can have a million, and each would be a line."""
    if len(findings) <= MAX_FINDINGS:
        return tuple(findings)
    left_out = len(findings) - MAX_FINDINGS
    last = Finding(findings[MAX_FINDINGS].code, f"{left_out} more findings of this file are not listed")
    return (*findings[:MAX_FINDINGS], last)


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
