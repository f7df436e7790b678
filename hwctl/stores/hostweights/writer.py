"""Writing the payloads of one artifact into its staging directory.

Owns which files there are, their capacity, and the entries that the manifest will hold. Where staging lies
and how it becomes an artifact is ``publication``'s work.

A producer is a callable that receives the writer and writes every declared tensor:

    def produce(writer: ArtifactWriter) -> None:
        for file_name in writer.file_names:
            with writer.open(file_name, ordered=True) as payload:
                for name in payload.plan.extents:  # name order, which is the order in the file
                    payload.write_tensor(name, raw_bytes(name))
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from hwctl.fs.mounts import MEMORY, mount_of_fd
from hwctl.fs.paths import open_regular
from hwctl.fs.space import reserve
from hwctl.stores.base import Advance, silent
from hwctl.stores.hostweights.lanes import Lanes
from hwctl.stores.hostweights.payload_file import PayloadFile
from hwctl.stores.hostweights.records import FileEntry, TensorEntry, contiguous_stride
from hwctl.stores.hostweights.tensors import Extent, PayloadPlan, refusal

Producer = Callable[["ArtifactWriter"], None]

Free = Callable[[int], None]
"""Whether so many bytes more may be written now; raises NoRoom."""

_NEW_PAYLOAD = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class ArtifactWriter:
    """Writes the planned payload files, each once. Memory is bounded by what the producer hands over."""

    def __init__(
        self,
        dir_fd: int,
        plans: Sequence[PayloadPlan],
        free: Free,
        *,
        jobs: int = 1,
        advance: Advance = silent,
    ) -> None:
        """``dir_fd`` is the staging directory; ``advance`` is told of bytes as they are handed over, by
        whoever hands them over. ``jobs`` is how many cores the digests may take."""
        self._dir_fd = dir_fd
        self._plans = {plan.file_name: plan for plan in plans}
        self._free = free
        self._advance = advance
        self._lanes = Lanes(jobs)
        self._in_memory = mount_of_fd(dir_fd).fs_type in MEMORY
        self._open: dict[str, PayloadFile] = {}
        self._closed: dict[str, PayloadFile] = {}

    @property
    def file_names(self) -> tuple[str, ...]:
        """All payload files to write, sorted."""
        return tuple(self._plans)

    @property
    def beside(self) -> int:
        """How many files it can write beside each other, each from one thread of the producer's."""
        return self._lanes.beside

    def reserve(self) -> None:
        """Create every payload file with its full size, so that others who measure the store count it."""
        for plan in self._plans.values():
            fd = os.open(plan.file_name, _NEW_PAYLOAD, 0o600, dir_fd=self._dir_fd)
            try:
                os.ftruncate(fd, plan.size)
            finally:
                os.close(fd)

    def open(self, file_name: str, *, ordered: bool = False) -> PayloadFile:
        """Begin a payload file. NoRoom when a limit or the file system says no, Usage for a second time.

        Several may be open at a time, and be written from several threads.
        """
        plan = self._plans.get(file_name)
        if plan is None or file_name in self._open or file_name in self._closed:
            raise refusal(f"payload {file_name!r} was not declared, or was opened before")
        self._free(plan.size)
        fd, _ = open_regular(file_name, dir_fd=self._dir_fd, flags=os.O_RDWR)
        try:
            # On a tmpfs reserving takes every page at once, while nothing else can go on; payloads are only
            # ever written by write(), which answers ENOSPC where a store through a map would die (PUB-03).
            if not self._in_memory:
                reserve(fd, plan.size)
            payload = PayloadFile(
                plan,
                self._dir_fd,
                fd,
                self._lanes,
                ordered=ordered,
                advance=self._advance,
                closed=self._note_closed,
            )
        except BaseException:
            os.close(fd)
            raise
        self._open[file_name] = payload
        return payload

    def _note_closed(self, payload: PayloadFile) -> None:
        name = payload.plan.file_name
        self._closed[name] = self._open.pop(name)

    def finish(self) -> tuple[list[TensorEntry], list[FileEntry]]:
        """Wait until every payload is on the disk and hashed; the entries for the manifest.

        Usage when a declared file was not written.
        """
        missing = sorted(self._plans.keys() - self._closed.keys())
        if missing:
            raise refusal(f"{len(missing)} payload files were not written and closed, first {missing[0]!r}")
        tensors: list[TensorEntry] = []
        files: list[FileEntry] = []
        for payload in self._closed.values():
            payload.wait_synced()
        for name, payload in self._closed.items():
            digests = payload.digests()
            files.append(FileEntry(name, digests.size, digests.file))
            for extent in payload.plan.extents.values():
                tensors.append(entry_of(extent, digests.tensors[extent.spec.name]))
        return tensors, files

    def close(self) -> None:
        """Stop the threads and close what is open; staging itself is left to its owner."""
        self._lanes.stop()
        for payload in (*self._open.values(), *self._closed.values()):
            payload.abandon()
        self._open.clear()


def entry_of(extent: Extent, sha256: str) -> TensorEntry:
    """The manifest's entry for a tensor that lies where it was planned."""
    spec = extent.spec
    return TensorEntry(
        name=spec.name,
        kind=spec.kind,
        role=spec.role,
        file_name=spec.file_name,
        storage_key=spec.name,
        shape=spec.shape,
        dtype=spec.dtype,
        stride=contiguous_stride(spec.shape),
        nbytes=extent.size,
        sha256=sha256,
    )
