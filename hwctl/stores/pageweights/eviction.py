"""Bringing a root down to a byte budget as the cache's own program does, without dying on a bad locator.

Owns the one pass under the eviction lock: what no locator names goes first, then the oldest clock; a page
whose lock is held by anybody is left alone, and it ends as soon as the sum is within the budget. The same
walk without a lock is the plan of it. What is proven to be garbage is ``garbage``'s to say.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from hwctl.errors import Busy, HwctlError, Usage, from_os_error
from hwctl.fs.deadline import Deadline
from hwctl.fs.lock_holders import held_by_other
from hwctl.fs.mounts import mounted_in
from hwctl.fs.remove import Removed, require_none_mounted
from hwctl.stores.pageweights import layout
from hwctl.stores.pageweights.documents import evictable_key
from hwctl.stores.pageweights.garbage import Garbage, Passed
from hwctl.stores.pageweights.locking import lock_eviction, try_page
from hwctl.stores.pageweights.place import Place, leads_nowhere, look_at_document
from hwctl.stores.pageweights.removal import files_of, remove_files
from hwctl.stores.pageweights.resident import Listing, counted, one_pass
from hwctl.stores.pageweights.roots import Root

NOTHING = Removed()


@dataclass(frozen=True, slots=True)
class Eviction:
    """What one pass did, or would do. ``resident`` is the sum before, ``remaining`` the sum after, in bytes.

    ``evicted`` are the prefixes of pages, ``reclaimed`` the artifacts that no locator named, as prefix.key.
    """

    budget: int
    resident: int
    remaining: int
    evicted: tuple[str, ...] = ()
    removed: Removed = NOTHING
    passed: tuple[Passed, ...] = ()
    reclaimed: tuple[str, ...] = ()

    @property
    def reached(self) -> bool:
        return self.remaining <= self.budget


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A page by its clock, or without one (``clock`` None) an artifact of ``key`` that may be garbage."""

    prefix: str
    clock: int | None = None
    key: str | None = None


def evict_to_budget(root: Root, budget: int, deadline: Deadline, *, spare: str | None = None) -> Eviction:
    """Remove what nobody can use, then the least recently used pages, until ``budget`` bytes at most stay.

    The page of the prefix ``spare`` stays whatever its clock says: it has just been published. Waits until
    ``deadline`` for another eviction to end. What could not be evicted is in the result.
    Raises Usage for a budget below one byte, Busy, IoFailed.
    """
    if budget < 1:
        raise Usage(f"a budget of {budget} bytes is none")
    garbage = Garbage(root)
    with lock_eviction(root.place, deadline):
        listing = one_pass(root.place)
        if listing.resident <= budget or not any(_artifacts(listing)):
            return _Walk(root, budget, listing, garbage, dry=False).over(_pages(listing, spare))
    # The verdicts that it will ask for are made before anybody has to wait for them.
    _Walk(root, budget, listing, garbage, dry=True).over(_artifacts(listing))
    with lock_eviction(root.place, deadline):
        listing = one_pass(root.place)
        walk = _Walk(root, budget, listing, garbage, dry=False)
        return walk.over((*_artifacts(listing), *_pages(listing, spare)))


def foresee_eviction(root: Root, budget: int, *, added: int, spare: str) -> Eviction:
    """What ``evict_to_budget`` would do once an artifact of ``added`` bytes lies there under ``spare``.

    Nothing is locked or changed. What lies under ``spare`` already is not looked at: it depends on bytes
    that have not been read whether the new page takes its place.
    """
    listing = one_pass(root.place)
    walk = _Walk(root, budget, listing, Garbage(root), dry=True, added=added)
    candidates = (*_artifacts(listing), *_pages(listing, spare))
    return walk.over(one for one in candidates if one.prefix != spare)


def _artifacts(listing: Listing) -> Iterator[_Candidate]:
    """What may be garbage, by name. A locator is read only where it matters."""
    located = {prefix for _, prefix in listing.clocks}
    for prefix, sizes in sorted(listing.artifacts.items()):
        if prefix not in located or len(sizes) > 1:
            yield from (_Candidate(prefix, key=key) for key, size in sorted(sizes.items()) if size)


def _pages(listing: Listing, spare: str | None) -> Iterator[_Candidate]:
    """By clock, then by name."""
    yield from (_Candidate(prefix, clock) for clock, prefix in sorted(listing.clocks) if prefix != spare)


class _Walk:
    """One way through the candidates, carried out or, when ``dry``, only thought through."""

    def __init__(
        self, root: Root, budget: int, listing: Listing, garbage: Garbage, *, dry: bool, added: int = 0
    ) -> None:
        self._root = root
        self._names = listing.names
        self._garbage = garbage
        self._mounted = mounted_in(root.fd)
        self._budget = budget
        self._resident = self._remaining = listing.resident + added
        self._dry = dry
        self._removed = NOTHING
        self._evicted: list[str] = []
        self._reclaimed: list[str] = []
        self._passed: dict[str, Passed] = {}

    def over(self, candidates: Iterable[_Candidate]) -> Eviction:
        for candidate in candidates:
            if self._remaining <= self._budget:
                break
            found = self._try_one(candidate)
            if isinstance(found, Passed):
                self._passed.setdefault(found.prefix, found)
        return Eviction(
            self._budget,
            self._resident,
            self._remaining,
            tuple(self._evicted),
            self._removed,
            tuple(self._passed.values()),
            tuple(self._reclaimed),
        )

    def _try_one(self, candidate: _Candidate) -> Passed | None:
        prefix = candidate.prefix
        try:
            # Judged before its lock is made as well: a lock file that is missing is no proof (EVI-08).
            found = None if candidate.key is None else self._judged(prefix, candidate.key)
            if candidate.key is not None and not isinstance(found, tuple):
                return found
            with _held(self._root.place, prefix, dry=self._dry):
                if candidate.key is None:
                    found = _page(self._root, candidate)
                else:
                    found = self._judged(prefix, candidate.key)
                if not isinstance(found, tuple):
                    return found
                size, removed = _removed(self._root, found, self._mounted, dry=self._dry)
        except Busy as exc:
            return Passed(prefix, exc.message)
        except HwctlError as exc:  # a lock that is a link, or of another user; a folder among the files
            return Passed(prefix, exc.message, bad=True)
        self._remaining -= size
        self._removed += removed
        if candidate.key is None:
            self._evicted.append(prefix)
        else:
            self._reclaimed.append(f"{prefix}.{candidate.key}")
        return None

    def _judged(self, prefix: str, key: str) -> tuple[str, ...] | Passed | None:
        return self._garbage.judge(prefix, key, self._names[prefix])


@contextmanager
def _held(place: Place, prefix: str, *, dry: bool) -> Iterator[None]:
    """The page's lock, tried; for a plan, the question who has it."""
    if not dry:
        with try_page(place, prefix):
            yield
        return
    name = layout.lock_name(prefix)
    try:
        holder = held_by_other(name, place.dir_fd)
    except FileNotFoundError:
        holder = None
    except OSError as exc:
        raise from_os_error(exc, f"cannot look at {name}") from exc
    if holder is not None:
        raise Busy(f"{name}: locked (held by {holder})")
    yield


def _page(root: Root, candidate: _Candidate) -> tuple[str, ...] | Passed | None:
    """The names of a page that goes, why it stays, or None when it has gone. Under its lock."""
    prefix, clock = candidate.prefix, candidate.clock
    name = layout.locator_name(prefix)
    looked = look_at_document(root.place, name)
    if looked.absent:
        nowhere = leads_nowhere(root.place, name)
        return Passed(prefix, "its locator is a symbolic link to nothing", bad=True) if nowhere else None
    key = () if looked.data is None else evictable_key(looked.data, prefix)
    findings = (*looked.findings, *(key if isinstance(key, tuple) else ()))
    if findings or isinstance(key, tuple):
        return Passed(prefix, f"{findings[0].code}: its locator: {findings[0].message}", bad=True)
    if looked.stat is not None and clock is not None and looked.stat.st_mtime_ns > clock:
        return Passed(prefix, "it was used since the pass began")  # EVI-05
    return name, *layout.pair_of(prefix, key)


def _removed(
    root: Root, names: tuple[str, ...], mounted: frozenset[str], *, dry: bool
) -> tuple[int, Removed]:
    """Remove a page's files, or not; what its artifact counted, whose name stands last."""
    try:
        files = files_of(root.fd, names)
        require_none_mounted(root.fd, files, mounted)
        artifact = files.get(names[-1])
        size = 0 if artifact is None else counted(root.fd, names[-1], artifact)
        return size, NOTHING if dry else remove_files(root.fd, files)
    except OSError as exc:
        raise from_os_error(exc, "cannot evict the page") from exc
