"""A finished tree as the source of another one: its files read once more, checked on their way.

Owns making a persistent store from a ready root. The tree is held shared meanwhile, so that nobody consumes
it, and every byte that is handed on was looked at: content rules here, digests by whoever writes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from hwctl.errors import Finding, NotFound, from_os_error
from hwctl.fs.deadline import Deadline
from hwctl.fs.digest import ShortRead
from hwctl.fs.lock_table import Mode
from hwctl.fs.paths import open_regular, opened_dir
from hwctl.stores.ktint8 import layout, roots
from hwctl.stores.ktint8.finished import judge_documents, require_sound, unsound
from hwctl.stores.ktint8.manifest import Manifest
from hwctl.stores.ktint8.root_lock import GONE, LockedRoot, open_root
from hwctl.stores.ktint8.roots import Kind, Root
from hwctl.stores.ktint8.tree import judge_root
from hwctl.stores.ktint8.workbench import Workbench
from hwctl.weights.amx import Kind as FileKind
from hwctl.weights.amx import Piece, Projection
from hwctl.weights.amx_content import STRETCH_BYTES
from hwctl.weights.torch_here import torch_loads


@contextmanager
def opened_source(path: Path, wait: Deadline) -> Iterator[TreeSource]:
    """A ready or persistent tree, held shared and found sound in all but its bytes.

    Raises NotFound, Busy, Unsupported, and Damaged with every finding.
    """
    found = roots.locate(path)
    root = None if found is None else found[1]
    if root is None or root.kind not in (Kind.EPHEMERAL, Kind.PERSISTENT):
        raise NotFound("is no ready or persistent kt-int8 tree", path=path)
    with open_root(path, Mode.SHARED, wait) as opened:
        yield _sound(opened, root)


def _sound(opened: LockedRoot, root: Root) -> TreeSource:
    try:
        st = os.fstat(opened.fd)
        faults = judge_root(st, st.st_uid if root.kind is Kind.EPHEMERAL else None)
        found = judge_documents(opened.fd, root)
        manifest = require_sound(opened.fd, opened.path, found, faults)
    except OSError as exc:
        raise from_os_error(exc, "cannot open it", opened.path) from exc
    return TreeSource(opened.path, opened.fd, manifest, f"tree:{found.read.sha256}")


class TreeSource:
    """Gives out the files of a tree as pieces, as a conversion would. Safe for several threads.

    ``identity`` names the tree by its manifest.
    """

    def __init__(self, path: Path, root_fd: int, manifest: Manifest, identity: str) -> None:
        self.path = path
        self.manifest = manifest
        self.identity = identity
        self._root_fd = root_fd
        self._bench = Workbench()
        self._rules = torch_loads()

    def matrix(self, layer: int, expert: int, projection: Projection) -> Iterator[Piece]:
        """Every piece of both files of a matrix in every part.

        Raises Damaged when its bytes break a content rule, NotFound when somebody who takes no lock has
        begun to consume it, IoFailed.
        """
        folder = layout.layer_dir(layer)
        try:
            with opened_dir(folder, dir_fd=self._root_fd) as layer_fd:
                for part in range(self.manifest.geometry.parts):
                    with opened_dir(layout.part_dir(part), dir_fd=layer_fd) as part_fd:
                        yield from self._pair(
                            part_fd, f"{folder}/{layout.part_dir(part)}", part, expert, projection
                        )
        except FileNotFoundError as exc:
            raise NotFound(GONE, path=self.path) from exc
        except OSError as exc:
            raise from_os_error(exc, f"cannot read layer {layer}", self.path) from exc

    def _pair(
        self, part_fd: int, folder: str, part: int, expert: int, projection: Projection
    ) -> Iterator[Piece]:
        geometry = self.manifest.geometry
        rows, columns = geometry.shape(projection)
        check = self._bench.check() if self._rules else None
        stretch = check.start(rows, columns) if check else STRETCH_BYTES
        found: tuple[Finding, ...] = ()
        for kind in FileKind:
            size = geometry.file_bytes(projection, kind)
            name = layout.file_name(projection, expert, kind, size)
            path = f"{folder}/{name}"
            for offset, data in self._stretches(part_fd, name, size, min(stretch, size)):
                if check and kind is FileKind.QUANT:
                    check.feed(data)
                elif check:
                    found = check.finish(data)
                yield Piece(part, projection, kind, offset, data)
        if found:
            raise unsound(self.path, [replace(finding, file=path) for finding in found])

    def _stretches(
        self, part_fd: int, name: str, size: int, stretch: int
    ) -> Iterator[tuple[int, memoryview]]:
        """The bytes of a file in a buffer that is used again; a scale file comes in one stretch."""
        try:
            fd, _st = open_regular(name, dir_fd=part_fd)
            try:
                for offset in range(0, size, stretch):
                    data = self._bench.buffer(stretch)[: min(stretch, size - offset)]
                    filled = 0
                    while filled < len(data):
                        count = os.preadv(fd, [data[filled:]], offset + filled)
                        if count == 0:
                            raise ShortRead(offset + filled, size)
                        filled += count
                    yield offset, data
            finally:
                os.close(fd)
        except FileNotFoundError:
            raise  # consumed meanwhile, as a whole layer may be
        except OSError as exc:
            raise from_os_error(exc, f"cannot read {name}", self.path) from exc

    def require_digests(self, layer: int, digests: tuple[bytes, ...]) -> None:
        """Raise Damaged unless the files that were read have the digests the manifest knows."""
        record = next(record for record in self.manifest.layers if record.index == layer)
        findings = record.wrong_digests(self.manifest.geometry, dict(enumerate(digests)))
        if findings:
            raise unsound(self.path, findings)
