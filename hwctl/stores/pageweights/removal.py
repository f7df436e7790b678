"""Deleting an entry's files, in the order that leaves no reader with a wrong answer at any moment.

A page's locator goes first, so that readers miss; then receipt and artifact, then the directory is synced.
What cannot go whole does not go at all: a folder in place of a file is seen before the first name is gone.
The caller holds the page's lock exclusively and has looked again under it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress

from hwctl.errors import Refused
from hwctl.fs.atomic import sync_dir
from hwctl.fs.openfiles import RecentOpenFiles
from hwctl.fs.paths import opened_dir
from hwctl.fs.remove import Removal, Removed, remove_tree, require_none_mounted
from hwctl.stores.base import Artifact, State
from hwctl.stores.pageweights import layout
from hwctl.stores.pageweights.layout import pair_of, parse_name

Files = Mapping[str, os.stat_result]
"""Names that are files, each with its stat."""


def remove_page(dir_fd: int, prefix: str, key: str, open_files: RecentOpenFiles | None = None) -> Removed:
    """Delete locator, receipt and artifact of a page; what has gone already is success."""
    return remove_names(dir_fd, (layout.locator_name(prefix), *pair_of(prefix, key)), open_files)


def remove_names(dir_fd: int, names: Iterable[str], open_files: RecentOpenFiles | None = None) -> Removed:
    """Delete names in this order and make it durable.

    Raises Refused, with nothing deleted, when one of them is a folder or is mounted.
    """
    files = files_of(dir_fd, names)
    require_none_mounted(dir_fd, files)
    return remove_files(dir_fd, files, open_files)


def remove_files(dir_fd: int, files: Files, open_files: RecentOpenFiles | None = None) -> Removed:
    """Delete what ``files_of`` has just found, in its order, and make it durable."""
    removal = Removal(None if open_files is None else open_files.of(dir_fd, *files))
    for name, st in files.items():
        removal.unlink(dir_fd, name, st)
    sync_dir(dir_fd)
    return removal.result()


def files_of(dir_fd: int, names: Iterable[str]) -> Files:
    """What lies there under these names now, in their order.

    Raises Refused for a folder that has one of them: nobody's program makes one, and it holds anything.
    """
    files = {}
    for name in names:
        with suppress(FileNotFoundError):
            files[name] = st = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
            if stat.S_ISDIR(st.st_mode):
                raise Refused(f"{name} is a directory, which is none of the cache's files; quarantine it")
    return files


def remove_entry(root_fd: int, artifact: Artifact, open_files: RecentOpenFiles) -> Removed:
    """Delete what an entry of the root or of its quarantine consists of.

    Raises Refused for strangers, and for a page whose locator is bad: nobody can say which files it means,
    so it is for a person to set it aside.
    """
    if artifact.state is State.QUARANTINED:
        return _remove_quarantined(root_fd, artifact, open_files)
    name = parse_name(artifact.path.name)
    key = artifact.detail.get("cache_key")
    if artifact.state is State.TEMPORARY:
        return remove_names(root_fd, (artifact.path.name,), open_files)
    if name.prefix is None or not isinstance(key, str):
        reason = artifact.reason or "it is none of the cache's files"
        raise Refused(f"cannot be removed as a page ({reason}); quarantine it", path=artifact.path)
    if artifact.state is State.ORPHAN:
        return remove_names(root_fd, pair_of(name.prefix, key), open_files)
    return remove_page(root_fd, name.prefix, key, open_files)


def _remove_quarantined(root_fd: int, artifact: Artifact, open_files: RecentOpenFiles) -> Removed:
    try:
        with opened_dir(layout.QUARANTINE, dir_fd=root_fd) as fd:
            seen = open_files.of(fd, artifact.path.name)
            deleted = remove_tree(fd, artifact.path.name, inode=artifact.inode, open_files=seen)
            sync_dir(fd)
    except FileNotFoundError:
        return Removed()
    return deleted
