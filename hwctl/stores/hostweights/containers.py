"""The container that a writer makes for declared tensors, to be compared with the one that is there.

Nearly every payload has exactly the header that follows from the manifest; comparing bytes settles all
checks of its tensors at once. A payload that differs is no damage yet: ``judging`` then looks at each tensor.
"""

from __future__ import annotations

import os
import struct
from bisect import bisect
from collections.abc import Mapping, Sequence
from itertools import accumulate
from json.encoder import encode_basestring_ascii
from typing import TypeAlias

from hwctl.stores.hostweights import canonical
from hwctl.stores.hostweights.records import TensorEntry, contiguous_stride
from hwctl.stores.hostweights.tensors import CONTAINER_METADATA, RESERVED_NAME, container_shape
from hwctl.weights.dtypes import CODES
from hwctl.weights.safetensors_file import HEADER_LIMIT
from hwctl.weights.tensor_layout import tensor_bits

_Form: TypeAlias = tuple[str, tuple[int, ...], tuple[int, ...], int]
"""Dtype, shape, strides and size of a tensor: layers share a few."""


def is_as_written(fd: int, size: int, declared: Mapping[str, TensorEntry]) -> bool:
    """Whether a file of ``size`` bytes has the very header the format's writer makes for these entries.

    True implies that the container is sound and holds the declared tensors as declared. OSError passes.
    """
    entries = [declared[key] for key in sorted(declared)]
    header = header_of(entries)
    if header is None or size != len(header) + sum(entry.nbytes for entry in entries):
        return False
    return os.pread(fd, len(header), 0) == header


def header_of(entries: Sequence[TensorEntry]) -> bytes | None:
    """Prefix and header for entries in the order of their storage keys, laid out without gaps.

    None where an entry contradicts itself, so that no sound container could hold it.
    """
    known: dict[_Form, str] = {}
    members: list[str] = []
    ends = accumulate(entry.nbytes for entry in entries)
    begin = 0
    for entry, end in zip(entries, ends, strict=True):
        form = (entry.dtype, entry.shape, entry.stride, entry.nbytes)
        told = known.get(form)
        if told is None:
            told = _told(*form)
            if told is None:
                return None
            known[form] = told
        members.append(
            f'{encode_basestring_ascii(entry.storage_key)}:{{"data_offsets":[{begin},{end}],{told}}}'
        )
        begin = end
    keys = [entry.storage_key for entry in entries]
    if RESERVED_NAME in keys:
        return None
    metadata = f'"{RESERVED_NAME}":{canonical.encode(CONTAINER_METADATA).decode()}'
    members.insert(bisect(keys, RESERVED_NAME), metadata)
    text = "{" + ",".join(members) + "}"
    text += " " * (-len(text) % 8)
    return None if len(text) > HEADER_LIMIT else struct.pack("<Q", len(text)) + text.encode("ascii")


def _told(dtype: str, shape: tuple[int, ...], stride: tuple[int, ...], nbytes: int) -> str | None:
    """Dtype and shape as a header spells them; None unless strides and size follow from them."""
    code = CODES.get(dtype)
    if code is None or stride != contiguous_stride(shape):
        return None
    stored = container_shape(dtype, shape)
    bits = None if stored is None else tensor_bits(code, stored)
    if bits != nbytes * 8:
        return None
    return f'"dtype":"{code}","shape":{canonical.encode(stored).decode()}'
