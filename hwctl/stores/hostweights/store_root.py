"""A store's root as it lies there: what a reader finds, and what would keep every reader out.

Nothing is created, locked or compared with anybody's wishes; opening a store to write in it is ``opening``.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from hwctl.errors import Finding, HwctlError, from_os_error
from hwctl.fs.mounts import mount_of, storage_class
from hwctl.fs.paths import open_dir, opened_dir, read_document
from hwctl.stores.hostweights.domain import Capacity, Domain, parse_domain, parse_policy
from hwctl.stores.hostweights.events import Event, of_file
from hwctl.stores.hostweights.fields import UNSUPPORTED_SCHEMA, Problems
from hwctl.stores.hostweights.layout import DOMAIN, METADATA_LIMIT, OTHERS_WRITE, POLICY, SUBDIRECTORIES

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class StoreRoot:
    """A store as it was opened. ``trusted`` off skips the rules about owners and write bits, which is how an
    opener of vLLM-Omni's may be configured; no document of the store records it.

    ``domain`` and ``capacity`` are None where the documents are absent or damaged. ``problems`` are the
    reasons why no reader would open the store, ``unknown`` what could not be found out about it, and
    ``missing`` what the next writer would make again.
    """

    path: Path
    owner_uid: int
    domain: Domain | None
    capacity: Capacity | None
    problems: tuple[Finding, ...] = ()
    trusted: bool = True
    unknown: tuple[HwctlError, ...] = ()
    missing: tuple[str, ...] = ()

    @property
    def trusted_uid(self) -> int | None:
        """The uid everything has to belong to, None when that is not looked at."""
        return self.owner_uid if self.trusted else None

    @property
    def later_schema(self) -> Finding | None:
        """What says that a later version made this store, None where none does."""
        return next((found for found in self.problems if found.code == UNSUPPORTED_SCHEMA), None)

    @contextmanager
    def folder(self, name: str) -> Iterator[int]:
        """The descriptor of a sub-directory for the length of a with-block. OSError passes through."""
        with opened_dir(self.path / name) as fd:
            yield fd


def look_at_root(path: Path) -> StoreRoot:
    """A store as a reader finds it: nothing is created, locked or compared with wishes.

    ``path`` is resolved. Raises IoFailed when the root itself cannot be looked at.
    """
    try:
        fd = open_dir(path)
    except OSError as exc:
        raise from_os_error(exc, f"cannot open the store {path}", path) from exc
    seen = _Seen()
    try:
        owner = os.fstat(fd).st_uid
        domain = _read(fd, path, DOMAIN, parse_domain, seen)
        capacity = _read(fd, path, POLICY, parse_policy, seen)
    finally:
        os.close(fd)
    if domain is not None:
        seen.events += _judge_place(path, domain)
    for folder in folders(path):
        found = judge_folder(folder, owner)
        seen.events += [] if found is None else [found]
    seen.missing += [name for name in SUBDIRECTORIES if not os.path.lexists(path / name)]
    return StoreRoot(
        path,
        owner,
        domain,
        capacity,
        tuple(event for event in seen.events if isinstance(event, Finding)),
        unknown=tuple(event for event in seen.events if isinstance(event, HwctlError)),
        missing=tuple(seen.missing),
    )


@dataclass(slots=True)
class _Seen:
    events: list[Event] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


def _read(
    fd: int,
    root: Path,
    name: str,
    parse: Callable[[bytes, str], tuple[_T | None, Problems]],
    seen: _Seen,
) -> _T | None:
    shown = str(root / name)
    try:
        document = read_document(name, dir_fd=fd, limit=METADATA_LIMIT)
    except FileNotFoundError:
        seen.missing.append(name)
        return None
    except OSError as exc:
        seen.events.append(of_document(exc, shown))
        return None
    value, problems = parse(document.data, shown)
    if document.stat.st_nlink != 1:
        problems.add("hard-linked", f"has {document.stat.st_nlink} links", expected=1)
    seen.events += problems.found
    return None if problems.found else value


def _judge_place(root: Path, domain: Domain) -> list[Finding]:
    """Whether the store lies on what its document says: one that was moved cannot be opened."""
    fs_type = mount_of(root).fs_type
    lies_on = (fs_type, storage_class(fs_type))
    recorded = (domain.filesystem_type, domain.storage_class)
    if lies_on == recorded:
        return []
    shown = str(root / DOMAIN)
    message = f"{shown} records {recorded[0]} ({recorded[1]}), the store lies on {lies_on[0]} ({lies_on[1]})"
    return [Finding("storage-class", message, shown, list(recorded), list(lies_on))]


def of_document(exc: OSError, shown: str) -> Event:
    """What an error on reading a domain document means: damage, or not being able to find out."""
    return of_file(exc, shown, "")


def folders(root: Path) -> tuple[Path, ...]:
    """The root and its five folders."""
    return (root, *(root / name for name in SUBDIRECTORIES))


def judge_folder(folder: Path, uid: int) -> Event | None:
    """Kind, owner and mode by lstat; None for a folder as it should be, or for none at all."""
    shown = str(folder)
    try:
        st = os.lstat(folder)
    except FileNotFoundError:
        return None
    except OSError as exc:
        return from_os_error(exc, f"cannot look at {shown}", shown)
    if not stat.S_ISDIR(st.st_mode):
        return Finding("not-a-directory", f"{shown} is not a directory", shown)
    if st.st_uid != uid:
        message = f"{shown} belongs to uid {st.st_uid}, the store's owner has to be uid {uid}"
        if uid == os.geteuid():
            message = f"{shown} belongs to uid {st.st_uid}, the caller is uid {uid}; a store has one owner"
        return Finding("foreign-owner", message, shown, uid, st.st_uid)
    if st.st_mode & OTHERS_WRITE:
        mode = stat.S_IMODE(st.st_mode)
        return Finding("writable", f"{shown} can be written by others (mode {mode:04o})", shown, None, mode)
    return None
