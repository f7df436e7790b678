"""How the entries of a store look from outside: states, sizes, times and lease holders.

No lock is taken and nothing is read but READY.json, deny markers and notes, so that an entry that is damaged,
foreign or being built is a row like any other. Whether an artifact is sound is for ``checks``.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from hwctl.errors import IoFailed, from_os_error
from hwctl.fs.lock_table import Entry, LockTable, Mode
from hwctl.fs.paths import kind_of, open_dir, stands
from hwctl.fs.space import Usage, usage
from hwctl.fs.walk import inode_of
from hwctl.stores.base import Artifact, Family, Holders, State
from hwctl.stores.hostweights import deny, layout, leases, notes
from hwctl.stores.hostweights.judging import Trust
from hwctl.stores.hostweights.layout import (
    LOCKS,
    STICKY,
    Place,
    artifact_lock,
    build_lock,
)
from hwctl.stores.hostweights.look import Look, look_inside
from hwctl.stores.hostweights.places import Spot, permission_denied, spot_in
from hwctl.stores.hostweights.store_root import StoreRoot

_OWN = frozenset({layout.DOMAIN, layout.POLICY, *layout.SUBDIRECTORIES, "hwctl", "source-digests-v1"})
"""What belongs in the root: ours, and the cache of source digests that vLLM-Omni keeps there."""


_NOTHING = Usage(bytes=0, allocated=0, files=0, newest_ns=0, written_ns=0)


class Survey:
    """One look at a store. Locks are read from /proc once, so that a scan stays linear."""

    def __init__(self, root: StoreRoot) -> None:
        self._root = root
        self._locks = LockTable.read()

    def entries(self) -> Iterator[Artifact]:
        """Every entry, sorted by key. A folder that only its owner may list is a row that says so; IoFailed
        when one cannot be listed for another reason."""
        closed: list[Artifact] = []
        spots = [
            spot
            for place in (Place.ARTIFACT, Place.STAGING, Place.QUARANTINE, Place.DENY)
            for spot in self._in_folder(place, closed)
        ]
        spots += self._in_root()
        yield from closed
        spots.sort(key=lambda spot: (spot.label, spot.place.value, spot.name))
        for spot in spots:
            found = self.entry(spot)
            if found is not None:
                yield found

    def _in_folder(self, place: Place, closed: list[Artifact]) -> list[Spot]:
        folder = self._root.path / place.value
        try:
            spots = [spot_in(place, name) for name in os.listdir(folder)]
        except (FileNotFoundError, NotADirectoryError):
            return []
        except PermissionError:
            closed.append(self._closed(folder))
            return []
        except OSError as exc:
            raise from_os_error(exc, f"cannot list {folder}", folder) from exc
        if place is not Place.DENY:
            return spots
        return [spot for spot in spots if spot.key is None or not self._is_there(spot.key)]

    def _is_there(self, key: str) -> bool:
        """Whether a key has an artifact. What cannot be seen is one: its marker is no orphan then, and to
        remove it would lift a denial."""
        return stands(self._root.path / layout.ARTIFACTS / key)

    def _closed(self, folder: Path) -> Artifact:
        """One folder of the store that may not be looked into does not hide the others (INS-03)."""
        return Artifact(
            family=Family.HOSTWEIGHTS,
            store=self._root.path,
            key=folder.name,
            path=folder,
            state=State.UNREADABLE,
            owner_uid=self._root.owner_uid,
            reason=permission_denied(folder),
        )

    def _in_root(self) -> list[Spot]:
        try:
            names = os.listdir(self._root.path)
        except OSError as exc:
            raise from_os_error(exc, f"cannot list {self._root.path}", self._root.path) from exc
        return [Spot(Place.ROOT, name, None) for name in names if name not in _OWN]

    def entry(self, spot: Spot) -> Artifact | None:
        """One entry as it is now, None when it is not there."""
        path = spot.path(self._root.path)
        try:
            parent = open_dir(path.parent)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as exc:
            raise from_os_error(exc, f"cannot open {path.parent}", path.parent) from exc
        try:
            st = os.stat(spot.name, dir_fd=parent, follow_symlinks=False)
            return self._row(spot, path, parent, st)
        except FileNotFoundError:
            return None
        except OSError as exc:
            raise from_os_error(exc, f"cannot look at {path}", path) from exc
        finally:
            os.close(parent)

    def _row(self, spot: Spot, path: Path, parent: int, st: os.stat_result) -> Artifact:
        size, look = _NOTHING, Look()
        try:
            size = usage(parent, spot.name)
            look = look_inside(parent, spot, st)
            state, reason = self._judge(spot, st, look)
        except PermissionError:
            state, reason = State.UNREADABLE, permission_denied(path)
        locks = self._locks_of(spot, st)
        return Artifact(
            family=Family.HOSTWEIGHTS,
            store=self._root.path,
            key=spot.label,
            path=path,
            state=state,
            bytes=size.bytes,
            allocated=size.allocated,
            files=size.files,
            created=st.st_mtime_ns if state is State.STAGING else look.created_ns,
            last_used=self._last_used(spot, st, look, size),
            leases=locks.leases,
            inode=inode_of(st),
            owner_uid=st.st_uid,
            reason=reason,
            detail=_detail(spot, st, look, locks),
        )

    def _judge(self, spot: Spot, st: os.stat_result, look: Look) -> tuple[State, str | None]:
        if spot.place is Place.ROOT and layout.is_document_temporary(spot.name):
            return State.TEMPORARY, "an unfinished rewrite of a domain document"
        if spot.key is None:
            return State.FOREIGN, "no entry of a host weight store has such a name"
        if spot.place is Place.STAGING:
            return State.STAGING, None
        if spot.place is Place.QUARANTINE:
            return State.QUARANTINED, self._why_quarantined(spot, st)
        if spot.place is Place.DENY:
            there = self._is_there(spot.key)
            if there:
                return State.DENIED, deny.reason_of(self._root, spot.key) or "a deny marker is there"
            return State.ORPHAN, "a deny marker without an artifact"
        return self._judge_artifact(spot.key, st, look)

    def _judge_artifact(self, key: str, st: os.stat_result, look: Look) -> tuple[State, str | None]:
        if deny.is_denied(self._root, key):
            return State.DENIED, deny.reason_of(self._root, key) or "a deny marker is there"
        if not stat.S_ISDIR(st.st_mode):
            return State.DAMAGED, f"is a {kind_of(st.st_mode)}, not a directory"
        if st.st_mode & STICKY:
            return State.DENIED, "marked as invalid (sticky bit)"
        findings = Trust(self._root.trusted_uid).judge(st, None)
        if findings:
            return State.DAMAGED, findings[0].message
        return look.state, look.reason

    def _why_quarantined(self, spot: Spot, st: os.stat_result) -> str:
        parsed = layout.parse_quarantine(spot.name)
        assert parsed is not None
        if is_unfinished(st):
            return f"{parsed.reason}, the move was interrupted"
        return notes.reason_of(self._root, spot.name) or parsed.reason

    def _last_used(self, spot: Spot, st: os.stat_result, look: Look, size: Usage) -> int | None:
        """For artifacts the later of marker and lock file; elsewhere the last change of any kind."""
        if spot.place is Place.QUARANTINE:
            return st.st_ctime_ns
        if spot.place is not Place.ARTIFACT or spot.key is None:
            return size.newest_ns or None
        try:
            locked = os.lstat(self._root.path / LOCKS / artifact_lock(spot.key)).st_mtime_ns
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            locked = 0
        return max(look.ready_ns or 0, locked) or None

    def _locks_of(self, spot: Spot, st: os.stat_result) -> _Locks:
        """Who holds the locks of a key: the build lock counts where a publisher is at work. Where the
        file of the artifact lock tells nothing, the artifact's folder tells who leases it (EVI-08)."""
        if spot.key is None:
            return _Locks()
        artifact = self._entries(artifact_lock(spot.key))
        build = self._entries(build_lock(spot.key))
        shown = artifact + build if spot.place is Place.STAGING else artifact
        if spot.place is Place.ARTIFACT and self._tells_nothing(spot.key):
            shown = tuple(one for one in self._locks.entries(inode_of(st)) if one.mode is Mode.SHARED)
        return _Locks(
            Holders.of(shown),
            tuple(sorted({entry.pid for entry in build})),
        )

    def _tells_nothing(self, key: str) -> bool:
        """Of the artifact lock's file; one that cannot be looked at is one that is there."""
        try:
            return not leases.is_known(self._root, key)
        except IoFailed:
            return False

    def _entries(self, lock: str) -> tuple[Entry, ...]:
        try:
            st = os.lstat(self._root.path / LOCKS / lock)
        except OSError:
            return ()
        return self._locks.entries(inode_of(st))


@dataclass(frozen=True, slots=True)
class _Locks:
    leases: Holders = field(default_factory=Holders)
    building: tuple[int, ...] = ()


def is_unfinished(st: os.stat_result) -> bool:
    """Whether a directory's modes are those on the way of a move: 01755, or 01555 in quarantine."""
    return stat.S_ISDIR(st.st_mode) and bool(st.st_mode & STICKY)


def _detail(spot: Spot, st: os.stat_result, look: Look, locks: _Locks) -> dict[str, object]:
    """The family's own facts, JSON-ready."""
    detail: dict[str, object] = {}
    if look.publication_id is not None:
        detail["publication_id"] = look.publication_id
    if locks.building:
        detail["building_pids"] = list(locks.building)
    if spot.place is Place.STAGING and (staging := layout.parse_staging(spot.name)) is not None:
        detail["publisher_pid"] = staging.pid
    if spot.place is Place.QUARANTINE and (quarantined := layout.parse_quarantine(spot.name)) is not None:
        detail["quarantined_as"] = quarantined.reason
        detail["unfinished_move"] = is_unfinished(st)
    return detail
