"""Reading every file of a tree once: its SHA-256 and the content rules, from the same bytes.

Owns the reading, in parallel and in order. What a tree holds was settled by ``tree`` before; what the rules
are is ``weights.amx_content``; what a digest should be is told by the caller. A quant file and its scale
file are read together, since the rules speak of both. The page cache is left as it was (PER-02).
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass

from hwctl.errors import Finding, from_os_error
from hwctl.fs.deadline import Deadline
from hwctl.fs.digest import ShortRead
from hwctl.fs.lock_file import shown_path
from hwctl.fs.pace import Pacer, Watch
from hwctl.fs.pagecache import QuietFile, Ways
from hwctl.fs.paths import NotRegular, open_regular, opened_dir
from hwctl.stores.ktint8 import layout
from hwctl.stores.ktint8.workbench import Workbench
from hwctl.weights.amx import ROW_BLOCK, Geometry
from hwctl.weights.amx_content import STRETCH_BYTES, ContentCheck
from hwctl.weights.int8 import one_thread

_PIECE = 512 << 10
"""Between two reads of this size a rate, a deadline and a stop are looked at."""

_BATCH_BYTES = 16 << 20
"""Pairs are handed to a worker in batches of about this much: a switch for every small file costs time."""


@dataclass(frozen=True, slots=True)
class Pair:
    """The two files of one matrix, and their places in ``layout.layer_paths``."""

    slot: int
    quant: layout.PartFile
    scale: layout.PartFile


@dataclass(frozen=True, slots=True)
class Batch:
    """Some pairs of one part folder of one layer."""

    layer: int
    part: int
    pairs: tuple[Pair, ...]

    @property
    def size(self) -> int:
        return sum(pair.quant.size + pair.scale.size for pair in self.pairs)


@dataclass(frozen=True, slots=True)
class ReadBatch:
    """The SHA-256 of the files that could be read, by their place in the layer, and what is wrong."""

    batch: Batch
    digests: dict[int, bytes]
    findings: tuple[Finding, ...]


def batches(geometry: Geometry, layers: Sequence[int]) -> Iterator[Batch]:
    """The whole work, layer by layer and part by part."""
    files = tuple(layout.part_files(geometry).values())
    pairs = [Pair(place, files[place], files[place + 1]) for place in range(0, len(files), 2)]
    for layer in layers:
        for part in range(geometry.parts):
            begin, held = 0, 0
            for at, pair in enumerate(pairs):
                held += pair.quant.size + pair.scale.size
                if held >= _BATCH_BYTES or at + 1 == len(pairs):
                    chosen = pairs[begin : at + 1]
                    yield Batch(layer, part, _placed(chosen, part * len(files)))
                    begin, held = at + 1, 0


def _placed(pairs: Sequence[Pair], offset: int) -> tuple[Pair, ...]:
    return tuple(Pair(pair.slot + offset, pair.quant, pair.scale) for pair in pairs)


def read_tree(
    root_fd: int,
    geometry: Geometry,
    layers: Sequence[int],
    *,
    workers: int,
    rules: bool,
    pacer: Pacer | None = None,
    deadline: Deadline | None = None,
) -> Iterator[ReadBatch]:
    """Read the files of some layers; the results come in order, whatever ``workers`` is.

    Files that are missing or of another size become findings; an error of the device is IoFailed. Leaving
    the iterator early ends the workers.
    """
    stop = threading.Event()
    watch = Watch(pacer, deadline or Deadline.never(), (stop,))
    reader = _Reader(root_fd, geometry, watch, rules=rules)
    with one_thread() if rules else nullcontext():
        pool = ThreadPoolExecutor(workers, thread_name_prefix="ktint8")
        waiting: deque[Future[ReadBatch]] = deque()
        try:
            for batch in batches(geometry, layers):
                waiting.append(pool.submit(reader.read, batch))
                if len(waiting) > 2 * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)


class _Reader:
    """Reads batches; each thread has its own buffers."""

    def __init__(self, root_fd: int, geometry: Geometry, watch: Watch, *, rules: bool) -> None:
        self._root_fd = root_fd
        self._geometry = geometry
        self._watch = watch
        self._rules = rules
        self._ways = Ways()
        self._bench = Workbench()

    def read(self, batch: Batch) -> ReadBatch:
        folder, part = layout.layer_dir(batch.layer), layout.part_dir(batch.part)
        digests: dict[int, bytes] = {}
        findings: list[Finding] = []
        try:
            with (
                opened_dir(folder, dir_fd=self._root_fd) as layer_fd,
                opened_dir(part, dir_fd=layer_fd) as part_fd,
            ):
                for pair in batch.pairs:
                    findings += self._pair(part_fd, f"{folder}/{part}", pair, digests)
        except (FileNotFoundError, NotADirectoryError):
            findings.append(Finding("missing-directory", "the directory is missing", f"{folder}/{part}"))
        except OSError as exc:
            raise from_os_error(exc, "cannot read", shown_path(f"{folder}/{part}", self._root_fd)) from exc
        return ReadBatch(batch, digests, tuple(findings))

    def _pair(self, part_fd: int, folder: str, pair: Pair, digests: dict[int, bytes]) -> list[Finding]:
        check = self._bench.check() if self._rules else None
        rows, columns = self._geometry.shape(pair.quant.projection)
        stretch = check.start(rows, columns) if check else max(ROW_BLOCK * columns, STRETCH_BYTES)
        findings = []
        for slot, file in ((pair.slot, pair.quant), (pair.slot + 1, pair.scale)):
            feed = check if check and file is pair.quant else None
            read = self._file(part_fd, file, stretch, feed)
            if isinstance(read, bytes):
                digests[slot] = read
            else:
                findings.append(Finding(read.code, read.message, f"{folder}/{file.name}", *_sizes(read)))
        if check and not findings:
            scales = self._bench.buffer(pair.scale.size)[: pair.scale.size]
            quant = f"{folder}/{pair.quant.name}"
            findings += [Finding(found.code, found.message, quant) for found in check.finish(scales)]
        return findings

    def _file(
        self, part_fd: int, file: layout.PartFile, stretch: int, feed: ContentCheck | None
    ) -> bytes | Finding:
        """The digest of one file; the last stretch stays in the buffer, a scale file wholly."""
        try:
            fd, st = open_regular(file.name, dir_fd=part_fd)
        except FileNotFoundError:
            return Finding("missing-file", "the file is missing")
        except NotRegular as exc:
            return Finding("entry-type", f"is a {exc.kind}, not a regular file")
        try:
            if st.st_size != file.size:
                words = f"has {st.st_size} bytes where {file.size} belong"
                return Finding("file-size", words, None, file.size, st.st_size)
            return self._hash(fd, file.size, max(1, min(stretch, file.size)), feed)
        except ShortRead as exc:
            words = f"has {exc.got} bytes where {file.size} belong"
            return Finding("file-size", words, None, file.size, exc.got)
        finally:
            os.close(fd)

    def _hash(self, fd: int, size: int, stretch: int, feed: ContentCheck | None) -> bytes:
        digest = hashlib.sha256()
        buffer = self._bench.buffer(stretch)
        offset = 0
        with QuietFile(fd, size, self._ways) as source:
            while offset < size:
                want = min(stretch, size - offset)
                filled = 0
                while filled < want:
                    count = source.read_into(buffer[filled : min(filled + _PIECE, want)], offset + filled)
                    if count == 0:
                        raise ShortRead(offset + filled, size)
                    filled += count
                    self._watch.passed(count)
                digest.update(buffer[:want])
                if feed is not None:
                    feed.feed(buffer[:want])
                offset += want
        return digest.digest()


def _sizes(finding: Finding) -> tuple[object, object]:
    return finding.expected, finding.actual
