"""What happens to a key's entries around a build: set aside, repaired, cleaned up, contained.

All functions expect the exclusive artifact lock of the key to be held (and the build lock where staging is
touched). They raise OSError as met; which failure that is called is for the callers to say.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress

from hwctl.errors import HwctlError
from hwctl.fs.atomic import sync_dir
from hwctl.fs.openfiles import RecentOpenFiles
from hwctl.fs.remove import Removed, remove_tree, require_no_mounts, require_same_mount
from hwctl.stores.hostweights import deny, moves
from hwctl.stores.hostweights.layout import (
    ARTIFACTS,
    CLEANUP,
    QUARANTINE,
    STICKY,
    TMP,
    VALIDATION_FAILURE,
    WRITE_BITS,
    parse_quarantine,
    quarantine_name,
)
from hwctl.stores.hostweights.store_root import StoreRoot


def set_aside(root: StoreRoot, key: str, reason: str, *, keep_mark: bool = False) -> str | None:
    """Move ``artifacts/<key>`` into quarantine; its new name, None when there was nothing."""
    name = quarantine_name(key, reason)
    with root.folder(ARTIFACTS) as artifacts, root.folder(QUARANTINE) as quarantine:
        try:
            moves.move(artifacts, key, quarantine, name, keep_mark=keep_mark)
        except FileNotFoundError:
            return None
    return name


def repair_moves(root: StoreRoot, key: str) -> None:
    """Finish moves of this key that a crash interrupted after the rename."""
    with root.folder(QUARANTINE) as folder:
        for name in _entries_of(folder, key):
            st = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if stat.S_ISDIR(st.st_mode) and st.st_mode & (WRITE_BITS | STICKY):
                moves.clear_marks(folder, name)


def finish_move(root: StoreRoot, name: str) -> None:
    """Finish the move of one entry into quarantine; both folders are on the disk before it is unmarked."""
    with root.folder(ARTIFACTS) as artifacts, root.folder(QUARANTINE) as folder:
        sync_dir(artifacts)
        sync_dir(folder)
        moves.clear_marks(folder, name)


def delete_tombstones(root: StoreRoot, key: str, open_files: RecentOpenFiles | None = None) -> Removed:
    """Delete ``quarantine/<key>.cleanup.*`` for good."""
    with root.folder(QUARANTINE) as folder:
        names = [
            name
            for name in _entries_of(folder, key)
            if (parsed := parse_quarantine(name)) is not None and parsed.reason == CLEANUP
        ]
        return _remove_all(folder, names, open_files)


def discard_staging(root: StoreRoot, key: str) -> None:
    """Delete ``tmp/<key>.*``: whoever holds the build lock is the only publisher of the key."""
    with root.folder(TMP) as folder:
        _remove_all(folder, list(_entries_of(folder, key)), None)


def prepare_rebuild(root: StoreRoot, key: str) -> str | None:
    """Clear the way for a new artifact of this key; what is there goes into quarantine, under the name that
    is returned."""
    repair_moves(root, key)
    name = set_aside(root, key, VALIDATION_FAILURE)
    delete_tombstones(root, key)
    deny.remove_marker(root, key)
    discard_staging(root, key)
    return name


def clean_up(root: StoreRoot, key: str, open_files: RecentOpenFiles | None = None) -> Removed:
    """Remove the artifact of this key: out of sight first, then deleted, then its deny marker.

    Refused when something is mounted in it, and then it is as it was. Killed in between it leaves a
    tombstone, which the next cleanup or build of the key deletes. Other quarantine entries, staging and lock
    files are left alone.
    """
    _require_no_mounts(root, key)
    repair_moves(root, key)
    set_aside(root, key, CLEANUP)
    deleted = delete_tombstones(root, key, open_files)
    deny.remove_marker(root, key)
    return deleted


def _require_no_mounts(root: StoreRoot, key: str) -> None:
    with root.folder(ARTIFACTS) as artifacts, suppress(FileNotFoundError, NotADirectoryError):
        fd = os.open(key, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=artifacts)
        try:
            require_same_mount(artifacts, fd, key)
            require_no_mounts(fd, key)
        finally:
            os.close(fd)


def contain(root: StoreRoot, key: str, reason: str) -> dict[str, object]:
    """Take a bad entry out of use however much fails; what was reached, in upstream's words.

    Marked first, since that needs no space, then moved.
    """
    told: dict[str, object] = {}
    try:
        with root.folder(ARTIFACTS) as folder:
            moves.mark_invalid(folder, key)
        told["invalidation_marker"] = "durable"
    except OSError as exc:
        told["invalidation_marker_error"] = error_details(exc)
    try:
        moved = set_aside(root, key, reason, keep_mark=True)
        told["quarantine"] = "already_absent" if moved is None else "completed"
    except OSError as exc:
        told["quarantine"] = "failed"
        told["quarantine_error"] = error_details(exc)
    return told


def is_contained(told: dict[str, object]) -> bool:
    """Whether ``contain`` made sure that no reader takes the entry."""
    return told.get("invalidation_marker") == "durable" or told.get("quarantine") != "failed"


def error_details(exc: OSError | HwctlError) -> dict[str, object]:
    """An error as a document for ``details``."""
    errno = exc.errno if isinstance(exc, OSError) else None
    return {"exception_type": type(exc).__name__, "errno": errno, "message": str(exc)}


def _entries_of(folder: int, key: str) -> Iterator[str]:
    prefix = f"{key}."
    return (name for name in sorted(os.listdir(folder)) if name.startswith(prefix))


def _remove_all(folder: int, names: list[str], open_files: RecentOpenFiles | None) -> Removed:
    removed = Removed()
    for name in names:
        seen = None if open_files is None else open_files.of(folder, name)
        removed += remove_tree(folder, name, open_files=seen)
    return removed
