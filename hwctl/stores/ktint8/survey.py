"""One look at a base: every entry as an Artifact, from names, markers and documents, never from payload.

Owns what ``inspect`` shows of this family: state, sizes, geometry, producer and whether it lives, lock
holders. No lock is taken and nothing is opened for writing. One pass over /proc/locks serves all entries.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from hwctl.errors import Finding, HwctlError, from_os_error
from hwctl.fs.lock_table import LockTable
from hwctl.fs.paths import kind_of, opened_dir
from hwctl.fs.space import Usage, usage
from hwctl.fs.walk import allocated, inode_of
from hwctl.stores import note
from hwctl.stores.base import Artifact, Family, Holders, State
from hwctl.stores.ktint8 import layout, roots
from hwctl.stores.ktint8.documents import ReadLease, read_lease
from hwctl.stores.ktint8.finished import judge_documents
from hwctl.stores.ktint8.layers import LayerState
from hwctl.stores.ktint8.manifest import Manifest
from hwctl.stores.ktint8.producer import Producer, describe
from hwctl.stores.ktint8.roots import Kind, Root
from hwctl.weights.amx import Geometry


class Survey:
    """Looks at entries of one base; facts of /proc are as of its making."""

    def __init__(self, base: Path, *, sizes: bool = True) -> None:
        """Without ``sizes`` staging trees are not walked: one may hold 180,000 files."""
        self._sizes = sizes
        self._base = base
        self._locks = LockTable.read()

    def entries(self) -> Iterator[Artifact]:
        """Every entry, sorted by key; what vanishes meanwhile is passed over."""
        try:
            found = list(roots.list_base(self._base))
        except OSError as exc:
            raise from_os_error(exc, f"cannot list {self._base}", self._base) from exc
        for root in found:
            artifact = self.entry(root)
            if artifact is not None:
                yield artifact

    def entry(self, root: Root, known: Artifact | None = None) -> Artifact | None:
        """One entry as it is now, None when nothing stands at its path.

        The sizes of a staging tree that is ``known`` already are taken over: whoever looks again under the
        lock asks whether it is still the same.
        """
        path = root.path(self._base)
        try:
            st = os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as exc:  # one that cannot be looked at hides no other (INS-03)
            why = f"{exc.strerror}"
            return Artifact(Family.KTINT8, self._base, root.key, path, State.UNREADABLE, reason=why)
        if root.kind is Kind.FOREIGN:
            return self._artifact(
                root, st, State.FOREIGN, reason="its name is none that hwctl or kt-kernel gives"
            )
        if not stat.S_ISDIR(st.st_mode):
            why = f"it is a {kind_of(st.st_mode)}, not a directory"
            return self._artifact(root, st, State.FOREIGN, reason=why)
        try:
            return self._tree(root, path, st, known)
        except FileNotFoundError:
            return None
        except (HwctlError, OSError) as exc:
            why = exc.message if isinstance(exc, HwctlError) else f"{exc.strerror}"
            return self._artifact(root, st, State.UNREADABLE, reason=why)

    def _tree(self, root: Root, path: Path, st: os.stat_result, known: Artifact | None) -> Artifact:
        with opened_dir(path) as root_fd:
            used = self._usage(root, root_fd, st, known)
            if root.kind is Kind.STAGING:
                return self._staging(root, root_fd, st, used)
            if root.kind is Kind.QUARANTINED:
                said = note.read(root_fd)
                return self._artifact(
                    root,
                    st,
                    State.QUARANTINED,
                    used,
                    created=said.time_ns,
                    reason=said.reason,
                    kind=root.kind.value,
                )
            return self._finished(root, root_fd, st, used)

    def _usage(self, root: Root, root_fd: int, st: os.stat_result, known: Artifact | None) -> Usage:
        if root.kind is Kind.STAGING:
            if known is not None and known.inode == inode_of(st):
                return Usage(known.bytes, known.allocated, known.files, 0, known.last_used or 0)
            if not self._sizes:
                return Usage(0, 0, 0, 0, 0)
        return usage(root_fd, ".")

    def _staging(self, root: Root, root_fd: int, st: os.stat_result, used: Usage) -> Artifact:
        read = read_lease(root_fd, root.key)
        names = os.listdir(root_fd)
        facts: dict[str, object] = {"layers": {"staged": _count(names, partial=False)}}
        if partial := _count(names, partial=True):
            facts["layers"] = {"staged": _count(names, partial=False), "unfinished": partial}
        reason = None if read.lease is not None else _lease_fault(read)
        if read.lease is not None:
            who = Producer(read.lease.producer_pid, read.written_ns, read.lease.producer)
            facts["producer"] = describe(who)
            if read.lease.progress is not None:
                facts |= _shape(read.lease.progress.geometry)
        return self._artifact(
            root,
            st,
            State.STAGING,
            used,
            created=read.written_ns or None,
            reason=reason,
            kind=root.kind.value,
            **facts,
        )

    def _finished(self, root: Root, root_fd: int, st: os.stat_result, used: Usage) -> Artifact:
        found = judge_documents(root_fd, root, half_consumed=True)
        read, manifest, findings = found.read, found.manifest, found.findings
        state = _state(manifest, findings)
        reason = findings[0].message if findings else None
        if manifest is None:
            return self._artifact(root, st, state, used, reason=reason, kind=root.kind.value)
        facts = _shape(manifest.geometry) | {"schema": int(manifest.schema), "layers": _layers(manifest)}
        if manifest.producer_pid:
            facts["producer"] = describe(Producer(manifest.producer_pid, read.written_ns, manifest.producer))
        if manifest.source is not None:
            facts["source"] = manifest.source
        created = manifest.created_ns or read.written_ns
        return self._artifact(
            root, st, state, used, created=created, reason=reason, kind=root.kind.value, **facts
        )

    def _artifact(
        self,
        root: Root,
        st: os.stat_result,
        state: State,
        used: Usage | None = None,
        *,
        created: int | None = None,
        reason: str | None = None,
        **detail: object,
    ) -> Artifact:
        used = used or Usage(st.st_size if stat.S_ISREG(st.st_mode) else 0, allocated(st), 0, 0, 0)
        return Artifact(
            family=Family.KTINT8,
            store=self._base,
            key=root.key,
            path=root.path(self._base),
            state=state,
            bytes=used.bytes,
            allocated=used.allocated,
            files=used.files,
            created=created,
            # mtime: a move to quarantine and back changes the ctime, and is no use (EVI-01).
            last_used=used.written_ns or st.st_mtime_ns,
            leases=Holders.of(self._locks.entries(inode_of(st))),
            inode=inode_of(st),
            owner_uid=st.st_uid,
            reason=reason,
            detail=detail,
        )


def _state(manifest: Manifest | None, findings: tuple[Finding, ...]) -> State:
    if manifest is not None and manifest.half_consumed:
        return State.CONSUMING
    if not findings:
        return State.READY
    return State.INCOMPLETE if findings[0].code == "no-manifest" else State.DAMAGED


def _lease_fault(read: ReadLease) -> str:
    return read.findings[0].message if read.findings else "it has no lease"


def _count(names: list[str], *, partial: bool) -> int:
    parse = layout.parse_partial_layer_dir if partial else layout.parse_layer_dir
    return sum(parse(name) is not None for name in names)


def _shape(geometry: Geometry) -> dict[str, object]:
    return {
        "parts": geometry.parts,
        "experts": geometry.experts,
        "hidden": geometry.hidden,
        "intermediate": geometry.intermediate,
    }


def _layers(manifest: Manifest) -> dict[str, object]:
    counts = {state.value: 0 for state in LayerState}
    for layer in manifest.layers:
        counts[layer.state] += 1
    return {"indices": list(manifest.indices), **counts}
