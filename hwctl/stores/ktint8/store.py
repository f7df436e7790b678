"""A base of kt-int8 trees as a Store: the six steps, each a few lines over the modules that know how.

Owns wiring only. What is where is ``roots``, how an entry looks ``survey``, whether it is sound ``checks``,
whether it is dead ``staleness``; removal is ``deletion`` and ``fs.remove``, quarantine ``aside``.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from hwctl.errors import Finding, IoFailed, NotFound, Refused, from_os_error
from hwctl.fs.deadline import Deadline
from hwctl.fs.lock_table import Mode
from hwctl.fs.locks import acquire_dir
from hwctl.fs.openfiles import OpenFiles, RecentOpenFiles, User
from hwctl.fs.paths import opened_dir, read_document
from hwctl.fs.remove import remove_tree
from hwctl.fs.tree_users import users_of_tree
from hwctl.stores import note
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
    State,
)
from hwctl.stores.ktint8 import aside, checks, json_text, layout, staleness, stranger
from hwctl.stores.ktint8.deletion import remove_listed
from hwctl.stores.ktint8.documents import read_manifest
from hwctl.stores.ktint8.locating import located
from hwctl.stores.ktint8.roots import Kind
from hwctl.stores.ktint8.survey import Survey


def open_store(root: Path) -> KtInt8Store:
    return KtInt8Store(root)


class KtInt8Store:
    """The trees below one base, ``/dev/shm`` or any other folder."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._open_files = RecentOpenFiles()

    @property
    def family(self) -> Family:
        return Family.KTINT8

    @property
    def root(self) -> Path:
        return self._root

    @property
    def owner_uid(self) -> int:
        with _told(self._root):
            return os.stat(self._root).st_uid

    @property
    def faults(self) -> tuple[Finding, ...]:
        """A root of this family has no documents of its own that could be wrong."""
        return ()

    @property
    def frozen(self) -> str | None:
        """Nothing forbids changes: what a store may be is told by its entries, each for itself."""
        return None

    def actor(self, artifact: Artifact) -> int:
        """The tree's own owner: a base is shared by all users of a machine."""
        return self.owner_uid if artifact.owner_uid is None else artifact.owner_uid

    def size(self) -> Size:
        ours = [artifact for artifact in self.scan() if artifact.state is not State.FOREIGN]
        return Size(sum(one.bytes for one in ours), sum(one.allocated for one in ours))

    def budget(self) -> None:
        """Nothing limits a base but the room there is."""

    def documents(self, artifact: Artifact) -> Mapping[str, bytes]:
        """Manifest, lease or note of an entry, whichever are there."""
        found: dict[str, bytes] = {}
        names = (layout.EPHEMERAL_MANIFEST, layout.PERSISTENT_MANIFEST, layout.LEASE, note.NAME)
        with suppress(OSError), opened_dir(artifact.path) as root_fd:
            for name in names:
                with suppress(OSError):
                    found[name] = read_document(name, dir_fd=root_fd, limit=json_text.SIZE_LIMIT).data
        return found

    def model(self, artifact: Artifact) -> str | None:
        """Neither upstream's manifests nor ours name it; ours hold a digest of the source at most."""
        del artifact
        return None

    def fault(self, artifact: Artifact) -> str | None:
        """A tree of a large model has 180,000 files; ``check`` looks at them."""
        del artifact
        return None

    def scan(self, *, sizes: bool = True) -> Iterator[Artifact]:
        return self._survey(sizes=sizes).entries()

    def look(self, artifact: Artifact, *, sizes: bool = True) -> Artifact | None:
        found = located(artifact.path)
        if found is None or found[1] is None:
            return None
        return self._survey(sizes=sizes).entry(found[1], artifact)

    def check(self, artifact: Artifact, level: Level, options: CheckOptions) -> Report:
        with _told(artifact.path):
            return checks.check(artifact, level, options)

    def lease(self, artifact: Artifact, mode: Mode, deadline: Deadline, *, create: bool = False) -> Lease:
        """The lock on the root directory itself: there is nothing to create."""
        del create
        try:
            held = acquire_dir(artifact.path, mode, deadline)
        except IoFailed as exc:
            if exc.details.get("errno") != "ENOENT":
                raise
            # Another run has removed it meanwhile (REC-09).
            raise NotFound("is gone", path=artifact.path) from exc
        if artifact.inode is not None and held.inode != artifact.inode:
            held.release()
            raise NotFound("is gone: something else stands there now", path=artifact.path)
        if mode is Mode.EXCLUSIVE:
            self._open_files.forget()
        return Lease((held,))

    def stale(self, artifact: Artifact, policy: StalePolicy) -> Staleness:
        with _told(artifact.path):
            return staleness.judge(artifact, policy, self._open_files)

    def deny(self, artifact: Artifact, reason: str) -> bool:
        """There is no such mark: kt-kernel's readers would not look for it."""
        del artifact, reason
        return False

    def mark_used(self, artifact: Artifact) -> None:
        """The last use is the newest change in the tree, which hwctl does not keep."""
        del artifact

    def set_aside(self, artifact: Artifact, reason: str) -> Artifact:
        moved = aside.set_aside(self._root, artifact.path.name, artifact.inode, reason)
        return self._entry(moved)

    def restore(self, artifact: Artifact) -> Artifact:
        return self._entry(aside.restore(self._root, artifact.path.name, artifact.inode))

    def users(self, artifact: Artifact, *, certain: bool = False) -> tuple[User, ...]:
        """kt-kernel's consumer holds no lock; the files it has open or mapped give it away. Not a manifest:
        whoever waits for a lock has that open."""
        path, spared = artifact.path, layout.MANIFESTS
        with _told(path):
            return users_of_tree(path, artifact.owner_uid, self._open_files, sparing=spared, certain=certain)

    def removable(self, artifact: Artifact) -> str | None:
        """A finished tree without a sound manifest may be anybody's, and so is what no manifest lists."""
        if artifact.state in (State.READY, State.CONSUMING):
            with _told(artifact.path):
                return _stranger(artifact)
        if artifact.state not in (State.DAMAGED, State.INCOMPLETE):
            return None
        return f"only what a sound manifest lists is deleted ({artifact.reason}); quarantine moves it whole"

    def remove(self, artifact: Artifact) -> Removed:
        """A staging or quarantined tree goes whole, of any other only what its manifest lists."""
        if artifact.state is State.FOREIGN:
            raise Refused(f"not removed: {artifact.reason}", path=artifact.path)
        with _told(artifact.path), opened_dir(artifact.path.parent) as parent_fd:
            _require_writable(parent_fd, artifact)
            name = artifact.path.name
            seen = self._open_files.of(parent_fd, name, sparing=layout.MANIFESTS)
            if artifact.state is State.STAGING:
                return _removed_whole(parent_fd, name, artifact, seen)
            if artifact.state is State.QUARANTINED:
                removed = _removed_whole(parent_fd, name, artifact, seen)
                aside.drop_empty_quarantine(self._root)
                return removed
            obstacle = _stranger(artifact)
            if obstacle is not None:
                raise Refused(f"not removed: {obstacle}", path=artifact.path)
            ephemeral = _is_ephemeral(artifact)
            return remove_listed(parent_fd, name, artifact.inode, ephemeral=ephemeral, open_files=seen)

    @contextmanager
    def sweep(self, deadline: Deadline) -> Iterator[None]:
        """The lock on the base itself: two evictions at once would each make the room that one needs."""
        with acquire_dir(self._root, Mode.EXCLUSIVE, deadline):
            yield

    def _survey(self, *, sizes: bool = True) -> Survey:
        with _told(self._root):
            return Survey(self._root, sizes=sizes)

    def _entry(self, path: Path) -> Artifact:
        found = located(path)
        artifact = None if found is None or found[1] is None else self._survey().entry(found[1])
        if artifact is None:
            raise NotFound("vanished while it was moved", path=path)
        return artifact


def _is_ephemeral(artifact: Artifact) -> bool:
    return artifact.detail.get("kind") != Kind.PERSISTENT


def _stranger(artifact: Artifact) -> str | None:
    try:
        with opened_dir(artifact.path) as root_fd:
            return stranger.obstacle(root_fd, read_manifest(root_fd, ephemeral=_is_ephemeral(artifact)))
    except FileNotFoundError:
        return None  # somebody else is removing it


def _require_writable(parent_fd: int, artifact: Artifact) -> None:
    """The last step takes a name out of the folder above. Where that is not allowed, all that the others
    achieve is a tree that nobody can judge any more."""
    if os.fstatvfs(parent_fd).f_flag & os.ST_RDONLY:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))
    if not os.access(".", os.W_OK | os.X_OK, dir_fd=parent_fd, effective_ids=True):
        raise Refused(
            f"not removed: uid {os.geteuid()} may not take anything out of {artifact.path.parent}, so that an"
            " empty folder would be left that nobody can judge any more",
            path=artifact.path,
        )


def _removed_whole(parent_fd: int, name: str, artifact: Artifact, seen: OpenFiles) -> Removed:
    # Without lease and manifest what a killed removal leaves could be proven nobody's by no one.
    last = (layout.LEASE, layout.EPHEMERAL_MANIFEST)
    return remove_tree(parent_fd, name, inode=artifact.inode, open_files=seen, last=last)


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """OSErrors as what they mean to the verbs. A name that is not found makes ``path`` NotFound only if that
    is gone itself: it may be one of /proc."""
    try:
        yield
    except OSError as exc:
        if isinstance(exc, FileNotFoundError) and not os.path.lexists(path):
            raise NotFound("is gone", path=path) from exc
        raise from_os_error(exc, f"cannot work on {path}", path) from exc
