"""Whether the tensors of a container tile its data: offsets, shapes and dtypes held against each other.

Pure. The rule is the format's: sorted by offset the ranges follow each other without gap or overlap, shape
times dtype is the range, and the last range ends the file (VER-03). Reading the ranges from a header is the
business of safetensors_file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from hwctl.errors import Finding
from hwctl.weights.dtypes import DTYPE_BITS

MAX_FINDINGS = 100
"""Findings of a file that are told: a hostile header can have a million, and each would be a line."""

_U64 = 2**64
_LONGEST_NAME = 200
_LONGEST_SHAPE = 16


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


def tensor_bits(dtype: str, shape: Iterable[int]) -> int | None:
    """Size in bits, or None when the dtype is unknown or the count leaves 64 bits on the way.

    Multiplied in order, as the library does: [2**40, 2**40, 0] overflows, [0, 2**40, 2**40] is empty.
    """
    width = DTYPE_BITS.get(dtype)
    if width is None:
        return None
    count = 1
    for extent in shape:
        count *= extent
        if count >= _U64:
            return None
    return count * width if count * width < _U64 else None


class Findings:
    """The first MAX_FINDINGS findings of one kind of question, and how many ``more`` there were."""

    def __init__(self) -> None:
        self._told: list[Finding] = []
        self.more = 0

    def add(self, make: Callable[[], Finding]) -> None:
        """Note one; those beyond the bound are counted, not made."""
        if len(self._told) < MAX_FINDINGS:
            self._told.append(make())
        else:
            self.more += 1

    def __bool__(self) -> bool:
        return bool(self._told)

    @property
    def told(self) -> tuple[Finding, ...]:
        return tuple(self._told)

    def all(self) -> tuple[Finding, ...]:
        """What was noted, with a last one for what was only counted."""
        if not self.more:
            return self.told
        last = Finding(self._told[-1].code, f"{self.more} more findings of this file are not listed")
        return (*self._told, last)


def judge_layout(tensors: Sequence[TensorEntry]) -> tuple[Findings, Findings]:
    """What is wrong with entries sorted by offset, and apart from it the dtypes nobody knows."""
    problems, unknown = Findings(), Findings()
    covered = 0
    before = ""
    for entry in tensors:
        if entry.begin != covered or entry.end < entry.begin:
            problems.add(partial(_judge_range, entry, covered, before))
        if entry.end >= covered:
            covered, before = entry.end, entry.name
        if entry.dtype not in DTYPE_BITS:
            unknown.add(partial(_unknown_dtype, entry))
        elif entry.end >= entry.begin and tensor_bits(entry.dtype, entry.shape) != entry.nbytes * 8:
            problems.add(partial(_judge_shape, entry))
    return problems, unknown


def judge_size(needed: int, file_size: int) -> Finding | None:
    """The file against what its header says it holds."""
    if needed > file_size:
        message = f"truncated: have {file_size} bytes, need {needed}"
        return Finding("truncated", message, expected=needed, actual=file_size)
    if needed < file_size:
        message = f"{file_size - needed} bytes after the last tensor (have {file_size}, need {needed})"
        return Finding("trailing-bytes", message, expected=needed, actual=file_size)
    return None


def quoted(text: str) -> str:
    """A name from the file, escaped and cut: it may be the whole header long."""
    return repr(text) if len(text) <= _LONGEST_NAME else f"{text[:_LONGEST_NAME]!r}…"


def _unknown_dtype(entry: TensorEntry) -> Finding:
    message = f"tensor {quoted(entry.name)} has the unknown dtype {quoted(entry.dtype)}"
    return Finding("unknown-dtype", message)


def _judge_range(entry: TensorEntry, covered: int, before: str) -> Finding:
    name = quoted(entry.name)
    if entry.end < entry.begin:
        return Finding("tensor-offsets", f"tensor {name}: offsets [{entry.begin}, {entry.end}] run backwards")
    if entry.begin > covered:
        message = f"{entry.begin - covered} bytes before tensor {name} belong to no tensor"
        return Finding("tensor-gap", message, expected=covered, actual=entry.begin)
    message = f"tensors {quoted(before)} and {name} share bytes"
    return Finding("tensor-overlap", message, expected=covered, actual=entry.begin)


def _judge_shape(entry: TensorEntry) -> Finding:
    bits = tensor_bits(entry.dtype, entry.shape)
    shape = str(list(entry.shape[:_LONGEST_SHAPE]))
    if len(entry.shape) > _LONGEST_SHAPE:
        shape = f"{shape[:-1]}, … {len(entry.shape)} dimensions]"
    about = f"tensor {quoted(entry.name)}: shape {shape} of {entry.dtype}"
    if bits is None:
        return Finding("tensor-shape", f"{about} overflows 64 bits")
    if bits % 8:
        return Finding("tensor-shape", f"{about} does not end on a byte")
    message = f"{about} takes {bits // 8} bytes, its offsets span {entry.nbytes}"
    return Finding("tensor-shape", message, expected=bits // 8, actual=entry.nbytes)
