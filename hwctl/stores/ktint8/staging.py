"""A staging root of our own: locked, leased, filled layer by layer, then published by somebody or removed.

Owns what happens inside the root from its first lease on. How a root is made or found again is
``staging_root``, files are written by ``layer_writer``, and ``publish`` takes the finished tree away. The
lock on the root directory is held all the time, follows the directory through the rename, and goes with the
process: that is how everybody else can tell that the tree is alive (REC-04).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from hwctl.errors import NoRoom, from_os_error
from hwctl.fs import space
from hwctl.fs.atomic import rename_noreplace, sync_dir
from hwctl.fs.liveness import Process
from hwctl.fs.paths import opened_dir
from hwctl.fs.remove import remove_tree
from hwctl.stores.ktint8 import content, layout, lease
from hwctl.stores.ktint8.layer_writer import LayerWriter
from hwctl.stores.ktint8.lease import Progress, StagingLease
from hwctl.stores.ktint8.root_lock import LockedRoot, inode_named
from hwctl.stores.ktint8.tree import Plan, judge_layer
from hwctl.weights.amx import Geometry

_PAGE = 4096
_BATCH = 8
"""Files that a worker reserves in one go: few enough that a single layer keeps all workers busy."""


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be staged: the run, its shape, its layers ascending, and a text that names the source.

    ``final`` is the name below the base that it will be published under. ``shared`` lets everybody read the
    tree, as a persistent store may be.
    """

    run_id: str
    final: str
    geometry: Geometry
    layers: tuple[int, ...]
    source: str
    shared: bool = False


class Staging:
    """A staging root that this process holds. Use as a context manager: what is not published is removed.

    ``done`` maps every finished layer to the SHA-256 of its files in the order of ``layout.layer_paths``.
    """

    def __init__(self, root: LockedRoot, order: Order) -> None:
        """Takes the root over; ``close`` lets it go."""
        self.root = root
        self.order = order
        self.path = root.path
        self.done: dict[int, tuple[bytes, ...]] = {}
        self.producer = Process.current()

    @property
    def missing(self) -> tuple[int, ...]:
        """The layers still to be made."""
        return tuple(layer for layer in self.order.layers if layer not in self.done)

    def prepare(self, recorded: Mapping[int, str], workers: int) -> None:
        """Put our lease on the root, keep what is sound of the ``recorded`` layers, and reserve the rest.

        A layer is kept when it is exactly as it should be and its bytes have the digest on record; every
        other entry of the root goes.
        """
        # First of all ours: upstream's reclaim looks at the pid alone.
        self._write_lease(recorded)
        for layer in self.order.layers:
            digests = self._digests_of(layer, workers) if layer in recorded else None
            if digests is not None and layer_digest(digests) == recorded[layer]:
                self.done[layer] = digests
        kept = {layout.LEASE, *map(layout.layer_dir, self.done)}
        for name in set(os.listdir(self.root.fd)) - kept:
            remove_tree(self.root.fd, name)
        self._write_lease(self._progress())
        self._reserve(workers)

    def _digests_of(self, layer: int, workers: int) -> tuple[bytes, ...] | None:
        """The digests of a layer's files as they are now, None when it is not exactly what it should be."""
        geometry = self.order.geometry
        try:
            if any(judge_layer(self.root.fd, layer, Plan(geometry, whole=(layer,)))):
                return None
        except (FileNotFoundError, NotADirectoryError):
            return None
        digests: dict[int, bytes] = {}
        for read in content.read_tree(self.root.fd, geometry, [layer], workers=workers, rules=False):
            if read.findings:
                return None
            digests |= read.digests
        return tuple(digests[slot] for slot in range(geometry.layer_files))

    def _reserve(self, workers: int) -> None:
        """Take the room for all that is still to be made, before the first byte is computed (PUB-03)."""
        geometry, layers = self.order.geometry, len(self.missing)
        files = layout.part_files(geometry).values()
        need = layers * geometry.parts * sum(-(-file.size // _PAGE) * _PAGE for file in files)
        inodes = layers * (1 + geometry.parts * (1 + len(files)))
        what = f"staging run {self.order.run_id}"
        space.require(self.path, need, inodes, what=what)
        try:
            for layer in self.missing:
                self._reserve_layer(layout.partial_layer_dir(layer), workers)
        except OSError as exc:
            failure = from_os_error(exc, what, self.path)
            if isinstance(failure, NoRoom):
                # Others write too, and quotas do not show beforehand; ask again, for a message with numbers.
                space.require(self.path, need, inodes, what=what)
            raise failure from exc

    def _reserve_layer(self, name: str, workers: int) -> None:
        """Several at once: tmpfs takes every page as it is reserved, which is a tenth of all the work."""
        folder_mode, file_mode = (0o755, 0o644) if self.order.shared else (0o700, 0o600)
        files = tuple(layout.part_files(self.order.geometry).values())
        batches = [files[at : at + _BATCH] for at in range(0, len(files), _BATCH)]
        os.mkdir(name, folder_mode, dir_fd=self.root.fd)
        with opened_dir(name, dir_fd=self.root.fd) as layer_fd:
            for part in map(layout.part_dir, range(self.order.geometry.parts)):
                os.mkdir(part, folder_mode, dir_fd=layer_fd)
                with opened_dir(part, dir_fd=layer_fd) as part_fd:
                    pool = ThreadPoolExecutor(workers)
                    try:
                        list(pool.map(partial(_reserve_files, part_fd, file_mode), batches))
                    finally:
                        # The workers end before the folder is closed, and after a failure or a signal begin
                        # no further batch.
                        pool.shutdown(wait=True, cancel_futures=True)

    def layer(self, layer: int) -> LayerWriter:
        """The writer of a reserved layer."""
        return LayerWriter(self.root.fd, layer, self.order.geometry)

    def finish(self, writer: LayerWriter) -> None:
        """A layer is whole: give it its name, and put it on record."""
        try:
            digests = writer.close()
            name = layout.layer_dir(writer.layer)
            rename_noreplace(self.root.fd, layout.partial_layer_dir(writer.layer), self.root.fd, name)
            sync_dir(self.root.fd)
            self.done[writer.layer] = digests
            self._write_lease(self._progress())
        except OSError as exc:
            raise from_os_error(exc, f"cannot finish layer {writer.layer}", self.path) from exc

    def _progress(self) -> dict[int, str]:
        return {layer: layer_digest(digests) for layer, digests in self.done.items()}

    def _write_lease(self, layers: Mapping[int, str]) -> None:
        order = self.order
        progress = Progress(order.source, order.geometry, layers)
        ours = StagingLease(order.run_id, os.geteuid(), self.producer.pid, self.producer, progress)
        lease.write(self.root.fd, ours)

    def close(self) -> None:
        """Remove the root unless it was published, then let the lock go. In a forked child only the
        descriptors are closed (LEA-01)."""
        try:
            if os.getpid() == self.producer.pid:
                self._remove()
        except OSError as exc:
            raise from_os_error(exc, "cannot remove the staging tree", self.path) from exc
        finally:
            self.root.close()

    def _remove(self) -> None:
        inode = self.root.lock.inode
        # Once it is published the root has left this name.
        if inode_named(self.root.base_fd, self.path.name) == inode:
            remove_tree(self.root.base_fd, self.path.name, inode=inode)

    def __enter__(self) -> Staging:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


def _reserve_files(part_fd: int, mode: int, files: Sequence[layout.PartFile]) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    for file in files:
        fd = os.open(file.name, flags, mode, dir_fd=part_fd)
        try:
            space.reserve(fd, file.size)
        finally:
            os.close(fd)


def layer_digest(digests: Sequence[bytes]) -> str:
    """One SHA-256 for a layer, over the digests of its files in the order of ``layout.layer_paths``."""
    return hashlib.sha256(b"".join(digests)).hexdigest()
