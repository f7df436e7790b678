"""Deny markers: ``deny/<key>.json`` turns readers away from an artifact without touching it.

Only existence counts; an empty or partial marker is a normal sight and a marker all the same. Markers are
removed only under the exclusive artifact lock, which the callers hold.
"""

from __future__ import annotations

import os
from contextlib import suppress

from hwctl.fs.atomic import sync_dir, write_all
from hwctl.fs.paths import read_document
from hwctl.fs.remove import remove_tree
from hwctl.stores.hostweights import canonical
from hwctl.stores.hostweights.layout import DENY, FILE_MODE, deny_name
from hwctl.stores.hostweights.store_root import StoreRoot

_NEW_MARKER = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_REASON_LIMIT = 64 << 10
_MESSAGE_LIMIT = 1000
"""Upstream copies whole directory listings into its markers."""


def is_denied(root: StoreRoot, key: str) -> bool:
    """Whether a marker exists, in any form: a file, a dangling link, a directory. OSError passes through."""
    try:
        os.lstat(root.path / DENY / deny_name(key))
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def write_marker(root: StoreRoot, key: str, stage: str, reason: str, message: str) -> None:
    """Deny an artifact; a marker that is there stays as it is. OSError when there could be none made.

    A full disk that takes the name but not the words is no error: the empty file denies just as well.
    """
    document = {
        "schema_version": 1,
        "stage": stage,
        "reason": reason,
        "message": message[:_MESSAGE_LIMIT],
    }
    with root.folder(DENY) as folder:
        try:
            fd = os.open(deny_name(key), _NEW_MARKER, FILE_MODE, dir_fd=folder)
        except FileExistsError:
            return
        try:
            with suppress(OSError):
                write_all(fd, canonical.encode(document), 0)
            os.fsync(fd)
        finally:
            os.close(fd)
        sync_dir(folder)


def remove_marker(root: StoreRoot, key: str) -> bool:
    """Lift a denial, durably; False when there was none."""
    try:
        with root.folder(DENY) as folder:
            try:
                os.unlink(deny_name(key), dir_fd=folder)
            except IsADirectoryError:  # denies as well, and would bar the key for ever
                remove_tree(folder, deny_name(key))
            sync_dir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def reason_of(root: StoreRoot, key: str) -> str | None:
    """The reason a marker gives, None where it gives none that can be read."""
    try:
        with root.folder(DENY) as folder:
            data = read_document(deny_name(key), dir_fd=folder, limit=_REASON_LIMIT).data
        value = canonical.parse(data).value
    except (OSError, canonical.BadDocument):
        return None
    reason = value.get("reason") if isinstance(value, dict) else None
    return reason if isinstance(reason, str) else None
