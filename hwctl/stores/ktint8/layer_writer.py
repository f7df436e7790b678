"""Writing one layer into its reserved files: every byte counted, hashed on its way, and made durable.

Owns the files of a layer that is growing. The bytes come as pieces of an expert's files from several
workers at once, each expert from one worker. The folder gets its real name only when all of it is there.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterable
from contextlib import ExitStack

from hwctl.errors import HwctlError, IoFailed, from_os_error
from hwctl.fs.atomic import sync_dir, write_all
from hwctl.fs.lock_file import shown_path
from hwctl.fs.paths import opened_dir
from hwctl.stores.ktint8 import layout
from hwctl.weights.amx import Geometry, Kind, Piece, Projection

_FILES = tuple((projection, kind) for projection in Projection for kind in Kind)
_PLACES = {key: place for place, key in enumerate(_FILES)}


class LayerWriter:
    """One layer of a staging root. ``write`` may be called from several threads, for different experts."""

    def __init__(self, root_fd: int, layer: int, geometry: Geometry) -> None:
        self.layer = layer
        self._geometry = geometry
        self._digests: list[bytes | None] = [None] * geometry.layer_files
        self._stop = threading.Event()
        self._stack = ExitStack()
        folder = layout.partial_layer_dir(layer)
        try:
            self._layer_fd = self._stack.enter_context(opened_dir(folder, dir_fd=root_fd))
            self._part_fds = [
                self._stack.enter_context(opened_dir(layout.part_dir(part), dir_fd=self._layer_fd))
                for part in range(geometry.parts)
            ]
        except OSError as exc:
            self._stack.close()
            raise from_os_error(exc, f"cannot open layer {layer}", shown_path(folder, root_fd)) from exc

    def write(self, expert: int, pieces: Iterable[Piece]) -> int:
        """Write all files of one expert; the bytes written.

        Raises NoRoom or IoFailed for what the file system says, and IoFailed when a file did not become
        whole: then nothing may be published.
        """
        written = 0
        with ExitStack() as open_files:
            files: dict[tuple[int, Projection, Kind], _File] = {}
            for piece in pieces:
                if self._stop.is_set():
                    raise IoFailed("stopped")
                key = (piece.part, piece.projection, piece.kind)
                file = files.get(key)
                if file is None:
                    size = self._geometry.file_bytes(piece.projection, piece.kind)
                    name = layout.file_name(piece.projection, expert, piece.kind, size)
                    file = files[key] = _File(self._part_fds[piece.part], name, size)
                    open_files.callback(file.close)
                file.append(piece)
                written += piece.data.nbytes
            for (part, projection, kind), file in files.items():
                self._digests[self._slot(part, expert, projection, kind)] = file.finish()
        return written

    def _slot(self, part: int, expert: int, projection: Projection, kind: Kind) -> int:
        return (part * self._geometry.experts + expert) * len(_FILES) + _PLACES[projection, kind]

    def stop(self) -> None:
        """Make every worker end at its next piece."""
        self._stop.set()

    def close(self) -> tuple[bytes, ...]:
        """Sync the folders; the digests of all files in the order of ``layout.layer_paths``."""
        digests = tuple(digest for digest in self._digests if digest is not None)
        if len(digests) != len(self._digests):
            raise IoFailed(
                f"layer {self.layer} has {len(self._digests) - len(digests)} files that nobody wrote"
            )
        for fd in (*self._part_fds, self._layer_fd):
            sync_dir(fd)
        self.release()
        return digests

    def release(self) -> None:
        """Close the folders; a second call does nothing."""
        self._stack.close()


class _File:
    """A reserved file that is being filled from front to back."""

    def __init__(self, part_fd: int, name: str, size: int) -> None:
        self._part_fd = part_fd
        self._name = name
        self._size = size
        self._offset = 0
        self._hash = hashlib.sha256()
        try:
            self._fd = os.open(name, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=part_fd)
        except OSError as exc:
            raise self._failed(exc, "open") from exc

    def append(self, piece: Piece) -> None:
        if piece.offset != self._offset or piece.offset + piece.data.nbytes > self._size:
            raise IoFailed(
                f"{self._name}: a piece at {piece.offset} where {self._offset} of {self._size} are there"
            )
        try:
            write_all(self._fd, piece.data, self._offset)
        except OSError as exc:
            raise self._failed(exc, "write") from exc
        self._hash.update(piece.data)
        self._offset += piece.data.nbytes

    def finish(self) -> bytes:
        """The digest, once the file is whole and durable."""
        if self._offset != self._size:
            raise IoFailed(f"{self._name}: {self._offset} of {self._size} bytes were written")
        try:
            os.fsync(self._fd)
        except OSError as exc:
            raise self._failed(exc, "sync") from exc
        return self._hash.digest()

    def _failed(self, exc: OSError, what: str) -> HwctlError:
        return from_os_error(exc, f"cannot {what} {self._name}", shown_path(self._name, self._part_fd))

    def close(self) -> None:
        os.close(self._fd)
