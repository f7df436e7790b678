"""Inspect: what is there, seen without reading a payload, taking a lock or changing anything.

Damaged entries are rows with a reason, and one that cannot be looked at does not keep the others from being
listed (INS-03). Which words and colours a row gets is ``cli``'s business.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path

from hwctl.core.freeable import names_of
from hwctl.core.hazards import hazards
from hwctl.core.order import Sort
from hwctl.errors import Finding, HwctlError, from_os_error
from hwctl.fs import numa, space
from hwctl.fs.mounts import Mount, mount_of, storage_class
from hwctl.fs.paths import NotRegular, open_regular
from hwctl.stores.base import AT_REST, Artifact, Death, Size, Staleness, StalePolicy, State, Store
from hwctl.weights.safetensors_file import Header, read_header
from hwctl.weights.tensor_layout import TensorEntry

_MAY_BE_STALE = frozenset({State.STAGING, State.TEMPORARY, State.CONSUMING, State.ORPHAN})


@dataclass(frozen=True, slots=True)
class Row:
    """One entry; ``staleness`` where it could be the leftover of a dead producer, None elsewhere.

    ``model`` is what the entry was made of, once ``with_models`` has asked, where its documents tell.
    """

    artifact: Artifact
    staleness: Staleness | None = None
    model: str | None = None

    @property
    def stale(self) -> bool:
        return self.staleness is not None and self.staleness.death is Death.PROVEN


@dataclass(frozen=True, slots=True)
class Freeable:
    """What could be freed at most, by the call that frees it; bytes as the disk gave them."""

    reclaim_stale: int = 0
    evict: int = 0
    evict_quarantined: int = 0

    @property
    def total(self) -> int:
        return self.reclaim_stale + self.evict + self.evict_quarantined

    def __add__(self, other: Freeable) -> Freeable:
        return Freeable(
            self.reclaim_stale + other.reclaim_stale,
            self.evict + other.evict,
            self.evict_quarantined + other.evict_quarantined,
        )


@dataclass(frozen=True, slots=True)
class View:
    """A store as it is now. Sizes in bytes; ``size`` and ``budget`` as the family counts them."""

    store: Store
    rows: tuple[Row, ...]
    size: Size
    budget: int | None
    room: space.Room
    mount: Mount
    freeable: Freeable
    warnings: tuple[str, ...] = ()

    @property
    def states(self) -> Counter[State]:
        return Counter(row.artifact.state for row in self.rows)


@dataclass(frozen=True, slots=True)
class Selection:
    """Which rows to show, and in which order. Empty filters let everything through."""

    states: frozenset[State] = frozenset()
    match: tuple[str, ...] = ()
    sort: Sort = Sort.KEY

    def rows(self, rows: Sequence[Row]) -> list[Row]:
        """Largest first for a size, longest unused first for a use, else as sorted by key."""
        kept = [row for row in rows if self._shows(row.artifact)]
        kept.sort(key=lambda row: (row.artifact.key, str(row.artifact.path)))
        if self.sort is Sort.SIZE:
            kept.sort(key=lambda row: -row.artifact.bytes)
        elif self.sort is Sort.USED:
            kept.sort(key=lambda row: row.artifact.last_used or row.artifact.created or 0)
        return kept

    def _shows(self, artifact: Artifact) -> bool:
        if self.states and artifact.state not in self.states:
            return False
        return not self.match or any(fnmatchcase(artifact.key, glob) for glob in self.match)


@dataclass(frozen=True, slots=True)
class FileView:
    """A file outside of any store: its header where it is a sound safetensors file, else findings.

    ``header`` and ``findings`` can both be there: what is odd but no hindrance, such as an unknown dtype.
    """

    path: Path
    stat: os.stat_result
    header: Header | None
    findings: tuple[Finding, ...] = field(default=())

    def tensors(self, selection: Selection) -> list[TensorEntry]:
        """The tensors to show: in the order of their data, or as sorted."""
        if self.header is None:
            return []
        match = selection.match
        kept = [
            tensor
            for tensor in self.header.tensors
            if not match or any(fnmatchcase(tensor.name, glob) for glob in match)
        ]
        if selection.sort is Sort.SIZE:
            kept.sort(key=lambda tensor: -tensor.nbytes)
        return kept


def view(store: Store) -> View:
    """A whole store. Raises HwctlError when the root itself cannot be looked at."""
    rows = tuple(row_of(store, artifact) for artifact in store.scan())
    warnings = [f"no reader opens this store: {fault.message}" for fault in store.faults]
    warnings += hazards(store.root, store.owner_uid)
    freeable = sum((_freeable(store, row) for row in rows), Freeable())
    try:
        size, budget = store.size(), store.budget()
    except HwctlError as exc:
        # A folder that only its owner may enter: the rows say which; the sum is what was seen.
        seen = [row.artifact for row in rows]
        size = Size(sum(one.bytes for one in seen), sum(one.allocated for one in seen))
        budget = None
        warnings.append(f"the size of {store.root} is incomplete: {exc.message}")
    return View(
        store, rows, size, budget, space.room(store.root), mount_of(store.root), freeable, tuple(warnings)
    )


def with_models(store: Store, rows: Iterable[Row]) -> list[Row]:
    """The rows that are to be shown, with their models: documents of rows that are not are left alone."""
    return [replace(row, model=store.model(row.artifact)) for row in rows]


def row_of(store: Store, artifact: Artifact) -> Row:
    """The row of one entry."""
    if artifact.state is State.READY:
        artifact = _looked_at(store, artifact)
    if artifact.state not in _MAY_BE_STALE:
        return Row(artifact)
    try:
        return Row(artifact, store.stale(artifact, StalePolicy(looking=True)))
    except HwctlError as exc:
        return Row(artifact, Staleness(Death.UNPROVEN, (exc.message,)))


def _looked_at(store: Store, artifact: Artifact) -> Artifact:
    """What its place and markers call ready, with what else shows without reading it."""
    try:
        fault = store.fault(artifact)
    except HwctlError as exc:
        return replace(artifact, state=State.UNREADABLE, reason=exc.message)
    return artifact if fault is None else replace(artifact, state=State.DAMAGED, reason=fault)


def _freeable(store: Store, row: Row) -> Freeable:
    """Stale entries are reclaim-stale's; what evict would keep whatever it is told is nobody's."""
    artifact, leases = row.artifact, row.artifact.leases
    if row.staleness is not None:
        return Freeable(reclaim_stale=artifact.allocated) if row.stale else Freeable()
    if leases.shared or leases.exclusive:
        return Freeable()
    if artifact.state is State.QUARANTINED:
        return Freeable(evict_quarantined=artifact.allocated)
    if artifact.state in AT_REST and store.removable(artifact) is None:
        return Freeable(evict=artifact.allocated)
    return Freeable()


def pages_per_node(artifact: Artifact) -> Mapping[int, int] | None:
    """Pages by NUMA node of an artifact that lies in memory; None on disk, or where nobody can tell."""
    if storage_class(mount_of(artifact.path).fs_type) != "tmpfs":
        return None
    counts: Counter[int] = Counter()
    try:
        for path in chain.from_iterable(map(_files_below, _parts(artifact))):
            fd, st = open_regular(path)
            try:
                counts.update(numa.pages_per_node(fd, st))
            finally:
                os.close(fd)
    except OSError:
        return None
    return dict(sorted(counts.items()))


def _parts(artifact: Artifact) -> Iterator[Path]:
    paths = (artifact.path.parent / name for name in names_of(artifact))
    return (path for path in paths if os.path.lexists(path))


def _files_below(path: Path) -> Iterator[Path]:
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        yield path
        return
    for folder, _, names in os.walk(path):
        for name in names:
            file = Path(folder, name)
            if stat.S_ISREG(os.lstat(file).st_mode):
                yield file


def file_view(path: Path) -> FileView:
    """What a file outside of any store is: 8 bytes and the header are read, whatever its size (PER-04)."""
    try:
        fd, st = open_regular(path)
    except NotRegular as exc:
        raise from_os_error(exc, f"cannot inspect {path}", path) from exc
    except OSError as exc:
        raise from_os_error(exc, f"cannot open {path}", path) from exc
    try:
        found = read_header(fd, st.st_size, name=path.name, strict=False, unknown_dtypes=True)
    except OSError as exc:
        raise from_os_error(exc, f"cannot read {path}", path) from exc
    finally:
        os.close(fd)
    if isinstance(found, Header):
        return FileView(path, st, found, found.tolerated)
    return FileView(path, st, None, found)
