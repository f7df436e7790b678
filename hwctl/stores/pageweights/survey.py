"""What lies in a root: pages, orphans, temporaries and strangers, as Artifacts.

One pass over the directory. Of the files only locators are read: they say which key is current, so what is
a page and what an orphan. No lock is taken; who holds one is read from the kernel's table. The quarantine
below the root is ``aside``'s.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping

from hwctl.errors import HwctlError, from_os_error
from hwctl.fs.lock_table import LockTable
from hwctl.fs.walk import allocated, inode_of
from hwctl.stores.base import Artifact, Family, Holders, State
from hwctl.stores.pageweights import layout
from hwctl.stores.pageweights.documents import Locator, judge_locator
from hwctl.stores.pageweights.layout import Kind, Name, pair_of, parse_name
from hwctl.stores.pageweights.place import exists, leads_nowhere, look_at_document
from hwctl.stores.pageweights.resident import SUFFIX, counted
from hwctl.stores.pageweights.roots import Root

_TEMPORARIES = (Kind.TEMPORARY, Kind.LIBRARY_TEMPORARY)
_Stats = Mapping[str, os.stat_result]


class Survey:
    """Looks at the entries of one open root. Without a lock table the holders are left out."""

    def __init__(self, root: Root, locks: LockTable | None) -> None:
        self._root = root
        self._locks = locks

    def entries(self) -> list[Artifact]:
        """Every entry but locks and the quarantine, sorted by key."""
        groups: dict[str, list[str]] = {}
        found: list[Artifact | None] = []
        for text in self._names():
            name = parse_name(text)
            if name.kind in (Kind.LOCATOR, Kind.RECEIPT, Kind.ARTIFACT) and name.prefix is not None:
                groups.setdefault(name.prefix, []).append(text)
            elif name.kind not in (Kind.LOCK, Kind.QUARANTINE):
                found.append(self.other(text, name))
        for prefix, names in groups.items():
            found += self._group(prefix, names)
        there = [artifact for artifact in found if artifact is not None]
        return sorted(there, key=lambda artifact: (artifact.key, str(artifact.path)))

    def page(self, prefix: str) -> Artifact | None:
        """The page of a prefix as it is now, None without a locator."""
        return self._page(prefix, None)[0]

    def pair(self, prefix: str, key: str) -> Artifact | None:
        """The files of a key: part of the page that names them, or an orphan."""
        page, locator = self._page(prefix, None)
        if page is not None and (locator is None or locator.key == key):
            return page
        return self._orphan(prefix, key)

    def other(self, text: str, name: Name) -> Artifact | None:
        """A temporary or a stranger; None when it has gone."""
        st = self._stat(text)
        if st is None:
            return None
        regular, folder = stat.S_ISREG(st.st_mode), stat.S_ISDIR(st.st_mode)
        temporary = name.kind in _TEMPORARIES
        return Artifact(
            Family.PAGEWEIGHTS,
            self._root.path,
            text,
            self._root.path / text,
            State.TEMPORARY if temporary and not folder else State.FOREIGN,
            bytes=st.st_size if regular else counted(self._root.fd, text, st) if text.endswith(SUFFIX) else 0,
            allocated=allocated(st),
            files=1 if regular else 0,
            created=st.st_mtime_ns,
            leases=Holders() if name.prefix is None else self._holders(name.prefix),
            inode=inode_of(st),
            owner_uid=st.st_uid,
            reason="a directory with the name of a temporary" if temporary and folder else None,
        )

    def files_of(self, artifact: Artifact) -> list[str]:
        """The names a page consists of, its locator among them; of a bad one all that share its prefix.

        An orphan is two names at most: a locator of its prefix means other files.
        """
        prefix, key = parse_name(artifact.path.name).prefix, artifact.detail.get("cache_key")
        if prefix is None:
            return []
        pair = pair_of(prefix, key) if isinstance(key, str) else pair_names(self._names(), prefix)
        return [*pair] if artifact.state is State.ORPHAN else [layout.locator_name(prefix), *pair]

    def _group(self, prefix: str, names: list[str]) -> Iterator[Artifact | None]:
        locator: Locator | None = None
        if layout.locator_name(prefix) in names:
            page, locator = self._page(prefix, names)
            if page is not None:
                yield page
                if locator is None:
                    return  # nobody can say which of the files a bad locator means
        for key in {parse_name(text).key for text in names}:
            if key is not None and (locator is None or key != locator.key):
                yield self._orphan(prefix, key)

    def _page(self, prefix: str, names: Iterable[str] | None) -> tuple[Artifact | None, Locator | None]:
        """The page and what its locator says; without a sound locator all of the prefix's files are it."""
        name = layout.locator_name(prefix)
        try:
            looked = look_at_document(self._root.place, name)
        except HwctlError as exc:
            return self._bad_page(prefix, names, State.UNREADABLE, exc.message), None
        if looked.absent:
            if not leads_nowhere(self._root.place, name):
                return None, None
            reason = "unprotected: its locator is a symbolic link to nothing"
            return self._bad_page(prefix, names, State.DAMAGED, reason), None
        locator = () if looked.data is None else judge_locator(looked.data, prefix, None)
        findings = (*looked.findings, *(locator if isinstance(locator, tuple) else ()))
        if findings or isinstance(locator, tuple):
            reason = f"{findings[0].code}: its locator: {findings[0].message}"
            return self._bad_page(prefix, names, State.DAMAGED, reason), None
        pair = pair_of(prefix, locator.key)
        stats = self._stats((name, *pair))
        parts = zip(("receipt", "artifact"), pair, strict=True)
        absent = " and ".join(word for word, text in parts if not self._leads_somewhere(text, stats))
        state = State.INCOMPLETE if absent else State.READY
        missing = f"no {absent} beside its locator" if absent else None
        return self._artifact(prefix, name, state, stats, missing, _detail(locator)), locator

    def _leads_somewhere(self, name: str, stats: _Stats) -> bool:
        """Whether a name is there as validation sees it, which follows links (step 3)."""
        st = stats.get(name)
        return st is not None and (not stat.S_ISLNK(st.st_mode) or exists(self._root.place, name))

    def _bad_page(
        self, prefix: str, names: Iterable[str] | None, state: State, reason: str
    ) -> Artifact | None:
        if names is None:
            names = self._names()
        files = pair_names(names, prefix)
        name = layout.locator_name(prefix)
        return self._artifact(prefix, name, state, self._stats((name, *files)), reason, {"prefix": prefix})

    def _orphan(self, prefix: str, key: str) -> Artifact | None:
        receipt, artifact = pair = pair_of(prefix, key)
        stats = self._stats(pair)
        name = artifact if artifact in stats else receipt
        detail = {"prefix": prefix, "cache_key": key}
        return self._artifact(f"{prefix}.{key}", name, State.ORPHAN, stats, "no locator names it", detail)

    def _artifact(
        self,
        key: str,
        name: str,
        state: State,
        stats: _Stats,
        reason: str | None,
        detail: Mapping[str, object],
    ) -> Artifact | None:
        st = stats.get(name)
        if st is None:
            return None  # it went while it was looked at
        payload = {text: one for text, one in stats.items() if text.endswith(SUFFIX)}
        made = min((one.st_mtime_ns for one in payload.values()), default=st.st_mtime_ns)
        return Artifact(
            Family.PAGEWEIGHTS,
            self._root.path,
            key,
            self._root.path / name,
            state,
            bytes=sum(counted(self._root.fd, text, one) for text, one in payload.items()),
            allocated=sum(blocks for _, blocks in {(inode_of(s), allocated(s)) for s in stats.values()}),
            files=len(stats),
            created=made,
            last_used=None if state is State.ORPHAN else st.st_mtime_ns,
            leases=self._holders(key[: layout.DIGEST_LENGTH]),
            inode=inode_of(st),
            owner_uid=st.st_uid,
            reason=reason,
            detail=detail,
        )

    def _holders(self, prefix: str) -> Holders:
        if self._locks is None or (st := self._stat(layout.lock_name(prefix))) is None:
            return Holders()
        return Holders.of(self._locks.entries(inode_of(st)))

    def _names(self) -> list[str]:
        try:
            return os.listdir(self._root.fd)
        except OSError as exc:
            raise from_os_error(exc, f"cannot list {self._root.path}", self._root.path) from exc

    def _stats(self, names: Iterable[str]) -> dict[str, os.stat_result]:
        """Of those that are there, links not followed."""
        return {name: st for name in names if (st := self._stat(name)) is not None}

    def _stat(self, name: str) -> os.stat_result | None:
        try:
            return os.stat(name, dir_fd=self._root.fd, follow_symlinks=False)
        except FileNotFoundError:
            return None
        except OSError as exc:
            raise from_os_error(exc, f"cannot look at {name}", self._root.path / name) from exc


def pair_names(names: Iterable[str], prefix: str) -> list[str]:
    """The receipts and artifacts of a prefix, whatever their keys."""
    parsed = ((text, parse_name(text)) for text in names)
    return [
        text for text, name in parsed if name.prefix == prefix and name.kind in (Kind.RECEIPT, Kind.ARTIFACT)
    ]


def _detail(locator: Locator) -> dict[str, object]:
    """A page's own facts, as inspect shows them."""
    authority = locator.authority
    return {
        "prefix": locator.prefix,
        "cache_key": locator.key,
        "page_id": authority.page_id,
        "dtype": authority.dtype,
        "source_sha256": authority.source_sha256,
        "source_bytes": authority.source_bytes,
        "source_identity": list(authority.source_identity),
        "source_format_revision": authority.source_format_revision,
    }
