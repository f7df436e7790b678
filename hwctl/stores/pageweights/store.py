"""A page-weights cache as a Store: the six steps, each a few lines over the modules that know how.

Owns wiring. What lies there is ``survey``, whether it is sound ``verification``, whether it is garbage
``staleness``, which locks there are ``locking``; removal, quarantine and eviction are modules of their own,
and so is publishing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from hwctl.errors import Finding, NotFound, Refused, from_os_error
from hwctl.fs.deadline import Deadline
from hwctl.fs.lock_table import LockTable, Mode
from hwctl.fs.locks import Held
from hwctl.fs.openfiles import RecentOpenFiles, User
from hwctl.fs.pagecache import Ways
from hwctl.fs.paths import read_document
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
from hwctl.stores.pageweights import aside, glance, layout, roots, staleness, verification
from hwctl.stores.pageweights.grouping import names_in_quarantine, names_in_root
from hwctl.stores.pageweights.layout import Kind, parse_name, quarantined_prefix
from hwctl.stores.pageweights.locking import (
    lock_eviction,
    lock_page,
    lock_to_unlist,
    share_page,
    try_page,
)
from hwctl.stores.pageweights.place import Place
from hwctl.stores.pageweights.records import DOCUMENT_LIMIT
from hwctl.stores.pageweights.removal import remove_entry
from hwctl.stores.pageweights.resident import one_pass
from hwctl.stores.pageweights.roots import Root
from hwctl.stores.pageweights.survey import Survey


def open_store(root: Path) -> PageStore:
    return PageStore(root)


class PageStore:
    """The cache below one root."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._ways = Ways()
        self._sweeping: Root | None = None
        self._open_files = RecentOpenFiles()
        self._seen = staleness.Seen(self._open_files, names_in_quarantine(), names_in_root().of)
        # What is still mapped is only told, so a pass over /proc may serve for many pages: each one takes
        # as long as the removal of many, and all accesses of the cache's own program wait meanwhile.
        self._accounting = RecentOpenFiles()

    @property
    def family(self) -> Family:
        return Family.PAGEWEIGHTS

    @property
    def root(self) -> Path:
        return self._root

    @property
    def owner_uid(self) -> int:
        with self._opened() as root:
            return root.place.uid

    @property
    def faults(self) -> tuple[Finding, ...]:
        """A root of this family has no documents of its own that could be wrong."""
        return ()

    @property
    def frozen(self) -> str | None:
        """Nothing forbids changes: what a store may be is told by its entries, each for itself."""
        return None

    def actor(self, artifact: Artifact) -> int:
        """The root's owner: nobody else's files count as pages."""
        del artifact
        return self.owner_uid

    def size(self) -> Size:
        """Artifacts alone, strangers and orphans among them; see ``resident.one_pass``."""
        with self._opened() as root:
            listing = one_pass(root.place)
        return Size(listing.resident, listing.allocated)

    def budget(self) -> int:
        """What the cache's own program allows itself here when nobody tells it otherwise."""
        with self._opened() as root:
            return roots.own_budget(root.fd)

    def documents(self, artifact: Artifact) -> Mapping[str, bytes]:
        """Locator and receipt of a page, as they lie there."""
        key = artifact.detail.get("cache_key")
        names = [artifact.path.name]
        if isinstance(key, str) and (prefix := parse_name(artifact.path.name).prefix) is not None:
            names = [layout.locator_name(prefix), layout.receipt_name(prefix, key)]
        found: dict[str, bytes] = {}
        with self._opened() as root:
            for name in names:
                if name.endswith(".json"):
                    with suppress(OSError):
                        found[name] = read_document(name, dir_fd=root.fd, limit=DOCUMENT_LIMIT).data
        return found

    def model(self, artifact: Artifact) -> str | None:
        """The page and the digest of its source object, which is all that a locator knows of the model."""
        page, source = artifact.detail.get("page_id"), artifact.detail.get("source_sha256")
        return None if page is None or source is None else f"page {page} of {source}"

    def fault(self, artifact: Artifact) -> str | None:
        """What its receipt and the stat of its artifact tell; the rest is for ``check`` to read."""
        prefix, key = parse_name(artifact.path.name).prefix, artifact.detail.get("cache_key")
        if prefix is None or not isinstance(key, str):
            return None
        with self._opened() as root:
            return glance.fault(root.place, prefix, key)

    def scan(self, *, sizes: bool = True) -> Iterator[Artifact]:
        del sizes  # a handful of files an entry
        with self._opened() as root:
            found = [*Survey(root, LockTable.read()).entries(), *aside.entries(root)]
        yield from sorted(found, key=lambda artifact: (artifact.key, str(artifact.path)))

    def look(self, artifact: Artifact, *, sizes: bool = True) -> Artifact | None:
        """During an eviction the holders are left out: the lease was taken, so there are none."""
        del sizes
        try:
            with self._opened() as root:
                name = artifact.path.name
                if artifact.path.parent != self._root:
                    return aside.entry(root, name)
                survey = Survey(root, None if self._sweeping is not None else LockTable.read())
                parsed = parse_name(name)
                if parsed.prefix is None or parsed.kind is Kind.TEMPORARY:
                    return survey.other(name, parsed)
                if parsed.key is not None:
                    return survey.pair(parsed.prefix, parsed.key)
                return survey.page(parsed.prefix)
        except NotFound:
            return None

    def check(self, artifact: Artifact, level: Level, options: CheckOptions) -> Report:
        with self._opened() as root:
            return verification.check(root, artifact, level, options, self._ways)

    def lease(self, artifact: Artifact, mode: Mode, deadline: Deadline, *, create: bool = False) -> Lease:
        """The page's lock, and before it the eviction lock where a listed file is to go.

        While an eviction runs the page's lock is tried, never waited for, whatever ``deadline`` says.
        Strangers and the safetensors library's temporaries have no lock.
        """
        name = parse_name(artifact.path.name)
        prefix = quarantined_prefix(artifact.path.name) or name.prefix
        if prefix is None:
            return Lease()
        with self._opened() as root:
            if mode is Mode.SHARED:
                held = self._shared(root.place, prefix, deadline, create=create)
                return Lease() if held is None else Lease((held,))
            if self._sweeping is not None:
                taken = Lease((try_page(root.place, prefix),))
            elif name.kind in (Kind.LOCATOR, Kind.RECEIPT, Kind.ARTIFACT):
                taken = lock_to_unlist(root.place, prefix, deadline)
            else:
                taken = Lease((lock_page(root.place, prefix, deadline),))
        self._open_files.forget()
        return taken

    @staticmethod
    def _shared(place: Place, prefix: str, deadline: Deadline, *, create: bool) -> Held | None:
        held = share_page(place, prefix, deadline)
        if held is not None or not create:
            return held
        lock_page(place, prefix, deadline).release()
        return share_page(place, prefix, deadline)

    def stale(self, artifact: Artifact, policy: StalePolicy) -> Staleness:
        with self._opened() as root:
            return staleness.judge(root, artifact, policy, self._seen)

    def deny(self, artifact: Artifact, reason: str) -> bool:
        """There is no such mark: whoever holds a page's lock is done with it in a moment."""
        del artifact, reason
        return False

    def mark_used(self, artifact: Artifact) -> None:
        """The clock is the locator's mtime, which only a real use of the page moves."""
        del artifact

    def set_aside(self, artifact: Artifact, reason: str) -> Artifact:
        prefix = parse_name(artifact.path.name).prefix
        if prefix is None or artifact.path.parent != self._root:
            raise Refused("is no page, so it cannot be quarantined", path=artifact.path)
        with self._writable() as root:
            names = Survey(root, None).files_of(artifact)
            entry = aside.entry(root, aside.set_aside(root, prefix, names, reason))
        if entry is None:
            raise NotFound("was removed as soon as it was set aside", path=artifact.path)
        return entry

    def restore(self, artifact: Artifact) -> Artifact:
        with self._writable() as root:
            prefix = aside.restore(root, artifact.path.name)
            page = Survey(root, None).page(prefix)
        if page is None:
            raise NotFound("was removed as soon as it was restored", path=artifact.path)
        return page

    def users(self, artifact: Artifact, *, certain: bool = False) -> tuple[User, ...]:
        """Whoever uses a page locks it, and keeps copies afterwards."""
        del artifact, certain
        return ()

    def removable(self, artifact: Artifact) -> str | None:
        """Nobody can say which files a bad locator means."""
        if artifact.state is not State.DAMAGED:
            return None
        return f"it cannot be told which files are this page's ({artifact.reason}); quarantine it"

    def remove(self, artifact: Artifact) -> Removed:
        """Raises Refused for a bad locator, which may mean anybody's files: quarantine it instead."""
        with self._writable() as root:
            try:
                return remove_entry(root.fd, artifact, self._accounting)
            except OSError as exc:
                raise from_os_error(exc, "cannot remove it", artifact.path) from exc

    @contextmanager
    def sweep(self, deadline: Deadline) -> Iterator[None]:
        """The eviction lock. One process evicts at a time, and no page's lock is waited for meanwhile."""
        with roots.writable(self._root) as root, lock_eviction(root.place, deadline):
            self._sweeping = root
            try:
                yield
            finally:
                self._sweeping = None

    @contextmanager
    def _opened(self) -> Iterator[Root]:
        """The root for looking: during an eviction the one that is open, since every page is looked at twice
        while each access of the cache's own program waits."""
        if self._sweeping is not None:
            yield self._sweeping
            return
        with roots.opened(self._root) as root:
            yield root

    @contextmanager
    def _writable(self) -> Iterator[Root]:
        """The root for changing it; during an eviction it has been found fit."""
        if self._sweeping is not None:
            yield self._sweeping
            return
        with roots.writable(self._root) as root:
            yield root
