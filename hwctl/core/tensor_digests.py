"""SHA-256 of tensors where they lie, to hold a source against an artifact that is there already.

Owns the reading in parallel; what follows from two digests that differ is the publisher's business.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from hwctl.stores.base import Advance, silent
from hwctl.stores.hostweights.records import TensorEntry, content_digest, contiguous_stride
from hwctl.stores.hostweights.tensors import TensorSpec
from hwctl.weights.tensor_reader import TensorReader

_BLOCK = 2 << 20


def content_of(specs: Sequence[TensorSpec], digests: Mapping[str, str]) -> str:
    """The content digest an artifact of these tensors would have, whatever files they lie in."""
    return content_digest(
        TensorEntry(
            name=spec.name,
            kind=spec.kind,
            role=spec.role,
            file_name="",
            storage_key="",
            shape=spec.shape,
            dtype=spec.dtype,
            stride=contiguous_stride(spec.shape),
            nbytes=spec.nbytes,
            sha256=digests[spec.name],
        )
        for spec in specs
    )


def digest_tensors(
    reader: TensorReader, specs: Sequence[TensorSpec], *, jobs: int, advance: Advance = silent
) -> dict[str, str]:
    """SHA-256 of every tensor's raw bytes, by name, without writing anything."""
    stop = threading.Event()

    def digest(batch: Sequence[TensorSpec]) -> list[str]:
        buffer = memoryview(bytearray(_BLOCK))
        return [_digest(reader, spec, buffer, stop) for spec in batch]

    found: dict[str, str] = {}
    batches = list(_batches(specs))
    with ThreadPoolExecutor(jobs, "hwctl-tensor-digest") as pool:
        try:
            for batch, digests in zip(batches, pool.map(digest, batches), strict=True):
                found.update((spec.name, sha256) for spec, sha256 in zip(batch, digests, strict=True))
                advance(sum(spec.nbytes for spec in batch))
        finally:
            stop.set()  # a signal must not wait for a tensor of many gigabytes
            pool.shutdown(wait=False, cancel_futures=True)
    return found


def _digest(reader: TensorReader, spec: TensorSpec, buffer: memoryview, stop: threading.Event) -> str:
    state = hashlib.sha256()
    size = spec.nbytes
    for begin in range(0, size, _BLOCK):
        if stop.is_set():
            break
        state.update(reader.read_range(spec.name, begin, min(begin + _BLOCK, size), buffer))
    return state.hexdigest()


def _batches(specs: Sequence[TensorSpec]) -> Iterator[list[TensorSpec]]:
    """Work for one thread at a time: a task for each of a million tensors would cost more than they do."""
    batch: list[TensorSpec] = []
    total = 0
    for spec in specs:
        batch.append(spec)
        total += spec.nbytes
        if total >= 32 * _BLOCK or len(batch) >= 1000:
            yield batch
            batch, total = [], 0
    if batch:
        yield batch
