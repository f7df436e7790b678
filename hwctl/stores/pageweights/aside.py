"""Quarantine of pages: ``ROOT/quarantine/<prefix>.<32 hex>/`` with the moved files and a note beside them.

A subdirectory is neither listed nor counted by the cache's own program. The locator moves first, so that no
reader takes the rest for a page, and comes back last. Moving needs no room for data; the note comes after
it, so that a full tmpfs cannot keep a damaged page in place (QUA-03). A move that fails half way is undone:
without its locator a page's other files are orphans. The caller holds the page's lock.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterable
from contextlib import suppress

from hwctl.errors import HwctlError, Refused, from_os_error
from hwctl.fs import space
from hwctl.fs.atomic import rename_noreplace, sync_dir
from hwctl.fs.paths import opened_dir, read_document
from hwctl.fs.walk import inode_of
from hwctl.stores import note
from hwctl.stores.base import Artifact, Family, State
from hwctl.stores.pageweights import layout
from hwctl.stores.pageweights.documents import evictable_key
from hwctl.stores.pageweights.grouping import Names, names_in_quarantine
from hwctl.stores.pageweights.layout import Kind, pair_of, parse_name, quarantined_prefix
from hwctl.stores.pageweights.records import DOCUMENT_LIMIT
from hwctl.stores.pageweights.roots import Root

_LAST = (Kind.ARTIFACT, Kind.RECEIPT, Kind.LOCATOR)


def entries(root: Root) -> list[Artifact]:
    """What lies in the quarantine: entries by its grammar, anything else as foreign."""
    try:
        with opened_dir(layout.QUARANTINE, dir_fd=root.fd) as fd:
            names = os.listdir(fd)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as exc:
        raise from_os_error(exc, "cannot list the quarantine", root.path / layout.QUARANTINE) from exc
    found = (entry(root, name) for name in names)
    return [artifact for artifact in found if artifact is not None]


def entry(root: Root, name: str) -> Artifact | None:
    """One entry of the quarantine, None when there is none of that name."""
    path = root.path / layout.QUARANTINE / name
    prefix = quarantined_prefix(name)
    try:
        with opened_dir(layout.QUARANTINE, dir_fd=root.fd) as fd:
            st = os.stat(name, dir_fd=fd, follow_symlinks=False)
            try:
                usage = space.usage(fd, name)
            except PermissionError:  # one that is closed hides no other (INS-03)
                nothing = space.Usage(0, 0, 0, 0, 0)
                why = "permission denied"
                return _artifact(root, prefix or name, path, State.UNREADABLE, st, nothing, why)
            if prefix is None or not stat.S_ISDIR(st.st_mode):
                return _artifact(root, f"{layout.QUARANTINE}/{name}", path, State.FOREIGN, st, usage)
            said = note.Note()
            with suppress(OSError), opened_dir(name, dir_fd=fd) as entry_fd:
                said = note.read(entry_fd)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as exc:
        raise from_os_error(exc, f"cannot look at {path}", path) from exc
    return _artifact(root, prefix, path, State.QUARANTINED, st, usage, said.reason, said.time_ns)


def _artifact(
    root: Root,
    key: str,
    path: os.PathLike[str],
    state: State,
    st: os.stat_result,
    usage: space.Usage,
    reason: str | None = None,
    when: int | None = None,
) -> Artifact:
    return Artifact(
        Family.PAGEWEIGHTS,
        root.path,
        key,
        root.path / path,
        state,
        bytes=usage.bytes,
        allocated=usage.allocated,
        files=usage.files,
        created=st.st_mtime_ns if when is None else when,
        inode=inode_of(st),
        owner_uid=st.st_uid,
        reason=reason,
    )


def set_aside(root: Root, prefix: str, names: Iterable[str], reason: str) -> str:
    """Move a page's files into a new entry of the quarantine, or after the rest of the page into its entry;
    the entry's name.

    Raises NoRoom, IoFailed or Refused, and then the page is as it was.
    """
    names = list(names)
    keys = {parse_name(text).key for text in names} - {None}
    begun = [entry for key in keys if key is not None and (entry := interrupted(root, prefix, key))]
    name = begun[0] if begun else f"{prefix}.{secrets.token_hex(16)}"
    try:
        with suppress(FileExistsError):
            os.mkdir(layout.QUARANTINE, 0o700, dir_fd=root.fd)
        with opened_dir(layout.QUARANTINE, dir_fd=root.fd) as quarantine_fd:
            if not begun:
                os.mkdir(name, 0o700, dir_fd=quarantine_fd)
            _move_in(root, quarantine_fd, name, names, reason)
        sync_dir(root.fd)
    except NotADirectoryError as exc:
        message = f"{layout.QUARANTINE} in the cache is no directory"
        raise Refused(message, path=root.path / layout.QUARANTINE) from exc
    except OSError as exc:
        raise from_os_error(exc, "cannot set it aside", root.path) from exc
    return name


def interrupted(root: Root, prefix: str, key: str, entries: Names | None = None) -> str | None:
    """The entry that a pair without a locator was being moved into, or back from: it holds the locator, and
    none of the pair. A bad locator may mean any pair of its prefix.

    A page that was built anew meanwhile, of other bytes, has a locator of its own and says nothing of it.
    ``entries`` spares whoever asks for many pairs a listing for each.
    """
    entries = entries or names_in_quarantine()
    if _is_there(root.fd, layout.locator_name(prefix)) and _named(root.fd, prefix) in (key, None):
        return None
    pair = pair_of(prefix, key)
    try:
        with opened_dir(layout.QUARANTINE, dir_fd=root.fd) as quarantine_fd:
            for name in entries.of(quarantine_fd, prefix):
                if _lacks(root, quarantine_fd, name, key, pair):
                    return name
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as exc:
        raise from_os_error(exc, "cannot list the quarantine", root.path / layout.QUARANTINE) from exc
    return None


def _lacks(root: Root, quarantine_fd: int, name: str, key: str, pair: tuple[str, str]) -> bool:
    """Whether an entry holds the locator of a key, but none of the pair that is in the root."""
    prefix = name[: layout.DIGEST_LENGTH]
    locator = layout.locator_name(prefix)
    with opened_dir(name, dir_fd=quarantine_fd) as entry_fd:
        there = {text for text in pair if _is_there(root.fd, text)}
        if not _is_there(entry_fd, locator) or any(_is_there(entry_fd, text) for text in there):
            return False
        return _named(entry_fd, prefix) in (key, None)


def _named(dir_fd: int, prefix: str) -> str | None:
    """The key that a locator names; None where it cannot be read, or is bad."""
    locator = layout.locator_name(prefix)
    try:
        found = evictable_key(read_document(locator, dir_fd=dir_fd, limit=DOCUMENT_LIMIT).data, prefix)
    except (OSError, ValueError):
        return None
    return found if isinstance(found, str) else None


def is_hollow(root: Root, name: str) -> bool:
    """Whether an entry holds nothing but its note: it was begun, or emptied, and then forgotten."""
    try:
        with (
            opened_dir(layout.QUARANTINE, dir_fd=root.fd) as quarantine_fd,
            opened_dir(name, dir_fd=quarantine_fd) as entry_fd,
        ):
            return set(os.listdir(entry_fd)) <= {note.NAME}
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as exc:
        raise from_os_error(exc, "cannot look into it", root.path / layout.QUARANTINE / name) from exc


def _is_there(dir_fd: int, name: str) -> bool:
    with suppress(FileNotFoundError):
        os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
        return True
    return False


def _move_in(root: Root, quarantine_fd: int, name: str, names: Iterable[str], reason: str) -> None:
    with opened_dir(name, dir_fd=quarantine_fd) as entry_fd:
        try:
            _move_all(root.fd, entry_fd, sorted(names, key=_rank, reverse=True), absent_ok=True)
        except BaseException:
            with suppress(OSError):
                os.rmdir(name, dir_fd=quarantine_fd)
            raise
        note.write(entry_fd, reason)
        sync_dir(entry_fd)
    sync_dir(quarantine_fd)


def _move_all(src_fd: int, dst_fd: int, names: Iterable[str], *, absent_ok: bool = False) -> None:
    """Move files in this order, over nothing; on any failure those that have moved go back."""
    moved: list[str] = []
    try:
        for name in names:
            try:
                rename_noreplace(src_fd, name, dst_fd, name)
            except FileNotFoundError:
                if not absent_ok:
                    raise
                continue
            moved.append(name)
    except BaseException:
        for name in reversed(moved):
            with suppress(OSError):  # the others go back all the same
                rename_noreplace(dst_fd, name, src_fd, name)
        raise


def _rank(name: str) -> int:
    """Where a file stands in the order of a way back: the locator last."""
    return _LAST.index(parse_name(name).kind)


def restore(root: Root, name: str) -> str:
    """Move the files of an entry back, locator last and over nothing; the prefix that is a page again.

    Raises Refused when a name is taken, and then everything is in quarantine as before.
    """
    prefix = quarantined_prefix(name)
    path = root.path / layout.QUARANTINE / name
    if prefix is None:
        raise Refused("is no quarantined page", path=path)
    try:
        with (
            opened_dir(layout.QUARANTINE, dir_fd=root.fd) as quarantine_fd,
            opened_dir(name, dir_fd=quarantine_fd) as entry_fd,
        ):
            names = [text for text in os.listdir(entry_fd) if parse_name(text).prefix == prefix]
            movable = [text for text in names if parse_name(text).kind in _LAST]
            _require_free(root, layout.locator_name(prefix))
            try:
                _move_all(entry_fd, root.fd, sorted(movable, key=_rank))
            except FileExistsError as exc:
                raise _taken(root, str(exc.filename)) from exc
            sync_dir(root.fd)
            with suppress(OSError):
                os.unlink(note.NAME, dir_fd=entry_fd)
            with suppress(OSError):  # what a stranger put beside it stays
                os.rmdir(name, dir_fd=quarantine_fd)
            sync_dir(quarantine_fd)
    except OSError as exc:
        raise from_os_error(exc, "cannot restore it", path) from exc
    return prefix


def _require_free(root: Root, name: str) -> None:
    if _is_there(root.fd, name):
        raise _taken(root, name)


def _taken(root: Root, name: str) -> HwctlError:
    message = f"{name} is taken; reclaim or quarantine what stands there first; nothing was moved"
    return Refused(message, path=root.path / name)
