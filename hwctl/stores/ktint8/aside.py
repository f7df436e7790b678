"""Quarantine: a tree moved out of every reader's sight, with a note beside it, and the way back.

Owns ``BASE/.hwctl-quarantine/<root name>.<32 hex>/``, which holds the moved tree under its old name and
``hwctl-note.json`` beside it, never inside: a tree must stay exact. The move is one rename and needs no room
for data, so that a full tmpfs cannot keep a damaged tree in place; the note comes second for that reason.
"""

from __future__ import annotations

import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from hwctl.errors import Refused, from_os_error
from hwctl.fs.atomic import rename_noreplace, sync_dir
from hwctl.fs.paths import kind_of, opened_dir
from hwctl.fs.walk import Inode, inode_of
from hwctl.stores import note
from hwctl.stores.ktint8 import layout

_SHARED = stat.S_IWOTH | stat.S_ISVTX
_OPEN_TO_ALL = 0o1777


def set_aside(base: Path, name: str, inode: Inode | None, reason: str) -> Path:
    """Move ``base/name`` into the quarantine, durably; the path of the new entry.

    Raises NoRoom, IoFailed or Refused, and then the tree is where it was.
    """
    try:
        with opened_dir(base) as base_fd:
            _require_inode(base_fd, name, inode)
            _make_quarantine(base_fd)
            with opened_dir(layout.QUARANTINE, dir_fd=base_fd) as quarantine_fd:
                entry = f"{name}.{secrets.token_hex(16)}"
                os.mkdir(entry, 0o700, dir_fd=quarantine_fd)
                _move_in(base_fd, quarantine_fd, entry, name, reason)
            sync_dir(base_fd)
    except OSError as exc:
        raise from_os_error(exc, "cannot set it aside", base / name) from exc
    return base / layout.QUARANTINE / entry


def _move_in(base_fd: int, quarantine_fd: int, entry: str, name: str, reason: str) -> None:
    with opened_dir(entry, dir_fd=quarantine_fd) as entry_fd:
        try:
            rename_noreplace(base_fd, name, entry_fd, name)
        except BaseException:
            os.rmdir(entry, dir_fd=quarantine_fd)
            raise
        note.write(entry_fd, reason)
        sync_dir(entry_fd)
    sync_dir(quarantine_fd)


def restore(base: Path, entry: str, inode: Inode | None) -> Path:
    """Move a quarantined tree back to where it was, never over anything; its path.

    Raises Refused when the place is taken or the entry holds no tree.
    """
    name = layout.parse_quarantine_name(entry)
    if name is None:
        raise Refused("is no quarantine entry", path=base / layout.QUARANTINE / entry)
    try:
        with opened_dir(base) as base_fd, opened_dir(layout.QUARANTINE, dir_fd=base_fd) as quarantine_fd:
            _require_inode(quarantine_fd, entry, inode)
            with opened_dir(entry, dir_fd=quarantine_fd) as entry_fd:
                try:
                    rename_noreplace(entry_fd, name, base_fd, name)
                except FileExistsError as exc:
                    raise Refused(f"{base / name} is taken; nothing was moved", path=base / name) from exc
                sync_dir(base_fd)
                with suppress(OSError):  # it is for people, and the tree is back
                    os.unlink(note.NAME, dir_fd=entry_fd)
            with suppress(OSError):  # whatever a stranger put beside the tree stays in quarantine
                os.rmdir(entry, dir_fd=quarantine_fd)
            sync_dir(quarantine_fd)
    except OSError as exc:
        raise from_os_error(exc, "cannot restore it", base / layout.QUARANTINE / entry) from exc
    drop_empty_quarantine(base)
    return base / name


def drop_empty_quarantine(base: Path) -> None:
    """Remove the quarantine folder once nothing is in it."""
    with suppress(OSError):
        os.rmdir(base / layout.QUARANTINE)


def _require_inode(dir_fd: int, name: str, inode: Inode | None) -> None:
    st = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    if inode is not None and inode_of(st) != inode:
        raise Refused(f"{name}: something else stands there now; nothing was moved")


def _make_quarantine(base_fd: int) -> None:
    """The quarantine folder. Where all may write to the base, as in /dev/shm, all may put their trees into
    it: sticky like the base, so that an entry is moved and removed by its owner.

    Whoever made it owns it and could rename it, as anybody could have made it first; what is in an entry
    stays closed to them. A folder of another mode is not shared, and another user's is not used then.
    """
    shared = stat.S_IMODE(os.fstat(base_fd).st_mode) & _SHARED == _SHARED
    with suppress(FileExistsError):
        os.mkdir(layout.QUARANTINE, 0o700, dir_fd=base_fd)
    st = os.stat(layout.QUARANTINE, dir_fd=base_fd, follow_symlinks=False)
    if not stat.S_ISDIR(st.st_mode):
        raise Refused(f"{layout.QUARANTINE} is a {kind_of(st.st_mode)}, not a directory")
    mode = stat.S_IMODE(st.st_mode)
    if shared and mode != _OPEN_TO_ALL and st.st_uid == os.geteuid():
        with opened_dir(layout.QUARANTINE, dir_fd=base_fd) as fd:
            os.fchmod(fd, _OPEN_TO_ALL)
    elif st.st_uid != os.geteuid() and not (shared and mode == _OPEN_TO_ALL):
        raise Refused(
            f"{layout.QUARANTINE} belongs to uid {st.st_uid} and is not open to all users (mode {mode:04o})"
        )
