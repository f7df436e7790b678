"""Bringing a root down to a byte budget as the cache's own program does, without dying on a bad locator.

Owns the one pass under the eviction lock: oldest clock first, a page whose lock is held by anybody is left
alone, and it ends as soon as the sum is within the budget.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from hwctl.errors import Busy, HwctlError, Usage, from_os_error
from hwctl.fs.deadline import Deadline
from hwctl.stores.base import Removed
from hwctl.stores.pageweights import layout
from hwctl.stores.pageweights.documents import evictable_key
from hwctl.stores.pageweights.layout import Kind, parse_name
from hwctl.stores.pageweights.locking import lock_eviction, try_page
from hwctl.stores.pageweights.place import Place, look_at_document
from hwctl.stores.pageweights.removal import remove_page

_SUFFIX = ".safetensors"
NOTHING = Removed()


@dataclass(frozen=True, slots=True)
class Passed:
    """A page that eviction came to and left alone, and why; ``bad`` when its locator cannot be trusted."""

    prefix: str
    reason: str
    bad: bool = False


@dataclass(frozen=True, slots=True)
class Eviction:
    """What one pass did. ``resident`` is the sum before, ``remaining`` the sum after, both in bytes."""

    budget: int
    resident: int
    remaining: int
    evicted: tuple[str, ...] = ()
    removed: Removed = NOTHING
    passed: tuple[Passed, ...] = ()

    @property
    def reached(self) -> bool:
        return self.remaining <= self.budget


def evict_to_budget(place: Place, budget: int, deadline: Deadline) -> Eviction:
    """Remove the least recently used pages until ``budget`` bytes or less are left.

    Waits until ``deadline`` for another eviction to end. What could not be evicted is in the result.
    Raises Usage for a budget below one byte, Busy, IoFailed.
    """
    if budget < 1:
        raise Usage(f"a budget of {budget} bytes is none")
    with lock_eviction(place, deadline):
        resident, clocks = one_pass(place)
        remaining, removed = resident, NOTHING
        evicted: list[str] = []
        passed: list[Passed] = []
        for clock, name in sorted(clocks):
            if remaining <= budget:
                break
            prefix = parse_name(name).prefix
            if prefix is None:
                continue
            outcome = _try_one(place, prefix, clock)
            if isinstance(outcome, Passed):
                passed.append(outcome)
            elif outcome is not None:
                size, gone = outcome
                remaining -= size
                removed += gone
                evicted.append(prefix)
    return Eviction(budget, resident, remaining, tuple(evicted), removed, tuple(passed))


def one_pass(place: Place) -> tuple[int, list[tuple[int, str]]]:
    """Resident bytes, and (mtime ns, name) of every locator, from one look at the directory.

    Resident is the size of every direct child named ``*.safetensors``, whatever it is, links by their
    target; a link to nothing, and what vanishes meanwhile, counts nothing. Its own program dies of either.
    """
    resident = 0
    clocks: list[tuple[int, str]] = []
    try:
        with os.scandir(place.dir_fd) as entries:
            for entry in entries:
                artifact = entry.name.endswith(_SUFFIX)
                if not artifact and parse_name(entry.name).kind is not Kind.LOCATOR:
                    continue
                try:
                    st = entry.stat(follow_symlinks=artifact)
                except FileNotFoundError:
                    continue
                if artifact:
                    resident += st.st_size
                else:
                    clocks.append((st.st_mtime_ns, entry.name))
    except OSError as exc:
        raise from_os_error(exc, "cannot list the cache") from exc
    return resident, clocks


def _try_one(place: Place, prefix: str, clock: int) -> tuple[int, Removed] | Passed | None:
    """Evict one page: (its artifact's size, what was freed), why not, or None when it had gone."""
    try:
        held = try_page(place, prefix)
    except Busy as exc:
        return Passed(prefix, exc.message)
    except HwctlError as exc:  # a lock that is a link, or of another user
        return Passed(prefix, exc.message, bad=True)
    with held:
        try:
            return _evict_locked(place, prefix, clock)
        except HwctlError as exc:
            return Passed(prefix, exc.message, bad=True)


def _evict_locked(place: Place, prefix: str, clock: int) -> tuple[int, Removed] | Passed | None:
    looked = look_at_document(place, layout.locator_name(prefix))
    if looked.data is None or looked.stat is None:
        return None if looked.absent else Passed(prefix, looked.findings[0].message, bad=True)
    key = evictable_key(looked.data, prefix)
    findings = (*looked.findings, *(key if isinstance(key, tuple) else ()))
    if findings or isinstance(key, tuple):
        return Passed(prefix, f"{findings[0].code}: its locator {findings[0].message}", bad=True)
    if looked.stat.st_mtime_ns > clock:
        return Passed(prefix, "it was used since the pass began")  # EVI-05
    try:
        size = _size(place, layout.artifact_name(prefix, key))
        return size, remove_page(place.dir_fd, prefix, key)
    except OSError as exc:
        raise from_os_error(exc, "cannot evict the page") from exc


def _size(place: Place, name: str) -> int:
    try:
        return os.stat(name, dir_fd=place.dir_fd, follow_symlinks=False).st_size
    except FileNotFoundError:
        return 0
