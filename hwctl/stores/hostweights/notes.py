"""Notes of the operator: why and when an artifact was set aside, in ``hwctl/notes/`` below the root.

Upstream ignores the folder. A note is for people and never decides anything, so one that cannot be written,
read or removed stops nobody.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from hwctl.fs.atomic import create_document, sync_dir
from hwctl.fs.paths import opened_dir, read_document
from hwctl.stores.hostweights import canonical
from hwctl.stores.hostweights.layout import DIRECTORY_MODE, FILE_MODE, NOTES
from hwctl.stores.hostweights.store_root import StoreRoot

_LIMIT = 64 << 10


def write_note(root: StoreRoot, name: str, reason: str) -> None:
    """Note why ``quarantine/<name>`` is there, if that can be written."""
    document = {"schema_version": 1, "reason": reason, "time_ns": time.time_ns(), "uid": os.geteuid()}
    with suppress(OSError):
        folder = root.path
        for part in Path(NOTES).parts:
            folder = folder / part
            with suppress(FileExistsError):
                os.mkdir(folder, DIRECTORY_MODE)
        with opened_dir(folder) as fd:
            create_document(fd, f"{name}.json", canonical.encode(document), FILE_MODE)
            sync_dir(fd)


def reason_of(root: StoreRoot, name: str) -> str | None:
    """The reason noted for a quarantine entry."""
    data = read_note(root, name)
    if data is None:
        return None
    try:
        value = canonical.parse(data).value
    except canonical.BadDocument:
        return None
    reason = value.get("reason") if isinstance(value, dict) else None
    return reason if isinstance(reason, str) else None


def read_note(root: StoreRoot, name: str) -> bytes | None:
    """A note as it lies there, None when there is none that can be read."""
    try:
        with opened_dir(root.path / NOTES) as fd:
            return read_document(f"{name}.json", dir_fd=fd, limit=_LIMIT).data
    except OSError:
        return None


def remove_note(root: StoreRoot, name: str) -> None:
    """Drop the note of an entry that has left the quarantine."""
    with suppress(OSError), opened_dir(root.path / NOTES) as fd:
        os.unlink(f"{name}.json", dir_fd=fd)
