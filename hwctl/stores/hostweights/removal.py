"""Removing entries for good, and setting artifacts aside or back by an operator's hand.

The exclusive lease of the key is the caller's. Upstream's own moves and cleanups, which these build upon,
are in ``quarantine``.
"""

from __future__ import annotations

import errno
import os

from hwctl.errors import NotFound, Refused, from_os_error
from hwctl.fs.atomic import sync_dir
from hwctl.fs.openfiles import RecentOpenFiles
from hwctl.fs.remove import Removed, remove_file, remove_tree
from hwctl.fs.walk import inode_of
from hwctl.stores.base import Artifact, State
from hwctl.stores.hostweights import deny, moves, notes, quarantine
from hwctl.stores.hostweights.layout import (
    ARTIFACTS,
    DENY,
    OPERATOR,
    QUARANTINE,
    Place,
)
from hwctl.stores.hostweights.places import Spot
from hwctl.stores.hostweights.store_root import StoreRoot


def remove(root: StoreRoot, spot: Spot, artifact: Artifact, open_files: RecentOpenFiles) -> Removed:
    """Delete one entry. Raises Refused for a stranger, OSError as met."""
    if artifact.state is State.FOREIGN:
        raise Refused(f"not removed: {artifact.reason}", path=artifact.path)
    _require_same(artifact)
    if spot.place is Place.ARTIFACT and spot.key is not None:
        return quarantine.clean_up(root, spot.key, open_files)
    if spot.place is Place.DENY and spot.key is not None:
        return _remove_marker(root, spot.name)
    if spot.place is Place.ROOT:
        return _remove_document_temporary(root, spot.name)
    with root.folder(spot.place.value) as folder:
        seen = open_files.of(folder, spot.name)
        deleted = remove_tree(folder, spot.name, inode=artifact.inode, open_files=seen)
        sync_dir(folder)
    if spot.place is Place.QUARANTINE:
        notes.remove_note(root, spot.name)
    return deleted


def _require_same(artifact: Artifact) -> None:
    try:
        now = inode_of(os.lstat(artifact.path))
    except FileNotFoundError:
        raise NotFound("is gone", path=artifact.path) from None
    if artifact.inode is not None and now != artifact.inode:
        raise Refused("something else stands there now; nothing was deleted", path=artifact.path)


def _remove_marker(root: StoreRoot, name: str) -> Removed:
    with root.folder(DENY) as folder:
        deleted = remove_tree(folder, name)  # be it a file or a folder
        sync_dir(folder)
    return deleted


def _remove_document_temporary(root: StoreRoot, name: str) -> Removed:
    with root.folder("") as folder:
        return remove_file(folder, name)


def set_aside(root: StoreRoot, spot: Spot, artifact: Artifact, reason: str) -> Spot:
    """Move an artifact into quarantine as the operator's, with a note of the reason; where it is now.

    On a disk too full for the rename the entry stays, marked invalid, and the NoRoom says so (QUA-03).
    Of an entry that is in quarantine already, the move is brought to its end.
    """
    if spot.place is Place.QUARANTINE and spot.key is not None:
        _require_same(artifact)
        quarantine.finish_move(root, spot.name)
        return spot
    if spot.place is not Place.ARTIFACT or spot.key is None:
        raise Refused(
            f"only an artifact can be set aside, not one in {spot.place.value}/", path=artifact.path
        )
    _require_same(artifact)
    try:
        name = quarantine.set_aside(root, spot.key, OPERATOR, keep_mark=True)
    except OSError as exc:
        doing = f"cannot move {artifact.path} into quarantine"
        if exc.errno in (errno.ENOSPC, errno.EDQUOT):
            doing += "; it is marked as invalid where it is"
        raise from_os_error(exc, doing, artifact.path) from exc
    if name is None:
        raise NotFound("is gone", path=artifact.path)
    deny.remove_marker(root, spot.key)
    notes.write_note(root, name, reason)
    return Spot(Place.QUARANTINE, name, spot.key)


def restore(root: StoreRoot, spot: Spot, artifact: Artifact) -> Spot:
    """Move a quarantined entry back, or lift the denial of one that is in its place.

    Until the last step no reader takes it: the sticky bit goes after both folders are on the disk and the
    deny marker is lifted. Whether the entry is sound was checked by the caller.
    """
    assert spot.key is not None
    _require_same(artifact)
    if spot.place is Place.QUARANTINE:
        with root.folder(QUARANTINE) as quarantined, root.folder(ARTIFACTS) as artifacts:
            try:
                moves.move(quarantined, spot.name, artifacts, spot.key, hold=True)
            except FileExistsError:
                path = root.path / ARTIFACTS / spot.key
                raise Refused(f"not restored: {path} is there already", path=artifact.path) from None
    elif spot.place is not Place.ARTIFACT:
        raise Refused(f"only what is quarantined or denied can be restored, not {artifact.state}")
    deny.remove_marker(root, spot.key)
    with root.folder(ARTIFACTS) as artifacts:
        moves.clear_marks(artifacts, spot.key)
    if spot.place is Place.QUARANTINE:
        notes.remove_note(root, spot.name)
    return Spot(Place.ARTIFACT, spot.key, spot.key)
