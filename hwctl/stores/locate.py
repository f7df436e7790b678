"""PATH -> (family, store, entry): which of the families a path belongs to.

Owns the order of the questions and the answers "there is nothing" and "not through a link". Each family
recognises its own places in its ``locating.py``; no payload is read here and nothing is judged.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path

from hwctl.errors import HwctlError, NotFound, Refused, from_os_error
from hwctl.fs.deadline import Deadline
from hwctl.stores.base import Artifact, Family, Match, State, Store
from hwctl.stores.hostweights import locating as hostweights
from hwctl.stores.ktint8 import locating as ktint8
from hwctl.stores.misnamed import taken_for_one
from hwctl.stores.pageweights import locating as pageweights

# A page cache or a host weight store may lie inside a folder that also is a base of kt-int8 trees, as in
# /dev/shm; the families with a root of their own are therefore asked first.
_RECOGNISE: Mapping[Family, Callable[[Path], Match | None]] = {
    Family.HOSTWEIGHTS: hostweights.recognise,
    Family.PAGEWEIGHTS: pageweights.recognise,
    Family.KTINT8: ktint8.recognise,
}


def locate(path: Path, family: Family | None = None, *, idle: bool = False) -> Match:
    """The store or entry that PATH names, as ``family`` only where one is given.

    With ``idle`` an empty folder is a base where the family says that it can be nothing else: for verbs to
    which nothing to do is an answer. Raises NotFound where there is nothing of any family, Refused for a link
    in place of a store, and IoFailed where the path cannot be looked at.
    """
    settled = settle(path)
    unseen: HwctlError | None = None
    for candidate, recognise in _RECOGNISE.items():
        if family not in (None, candidate):
            continue
        try:
            match = recognise(settled)
        except HwctlError as exc:
            # A family that knows its own by markers cannot look into another user's folder; one that knows
            # them by name still may.
            unseen = unseen or exc
            continue
        if match is not None:
            if match.key is None:
                _require_no_link(settled, path)
            return match
    if unseen is not None:
        raise unseen
    _require_no_link(settled, path)
    if idle and family is Family.KTINT8 and (match := ktint8.recognise_idle(settled)) is not None:
        return match
    if not os.path.lexists(settled):
        raise NotFound(f"{path} does not exist", path=path)
    raise NotFound(f"{path} {taken_for_one(settled, family)}", path=path)


def locate_in_time(path: Path, family: Family | None, wait: Deadline, *, awaited: bool = False) -> Match:
    """``locate``, waiting for a store that is still to come: its first publisher makes it (LEA-05).

    That is so where PATH has the shape of an artifact in one, or where the caller knows what it awaits. Any
    other path that leads nowhere is a mistake, and is told at once.
    """
    while True:
        try:
            return locate(path, family)
        except NotFound:
            if wait.expired() or not (awaited or hostweights.is_shaped(path)):
                raise
        wait.pause()


def open_store(found: Match) -> Store:
    """The store that a match lies in. Only its family is loaded: each is a good part of a start."""
    match found.family:
        case Family.HOSTWEIGHTS:
            from hwctl.stores.hostweights.store import open_store as open_weights

            return open_weights(found.root)
        case Family.KTINT8:
            from hwctl.stores.ktint8.store import open_store as open_base

            return open_base(found.root)
        case Family.PAGEWEIGHTS:
            from hwctl.stores.pageweights.store import open_store as open_cache

            return open_cache(found.root)


def entry(store: Store, match: Match, *, sizes: bool = True) -> Artifact | None:
    """The entry that a match names, ABSENT when there is none; None when it names the whole store."""
    if match.key is None:
        return None
    named = Artifact(match.family, match.root, match.key, match.path, State.ABSENT)
    return store.look(named, sizes=sizes) or named


def discover(folder: Path, family: Family | None = None) -> list[Match]:
    """The whole stores in a folder: the folder itself where it is one, and its direct children.

    Everything else is passed over: /dev/shm, for which this is made, holds the files of many programs.
    Raises IoFailed when the folder cannot be listed.
    """
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError as exc:
        raise from_os_error(exc, f"cannot list {folder}", folder) from exc
    found = []
    for path in (folder, *(folder / name for name in names)):
        try:
            match = locate(path, family)
        except HwctlError:
            continue
        if match.key is None:
            found.append(match)
    return found


def settle(path: Path) -> Path:
    """PATH made absolute with its parents resolved; the last component stays as it is, link or not."""
    try:
        absolute = path.absolute()
        if absolute.name in ("", ".."):
            return absolute.resolve(strict=True)
        return absolute.parent.resolve() / absolute.name
    except FileNotFoundError as exc:
        raise NotFound(f"{path} does not exist", path=path) from exc
    except (OSError, RuntimeError) as exc:
        # RuntimeError is how resolve() reports links that run in a circle.
        failure = exc if isinstance(exc, OSError) else OSError(errno.ELOOP, "too many symbolic links")
        raise from_os_error(failure, f"cannot look at {path}", path) from exc


def _require_no_link(settled: Path, path: Path) -> None:
    """Refuse a final link: what it points at may change between two looks, and with it what is deleted."""
    try:
        mode = os.lstat(settled).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as exc:
        raise from_os_error(exc, f"cannot look at {path}", path) from exc
    if stat.S_ISLNK(mode):
        target = os.readlink(settled)
        raise Refused(f"{path} is a symbolic link to {target}; name its target instead", path=path)
