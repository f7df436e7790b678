"""The text of a manifest: its value, the digest that is sealed, and its tensor entries read quickly.

A manifest is almost all tensor entries, of one shape. Where it has the canonical form that every writer
makes, one regular expression reads them and proves their form at once; any other spelling, and anything
wrong, takes the general way, which says what it is. Both ways give the same records.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from hwctl.stores.hostweights import canonical
from hwctl.stores.hostweights.layout import is_safe_name
from hwctl.stores.hostweights.records import TensorEntry

_TENSORS_KEY = "tensors"
_TENSORS_BEGIN = b',"tensors":[{"dtype":"'
"""The list is the last member: its key sorts behind all others."""

_NEXT_ENTRY = b'},{"dtype":"'
"""Never within an entry: the quick way takes no text with a quote in it."""

_PIECE = 1 << 20

# Printable ASCII but for the quote and the backslash: text that canonical JSON spells as it is.
_TEXT = r"[ !#-\[\]-~]+"
_SIZE = r"(?:0|[1-9][0-9]*)"
_ENTRY = re.compile(
    rf'\{{"dtype":"({_TEXT})","file_name":"({_TEXT})","kind":"(parameter|buffer)","name":"({_TEXT})",'
    rf'"nbytes":({_SIZE}),"role":"({_TEXT})","sha256":"([0-9a-f]{{64}})","shape":\[([0-9,]*)\],'
    rf'"storage_key":"({_TEXT})","stride":\[([0-9,]*)\]\}}'
)
_SIZES = re.compile(rf"(?:{_SIZE}(?:,{_SIZE})*)?")
_FIXED = len(
    '{"dtype":"","file_name":"","kind":"","name":"","nbytes":,"role":"","sha256":"","shape":[],'
    '"storage_key":"","stride":[]}'
)
_LONGEST_SIZE = 30
"""Digits of an integer that the quick way takes; Python itself refuses only thousands."""


@dataclass(frozen=True, slots=True)
class ManifestText:
    """A manifest as read. ``value`` is the parsed document, without its list of tensors when ``entries``
    holds them already; ``sha256`` is of the canonical form, which is what READY.json seals."""

    value: object
    sha256: str
    entries: tuple[TensorEntry, ...] | None = None


def read_text(data: bytes) -> ManifestText:
    """Read a manifest's bytes, or raise ``canonical.BadDocument``."""
    quick = _read_canonical(data)
    if quick is not None:
        return quick
    parsed = canonical.parse(data)
    return ManifestText(parsed.value, hashlib.sha256(parsed.canonical).hexdigest())


def _read_canonical(data: bytes) -> ManifestText | None:
    """The quick way, None for anything but a canonical manifest whose entries are all sound.

    What comes before the tensors is a canonical object of its own; each entry matches the canonical
    spelling; and the lengths prove that nothing lies between them. So the whole is canonical.
    """
    # Entries hold no nested objects, so the last such place is the list itself, not a piece of metadata.
    split = data.rfind(_TENSORS_BEGIN)
    if split < 0 or not data.isascii() or not data.endswith(b"]}"):
        return None
    head = data[:split] + b"}"
    try:
        parsed = canonical.parse(head)
    except canonical.BadDocument:
        return None
    value = parsed.value
    if parsed.canonical != head or not isinstance(value, dict) or max(value, default="") >= _TENSORS_KEY:
        return None
    entries = _entries(data, split + len(b',"tensors":['), len(data) - len(b"]}"))
    return None if entries is None else ManifestText(value, hashlib.sha256(data).hexdigest(), entries)


def _entries(data: bytes, begin: int, end: int) -> tuple[TensorEntry, ...] | None:
    """A piece at a time: as rows of text the entries take three times what they take as records."""
    out: list[TensorEntry] = []
    shared: dict[str, str] = {}
    while begin < end:
        stop = data.find(_NEXT_ENTRY, begin + _PIECE, end)
        stop = end if stop < 0 else stop + 1
        piece = _piece(data[begin:stop].decode("ascii"), shared)
        if piece is None:
            return None
        out += piece
        begin = stop + 1  # past the comma
    return tuple(out)


def _piece(listed: str, shared: dict[str, str]) -> Iterable[TensorEntry] | None:
    columns = list(zip(*_ENTRY.findall(listed), strict=True))
    if not columns:
        return None
    count = len(columns[0])
    read = sum(len("".join(column)) for column in columns)
    if read + count * (_FIXED + 1) - 1 != len(listed):
        return None
    dtype, file_name, kind, name, nbytes, role, sha256, shape, storage_key, stride = columns
    sizes = _sizes({*shape, *stride})
    if sizes is None or max(map(len, set(nbytes))) > _LONGEST_SIZE:
        return None
    if not all(map(is_safe_name, set(file_name))):
        return None
    if any(len(sizes[left]) != len(sizes[right]) for left, right in {*zip(shape, stride, strict=True)}):
        return None
    rows = zip(
        name,
        _shared(kind, shared),
        _shared(role, shared),
        _shared(file_name, shared),
        storage_key,
        map(sizes.__getitem__, shape),
        _shared(dtype, shared),
        map(sizes.__getitem__, stride),
        map(int, nbytes),
        sha256,
        strict=True,
    )
    return map(TensorEntry._make, rows)


def _shared(texts: Sequence[str], shared: dict[str, str]) -> Iterator[str]:
    """The same texts, each spelling as one object."""
    return map(shared.setdefault, texts, texts)


def _sizes(texts: set[str]) -> dict[str, tuple[int, ...]] | None:
    """Each spelling of a list of sizes once: thousands of layers share a few."""
    found: dict[str, tuple[int, ...]] = {}
    for text in texts:
        if _SIZES.fullmatch(text) is None or len(text) > _LONGEST_SIZE * 64:
            return None
        numbers = text.split(",") if text else []
        if any(len(number) > _LONGEST_SIZE for number in numbers):
            return None
        found[text] = tuple(map(int, numbers))
    return found
