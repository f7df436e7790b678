"""A finished tree as the source of another one: its files read once more, checked on their way.

Owns making a persistent store from a ready root. The tree is held shared meanwhile, so that nobody consumes
it, and every byte that is handed on was looked at: content rules here, digests by whoever writes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from hwctl.errors import Finding, NotFound, from_os_error
from hwctl.fs.digest import ShortRead
from hwctl.fs.locks import Deadline, Mode, acquire_dir
from hwctl.fs.paths import open_regular, opened_dir
from hwctl.fs.walk import inode_of
from hwctl.stores.ktint8 import layout, roots
from hwctl.stores.ktint8.checks import half_consumed, plan_of, require_known_schema, unsound
from hwctl.stores.ktint8.documents import read_manifest
from hwctl.stores.ktint8.manifest import Manifest
from hwctl.stores.ktint8.roots import Kind, Root
from hwctl.stores.ktint8.survey import matching
from hwctl.stores.ktint8.tree import judge_root, judge_tree
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
    with ExitStack() as held:
        try:
            root_fd = held.enter_context(opened_dir(path))
        except FileNotFoundError as exc:
            raise NotFound("is absent", path=path) from exc
        except OSError as exc:
            raise from_os_error(exc, "cannot open it", path) from exc
        try:
            held.enter_context(acquire_dir(root_fd, Mode.SHARED, wait))
            if inode_of(os.lstat(path)) != inode_of(os.fstat(root_fd)):
                raise NotFound("was consumed or removed meanwhile", path=path)
            tree = _sound(path, root, root_fd)
        except FileNotFoundError as exc:
            raise NotFound("was consumed or removed meanwhile", path=path) from exc
        except OSError as exc:
            raise from_os_error(exc, "cannot look into it", path) from exc
        # Outside of what is caught: what the caller does with the tree goes wrong elsewhere.
        yield tree


def _sound(path: Path, root: Root, root_fd: int) -> TreeSource:
    st = os.fstat(root_fd)
    ephemeral = root.kind is Kind.EPHEMERAL
    findings = judge_root(st, st.st_uid if ephemeral else None)
    read = read_manifest(root_fd, ephemeral=ephemeral)
    require_known_schema(read)
    manifest = read.parsed.manifest
    findings += read.parsed.findings
    if manifest is not None and ephemeral:
        findings += matching(manifest, root, st.st_uid)
    if manifest is not None and manifest.half_consumed:
        findings.append(half_consumed(manifest))
    if manifest is not None and not findings:
        findings += judge_tree(root_fd, plan_of(manifest))
    if manifest is None or findings:
        raise unsound(path, findings)
    return TreeSource(path, root_fd, manifest, f"tree:{read.sha256}")


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
            raise NotFound("was consumed or removed meanwhile", path=self.path) from exc
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
        except OSError as exc:
            raise from_os_error(exc, f"cannot read {name}", self.path) from exc

    def require_digests(self, layer: int, digests: tuple[bytes, ...]) -> None:
        """Raise Damaged unless the files that were read have the digests the manifest knows."""
        record = next(record for record in self.manifest.layers if record.index == layer)
        if not record.digests:
            return
        paths = layout.layer_paths(self.manifest.geometry, layer)
        findings = [
            Finding(
                "digest-mismatch",
                "its bytes are not those that were published",
                path,
                wanted.hex(),
                got.hex(),
            )
            for path, wanted, got in zip(paths, record.digests, digests, strict=True)
            if wanted is not None and wanted != got
        ]
        if findings:
            raise unsound(self.path, findings)
