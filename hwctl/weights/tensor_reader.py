"""Bytes of a checkpoint's tensors, read into buffers the caller reuses.

Owns the descriptors and the promise that what is read is what was judged: a shard that was replaced, grown
or touched since its header was read is refused, not mixed. Which tensors are read and when is up to others.
"""

from __future__ import annotations

import os
import threading
from types import TracebackType

from hwctl.errors import NotFound, Refused, from_os_error
from hwctl.fs.paths import identity, open_regular
from hwctl.weights.checkpoint import Checkpoint
from hwctl.weights.shards import Shard
from hwctl.weights.tensor_layout import TensorEntry


class TensorReader:
    """Reads tensors of one checkpoint. Safe to share between threads, each with its own buffer.

    Every read raises Refused with details ``{"code": "source-changed"}`` when the file's identity (device,
    inode, size, mtime, ctime) is no longer that of the header, and IoFailed for what the disk says.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._shards = {shard.name: shard for shard in checkpoint.shards}
        self._weight_map = checkpoint.weight_map
        self._open: dict[str, int] = {}
        self._lock = threading.Lock()

    def entry(self, tensor: str) -> TensorEntry:
        """Dtype, shape and place of a tensor; NotFound when the checkpoint has none of that name."""
        return self._shard_of(tensor).header.by_name[tensor]

    def read_range(self, tensor: str, begin: int, end: int, buffer: memoryview) -> memoryview:
        """Bytes ``begin`` to ``end`` of a tensor's data, in the first bytes of ``buffer``."""
        shard = self._shard_of(tensor)
        entry = shard.header.by_name[tensor]
        if not 0 <= begin <= end <= entry.nbytes:
            raise ValueError(f"bytes {begin} to {end} leave the {entry.nbytes} of {tensor!r}")
        part = buffer[: end - begin]
        if part.nbytes != end - begin:
            raise ValueError(f"a buffer of {buffer.nbytes} bytes for {end - begin}")
        offset = shard.header.data_start + entry.begin + begin
        fd = self._descriptor(shard)
        try:
            done = 0
            while done < part.nbytes:
                count = os.preadv(fd, [part[done:]], offset + done)
                if not count:
                    raise changed(shard)
                done += count
            # After the read: a change before it shows just as well, and one during it would be missed else.
            if identity(os.fstat(fd)) != shard.identity:
                raise changed(shard)
        except OSError as exc:
            raise from_os_error(exc, f"cannot read {shard.name}", shard.path) from exc
        return part

    def close(self) -> None:
        with self._lock:
            while self._open:
                os.close(self._open.popitem()[1])

    def _shard_of(self, tensor: str) -> Shard:
        name = self._weight_map.get(tensor)
        if name is None:
            raise NotFound(f"the checkpoint has no tensor {tensor!r}")
        return self._shards[name]

    def _descriptor(self, shard: Shard) -> int:
        with self._lock:
            fd = self._open.get(shard.name)
            if fd is None:
                fd = self._open[shard.name] = open_unchanged(shard)
            return fd

    def __enter__(self) -> TensorReader:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _exc: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()


def open_unchanged(shard: Shard) -> int:
    """A descriptor of the very file whose header was read; Refused when another stands in its place."""
    try:
        fd, st = open_regular(shard.path)
    except FileNotFoundError:
        raise changed(shard) from None
    except OSError as exc:
        raise from_os_error(exc, f"cannot read {shard.name}", shard.path) from exc
    if identity(st) != shard.identity:
        os.close(fd)
        raise changed(shard)
    return fd


def changed(shard: Shard) -> Refused:
    """The refusal for a source that did not hold still."""
    return Refused(
        f"{shard.name} changed while it was read",
        path=shard.path,
        retryable=True,
        details={"code": "source-changed", "file": shard.name},
    )
