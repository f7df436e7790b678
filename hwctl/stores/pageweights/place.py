"""Where a page's files lie, and looking at them by descriptor: what is there, and whether it is protected.

Owns the difference between absent, unprotected and "could not find out". What the bytes say is judged in
``documents`` and ``artifact``.
"""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass

from hwctl.errors import Finding, from_os_error
from hwctl.fs.paths import NotRegular, TooLarge, read_document
from hwctl.stores.pageweights import layout
from hwctl.stores.pageweights.records import DOCUMENT_LIMIT


@dataclass(frozen=True, slots=True)
class Place:
    """The descriptor of the root, or of a folder in its quarantine, and the uid whose files count there."""

    dir_fd: int
    uid: int


@dataclass(frozen=True, slots=True)
class Looked:
    """What a name stood for: its bytes, findings, or nothing at all (``absent``)."""

    findings: tuple[Finding, ...] = ()
    absent: bool = False
    data: bytes | None = None
    stat: os.stat_result | None = None


def look_at_document(place: Place, name: str) -> Looked:
    """A locator or receipt under the file rule, read whole. Raises IoFailed for what cannot be read."""
    try:
        document = read_document(name, dir_fd=place.dir_fd, limit=DOCUMENT_LIMIT)
    except TooLarge as exc:
        message = f"is {exc.size} bytes, over the limit of {exc.limit} for a document"
        return Looked((Finding("malformed-record", message, name, exc.limit, exc.size),))
    except OSError as exc:
        return not_opened(place, name, exc)
    return Looked(layout.judge_file(document.stat, place.uid, name), data=document.data, stat=document.stat)


def not_opened(place: Place, name: str, exc: OSError) -> Looked:
    """What it means that a name could not be opened. A link to nothing counts as absent, as upstream."""
    if isinstance(exc, NotRegular):
        return Looked((layout.not_regular(exc.kind, name),))
    if exc.errno == errno.ENOENT or (exc.errno == errno.ELOOP and not exists(place, name)):
        return Looked(absent=True)
    if exc.errno == errno.ELOOP:
        return Looked((layout.not_regular("symbolic link", name),))
    raise from_os_error(exc, f"cannot read {name}", name) from exc


def exists(place: Place, name: str) -> bool:
    """Whether a name leads somewhere, links followed."""
    try:
        os.stat(name, dir_fd=place.dir_fd)
    except FileNotFoundError:
        return False
    except OSError as exc:
        # Links that run in a circle, or through something that is no folder, lead nowhere.
        if exc.errno in (errno.ELOOP, errno.ENOTDIR):
            return False
        raise from_os_error(exc, f"cannot look at {name}", name) from exc
    return True


def leads_nowhere(place: Place, name: str) -> bool:
    """Whether a name is a link that leads nowhere, which the cache's own program takes for no name at all."""
    try:
        st = os.stat(name, dir_fd=place.dir_fd, follow_symlinks=False)
    except OSError:
        return False
    return stat.S_ISLNK(st.st_mode) and not exists(place, name)
