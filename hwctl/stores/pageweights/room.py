"""Room for a page that is to be published: what it needs, what would help, and what a budget would cost.

Asked before a byte is written, and by a plan. Making room is ``eviction``'s work.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from hwctl.errors import HwctlError, NoRoom
from hwctl.fs import space
from hwctl.stores.pageweights import layout
from hwctl.stores.pageweights.checks import Verdict
from hwctl.stores.pageweights.eviction import Eviction, foresee_eviction
from hwctl.stores.pageweights.place import exists
from hwctl.stores.pageweights.resident import counted_now
from hwctl.stores.pageweights.roots import Root

# Receipt, locator, and the names themselves; beside the artifact two documents and a temporary.
_BESIDE_BYTES = 64 << 10
_PAGE_INODES = 3


def require_room(cache: Path, at: Path | int, size: int, budget: int | None, inodes: int) -> None:
    """Raise NoRoom, with what would help, for a page that cannot be stored in a cache that is, or will be,
    at a path or descriptor."""
    if budget is not None and size > budget:
        message = f"the page takes {size} bytes, more than the whole budget of {budget}: raise --budget"
        raise NoRoom(message, path=cache, details={"need_bytes": size, "budget_bytes": budget})
    try:
        space.require(at, size + _BESIDE_BYTES, inodes, what=f"a page in {cache}")
    except NoRoom as exc:
        free = exc.details.get("available_inodes")
        scarce = isinstance(free, int) and free < inodes
        raise advised(exc, cache, "--keep N" if scarce else min_free(size)) from exc


def inodes_needed(root: Root | None, prefix: str) -> int:
    """How many names a publication makes; without a root also that of the root."""
    if root is None:
        return _PAGE_INODES + 3
    locks = (layout.EVICTION_LOCK, layout.lock_name(prefix))
    return _PAGE_INODES + sum(not exists(root.place, name) for name in locks)


def min_free(size: int) -> str:
    return f"--min-free {size + _BESIDE_BYTES}"


def advised(error: HwctlError, cache: Path, limit: str) -> HwctlError:
    """Want of room with the calls that make some: nothing is evicted before the page is there (EVI-07)."""
    if not isinstance(error, NoRoom):
        return error
    root = shlex.quote(str(cache))
    message = f"{error.message}; hwctl reclaim-stale {root} and hwctl evict {root} {limit} make room"
    return NoRoom(message, path=error.path, retryable=error.retryable, details=error.details)


def foresee_evicted(root: Root, page: Verdict, budget: int, prefix: str, size: int) -> Eviction:
    """What would go after an artifact of ``size`` bytes was published in place of ``page``, a miss."""
    if page.locator is not None:  # what is left of it goes first
        size -= counted_now(root.fd, layout.artifact_name(prefix, page.locator.key))
    return foresee_eviction(root, budget, added=size, spare=prefix)
