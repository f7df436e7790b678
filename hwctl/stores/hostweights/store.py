"""A host weight store behind the Store protocol: each step a few lines over the modules that know how.

Owns wiring only: who may act, which lock an entry has, and errors as the verbs expect them. How entries
look is ``survey``, soundness ``checking``, death ``staleness``, removal and quarantine ``removal``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from hwctl.errors import Finding, IoFailed, NotFound, Refused, Unsupported, from_os_error
from hwctl.fs.deadline import Deadline
from hwctl.fs.lock_table import Mode
from hwctl.fs.locks import acquire, acquire_dir
from hwctl.fs.openfiles import RecentOpenFiles, User
from hwctl.fs.paths import opened_dir, read_document
from hwctl.fs.tree_users import users_of_tree
from hwctl.stores.base import (
    Artifact,
    CheckOptions,
    Family,
    Lease,
    Level,
    Removed,
    Report,
    Size,
    Staleness,
    StalePolicy,
)
from hwctl.stores.hostweights import capacity, checking, deny, leases, moves, notes, removal
from hwctl.stores.hostweights import staleness as deaths
from hwctl.stores.hostweights.glance import looks_sound, model_of
from hwctl.stores.hostweights.judging import Trust, judge_uuid
from hwctl.stores.hostweights.layout import (
    ARTIFACTS,
    DENY,
    INIT_LOCK,
    LOCK_MODE,
    LOCKS,
    MANIFEST,
    METADATA_LIMIT,
    READY,
    Place,
    deny_name,
)
from hwctl.stores.hostweights.lookup import examine_key
from hwctl.stores.hostweights.places import Spot, permission_denied, spot_in
from hwctl.stores.hostweights.store_root import StoreRoot, look_at_root
from hwctl.stores.hostweights.survey import Survey

_MARKED_BY = "operator"
"""The stage in deny markers that a person asked for."""


def open_store(root: Path) -> HostWeightStore:
    """The store at a resolved root, as it lies there: nothing is created or locked."""
    return HostWeightStore(look_at_root(root))


class HostWeightStore:
    """The artifacts of one root. Readers judge them against its owner's uid, writers must be that uid."""

    def __init__(self, root: StoreRoot) -> None:
        self._root = root
        self._open_files = RecentOpenFiles()

    @property
    def family(self) -> Family:
        return Family.HOSTWEIGHTS

    @property
    def root(self) -> Path:
        return self._root.path

    @property
    def owner_uid(self) -> int:
        return self._root.owner_uid

    @property
    def faults(self) -> tuple[Finding, ...]:
        domain = self._root.domain
        return (*self._root.problems, *judge_uuid(None if domain is None else domain.domain_uuid))

    @property
    def frozen(self) -> str | None:
        later = self._root.later_schema
        return None if later is None else later.message

    def actor(self, artifact: Artifact) -> int:
        """The root's owner, whoever an entry belongs to: a store has one owner."""
        del artifact
        return self._root.owner_uid

    def size(self) -> Size:
        with _told(self._root.path):
            used = capacity.store_usage(self._root)
        return Size(used.bytes, used.allocated)

    def budget(self) -> int | None:
        limits = self._root.capacity
        return None if limits is None else limits.max_store_bytes

    def documents(self, artifact: Artifact) -> Mapping[str, bytes]:
        """Manifest and marker, the deny marker where there is one, and the operator's note."""
        found: dict[str, bytes] = {}
        with suppress(OSError), opened_dir(artifact.path) as fd:
            for name in (MANIFEST, READY):
                with suppress(OSError):
                    found[name] = read_document(name, dir_fd=fd, limit=METADATA_LIMIT).data
        with suppress(OSError), self._root.folder(DENY) as fd:
            name = deny_name(artifact.key)
            found[f"{DENY}/{name}"] = read_document(name, dir_fd=fd, limit=METADATA_LIMIT).data
        note = notes.read_note(self._root, artifact.path.name)
        if note is not None:
            found["note"] = note
        return found

    def model(self, artifact: Artifact) -> str | None:
        return None if self._spot(artifact).key is None else model_of(artifact.path)

    def fault(self, artifact: Artifact) -> str | None:
        key = self._spot(artifact).key
        if key is None or looks_sound(artifact.path, Trust(self._root.trusted_uid)):
            return None
        with _told(artifact.path):
            seen = examine_key(self._root, key, Level.SIZE, CheckOptions())
        if seen is None or not seen.events:
            return None
        if not seen.findings:
            raise seen.unknown[0]
        return seen.findings[0].message

    def scan(self, *, sizes: bool = True) -> Iterator[Artifact]:
        del sizes  # a handful of files an entry
        return Survey(self._root).entries()

    def look(self, artifact: Artifact, *, sizes: bool = True) -> Artifact | None:
        del sizes
        return Survey(self._root).entry(self._spot(artifact))

    def check(self, artifact: Artifact, level: Level, options: CheckOptions) -> Report:
        with _told(artifact.path):
            return checking.check(self._root, self._spot(artifact), artifact, level, options)

    def lease(self, artifact: Artifact, mode: Mode, deadline: Deadline, *, create: bool = False) -> Lease:
        """SHARED is the artifact lock of the key and counts as use, and beside it a lock on the artifact's
        folder; EXCLUSIVE is build lock and artifact lock.

        Temporaries of the domain documents have the initialisation lock, other temporaries none.
        """
        spot = self._spot(artifact)
        if mode is Mode.EXCLUSIVE:
            self._require_ours(artifact)
        if spot.place is Place.ROOT:
            return self._lease_documents(mode, deadline)
        if spot.key is None:
            return Lease()
        if mode is Mode.EXCLUSIVE:
            taken = leases.exclusive(self._root, spot.key, deadline)
            self._open_files.forget()
            return taken
        held = leases.shared(self._root, spot.key, deadline, create=create)
        if held is None:
            return Lease()
        try:
            leases.touch(held)
            folder = leases.on_folder(self._root, spot.key) if spot.place is Place.ARTIFACT else None
        except BaseException:
            held.release()
            raise
        return Lease((held,) if folder is None else (held, folder))

    def _lease_documents(self, mode: Mode, deadline: Deadline) -> Lease:
        with _told(self._root.path), self._root.folder(LOCKS) as folder:
            exclusive = mode is Mode.EXCLUSIVE
            held = acquire(INIT_LOCK, mode, deadline, dir_fd=folder, create=exclusive, file_mode=LOCK_MODE)
        return Lease() if held is None else Lease((held,))

    def stale(self, artifact: Artifact, policy: StalePolicy) -> Staleness:
        with _told(artifact.path):
            return deaths.judge(self._root, self._spot(artifact), artifact, policy, self._open_files)

    def deny(self, artifact: Artifact, reason: str) -> bool:
        """Write a deny marker, or set the sticky bit where there is no room for one."""
        spot = self._spot(artifact)
        if spot.place is not Place.ARTIFACT or spot.key is None:
            return False
        self._require_ours(artifact)
        with _told(artifact.path):
            try:
                deny.write_marker(self._root, spot.key, _MARKED_BY, reason, reason)
            except OSError:
                with self._root.folder(ARTIFACTS) as folder:
                    moves.mark_invalid(folder, spot.key)
        return True

    def mark_used(self, artifact: Artifact) -> None:
        """Stamp the lock file; another user's store keeps its clock to itself."""
        spot = self._spot(artifact)
        if spot.key is not None:
            with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
                os.utime(leases.lock_path(self._root, spot.key), follow_symlinks=False)

    def set_aside(self, artifact: Artifact, reason: str) -> Artifact:
        self._require_ours(artifact)
        with _told(artifact.path):
            return self._entry(removal.set_aside(self._root, self._spot(artifact), artifact, reason))

    def restore(self, artifact: Artifact) -> Artifact:
        """Soundness was checked by the caller, with ``restoring``."""
        self._require_ours(artifact)
        with _told(artifact.path):
            return self._entry(removal.restore(self._root, self._spot(artifact), artifact))

    def users(self, artifact: Artifact, *, certain: bool = False) -> tuple[User, ...]:
        """Whoever uses an artifact leases it; but where the lock file has gone, so may have the lease, and
        the artifact's files tell (EVI-08)."""
        spot = self._spot(artifact)
        if spot.place is not Place.ARTIFACT or spot.key is None or leases.is_known(self._root, spot.key):
            return ()
        with _told(artifact.path):
            return users_of_tree(artifact.path, self._root.owner_uid, self._open_files, certain=certain)

    def removable(self, artifact: Artifact) -> str | None:
        """All that lies in an artifact's folder is the artifact's, however damaged it is."""
        del artifact
        return self.frozen

    def remove(self, artifact: Artifact) -> Removed:
        self._require_ours(artifact)
        self._open_files.forget()
        with _told(artifact.path):
            return removal.remove(self._root, self._spot(artifact), artifact, self._open_files)

    @contextmanager
    def sweep(self, deadline: Deadline) -> Iterator[None]:
        """The lock on the root itself, which nobody else takes: two evictions at once would each make the
        room that one needs. No file is made for it: an eviction may be what gives inodes back."""
        with acquire_dir(self._root.path, Mode.EXCLUSIVE, deadline):
            yield

    def _spot(self, artifact: Artifact) -> Spot:
        """Where an entry lies; raises NotFound for a path that is in no folder of this store."""
        folder = artifact.path.parent
        if folder == self._root.path:
            return Spot(Place.ROOT, artifact.path.name, None)
        for place in (Place.ARTIFACT, Place.STAGING, Place.QUARANTINE, Place.DENY):
            if folder == self._root.path / place.value:
                return spot_in(place, artifact.path.name)
        raise NotFound(f"{artifact.path} is no entry of {self._root.path}", path=artifact.path)

    def _entry(self, spot: Spot) -> Artifact:
        found = Survey(self._root).entry(spot)
        if found is None:
            raise NotFound("vanished while it was moved", path=spot.path(self._root.path))
        return found

    def _require_ours(self, artifact: Artifact) -> None:
        """Nothing is changed in a store whose schema may have rules that are not known here, nor in another
        user's, where a file that root leaves is one the store's own programs cannot handle."""
        if self.frozen is not None:
            raise Unsupported(self.frozen, path=artifact.path)
        if os.geteuid() != self._root.owner_uid:
            raise Refused(
                f"{self._root.path} belongs to uid {self._root.owner_uid}, the caller is uid {os.geteuid()}",
                path=artifact.path,
                details={"owner_uid": self._root.owner_uid},
            )


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """OSErrors as what they mean to the verbs; a name that is gone is NotFound, not a failure."""
    try:
        yield
    except FileNotFoundError as exc:
        raise NotFound("is gone", path=exc.filename or path) from exc
    except PermissionError as exc:
        # Of a marker or lock file it may be another folder of the store that is closed.
        barred = Path(exc.filename) if os.path.isabs(exc.filename or "") else path
        raise IoFailed(f"cannot look at {barred}: {permission_denied(barred)}", path=barred) from exc
    except OSError as exc:
        raise from_os_error(exc, f"cannot work on {path}", path) from exc
