"""From a checkpoint's tensors to the payload files of an artifact, in bounded memory.

Owns which tensor goes into which payload file, and the reading that keeps ahead of the writing. What is a
publishable tensor is the store's rule, the bytes on the disk are its writer's.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed

from hwctl.errors import Unsupported
from hwctl.fs.deadline import Deadline
from hwctl.fs.pace import Watch
from hwctl.stores.hostweights.lanes import Ticket
from hwctl.stores.hostweights.payload_file import PayloadFile
from hwctl.stores.hostweights.tensors import TensorSpec, torch_view
from hwctl.stores.hostweights.writer import ArtifactWriter
from hwctl.weights.checkpoint import Checkpoint
from hwctl.weights.tensor_layout import TensorEntry
from hwctl.weights.tensor_reader import TensorReader

LARGEST_PAYLOAD = 5 << 30
"""Bytes of a payload file, as vLLM-Omni's producer splits. A larger tensor has a file of its own."""

_LARGEST_HEADER = 90_000_000
_BLOCK = 2 << 20
_BLOCKS = 8


def specs_of(checkpoint: Checkpoint) -> tuple[TensorSpec, ...]:
    """Every tensor as a parameter with the role weight, in name order, spread over payload files.

    Unsupported for what a manifest or torch cannot name.
    """
    entries = [shard.header.by_name[name] for shard in checkpoint.shards for name in shard.header.by_name]
    entries.sort(key=lambda entry: entry.name)
    groups = list(_grouped(entries))
    specs: list[TensorSpec] = []
    for number, group in enumerate(groups, 1):
        file_name = payload_name(number, len(groups))
        specs += [_spec(entry, file_name) for entry in group]
    return tuple(specs)


def payload_name(number: int, count: int) -> str:
    """The name of a payload, counted from 1, as vLLM-Omni's producer names them."""
    return f"model-{number:05d}-of-{count:05d}.safetensors"


def _grouped(entries: Iterable[TensorEntry]) -> Iterator[list[TensorEntry]]:
    """Greedily in name order, a new file when the next tensor would make this one too large."""
    group: list[TensorEntry] = []
    header, total = 0, 0
    for entry in entries:
        described = _described_bytes(entry)
        too_large = total + described + entry.nbytes > LARGEST_PAYLOAD
        if group and (too_large or header + described > _LARGEST_HEADER):
            yield group
            group, header, total = [], 0, 0
        group.append(entry)
        header += described
        total += described + entry.nbytes
    yield group


def _described_bytes(entry: TensorEntry) -> int:
    """At most what one entry takes in the header of its file."""
    fixed = 120  # field names, punctuation, two offsets, a share of the header's own prefix and padding
    return len(json.dumps(entry.name)) + len(str(list(entry.shape))) + fixed


def _spec(entry: TensorEntry, file_name: str) -> TensorSpec:
    if not entry.name:
        raise Unsupported("a tensor with an empty name cannot be published")
    view = torch_view(entry)
    if view is None:
        what = f"{entry.dtype} {list(entry.shape)}"
        raise Unsupported(f"tensor {entry.name!r}: torch has no tensor of {what}, so it cannot be published")
    return TensorSpec(entry.name, *view, file_name)


class Stream:
    """A producer: reads every declared tensor and hands it to the writer, block by block.

    Tensors are written in the order in which they lie in their payload file, so that everything is hashed
    on the way. With ``ordered`` the writer holds us to that. Files are written beside each other, as many as
    the writer has threads for.
    """

    def __init__(self, reader: TensorReader, *, ordered: bool = False) -> None:
        self._reader = reader
        self._ordered = ordered

    def __call__(self, writer: ArtifactWriter) -> None:
        todo = deque(writer.file_names)
        stop = threading.Event()
        count = min(writer.beside, len(todo))
        if count <= 1:
            self._work(writer, todo, stop)
            return
        with ThreadPoolExecutor(count, "hwctl-read") as pool:
            running = [pool.submit(self._work, writer, todo, stop) for _ in range(count)]
            try:
                for worker in as_completed(running):
                    worker.result()
            finally:
                stop.set()  # after a failure or a signal the others end with the block they are at

    def _work(self, writer: ArtifactWriter, todo: deque[str], stop: threading.Event) -> None:
        """One worker: a file after the other until there are none."""
        ring = _Ring()
        watch = Watch(None, Deadline.never(), (stop,))
        while True:
            try:
                file_name = todo.popleft()
            except IndexError:
                return
            with writer.open(file_name, ordered=self._ordered) as payload:
                for name, extent in payload.plan.extents.items():
                    self._copy(payload, name, extent.size, ring, watch)

    def _copy(self, payload: PayloadFile, name: str, size: int, ring: _Ring, watch: Watch) -> None:
        for begin in range(0, size, _BLOCK):
            watch.check()
            end = min(begin + _BLOCK, size)
            data = self._reader.read_range(name, begin, end, ring.take(end - begin))
            ring.used(payload.put(name, begin, data))
        if not size:
            payload.write_tensor(name, b"")


class _Ring:
    """Buffers that are filled in turn; one is filled again when the writer is done with all it held.

    Small tensors share a buffer: with one each, the writer would be waited for after every few of them.
    """

    def __init__(self) -> None:
        self._buffers = [memoryview(bytearray(_BLOCK)) for _ in range(_BLOCKS)]
        self._under_way: list[deque[Ticket]] = [deque() for _ in range(_BLOCKS)]
        self._current = 0
        self._filled = 0

    def take(self, size: int) -> memoryview:
        """``size`` bytes, at most a block, that nobody is using."""
        if self._filled + size > _BLOCK:
            self._current = (self._current + 1) % _BLOCKS
            self._filled = 0
            tickets = self._under_way[self._current]
            while tickets:
                tickets.popleft().wait()
        begin = self._filled
        self._filled += size
        return self._buffers[self._current][begin : begin + size]

    def used(self, ticket: Ticket) -> None:
        """The bytes taken last are under way until ``ticket`` is done."""
        self._under_way[self._current].append(ticket)
