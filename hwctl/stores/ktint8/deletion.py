"""Deleting what a manifest lists, and nothing else: by descriptors, through no link, across no mount.

Owns the unlinking of listed files and emptied folders, for consuming a layer and for removing a finished
tree alike. Strangers' files stay, and then the folders they lie in. What may be deleted, and under which
lock, was decided before. Staging trees go whole, by ``fs.remove``.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace

from hwctl.errors import NoRoom, Refused, from_os_error
from hwctl.fs.atomic import replace_document
from hwctl.fs.lock_file import shown_path
from hwctl.fs.openfiles import OpenFiles
from hwctl.fs.paths import opened_dir
from hwctl.fs.remove import Removal, require_no_mounts, require_same_mount
from hwctl.fs.walk import Inode, inode_of
from hwctl.stores.base import Removed
from hwctl.stores.ktint8 import layout
from hwctl.stores.ktint8.documents import ReadManifest, read_manifest
from hwctl.stores.ktint8.layers import LayerRecord, LayerState
from hwctl.stores.ktint8.manifest_text import Rewriter
from hwctl.weights.amx import Geometry

_STAYS = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)


def delete_layer(root_fd: int, geometry: Geometry, layer: LayerRecord, removal: Removal) -> None:
    """Delete a layer's listed files, its part folders and its folder, as far as they are there and empty."""
    folder = layout.layer_dir(layer.index)
    by_part: dict[str, list[str]] = {}
    for path in layer.paths(geometry):
        part, _, name = path[len(folder) + 1 :].partition("/")
        by_part.setdefault(part, []).append(name)
    try:
        with opened_dir(folder, dir_fd=root_fd) as layer_fd:
            require_same_mount(root_fd, layer_fd, folder)
            for part, names in by_part.items():
                _delete_part(layer_fd, part, names, removal)
    except (FileNotFoundError, NotADirectoryError):
        return  # gone, or a stranger's link or file of that name, which stays
    _rmdir(root_fd, folder, removal)


def _delete_part(layer_fd: int, part: str, names: Iterable[str], removal: Removal) -> None:
    try:
        with opened_dir(part, dir_fd=layer_fd) as part_fd:
            require_same_mount(layer_fd, part_fd, part)
            for name in names:
                removal.unlink(part_fd, name, regular=True)
    except (FileNotFoundError, NotADirectoryError):
        return
    _rmdir(layer_fd, part, removal)


def _rmdir(dir_fd: int, name: str, removal: Removal) -> None:
    """Remove a folder unless something that is not ours is left in it, or has its place."""
    try:
        removal.rmdir(dir_fd, name)
    except OSError as exc:
        if exc.errno not in _STAYS:
            raise


def remove_listed(
    base_fd: int, name: str, inode: Inode | None, *, ephemeral: bool, open_files: OpenFiles | None = None
) -> Removed:
    """Remove a finished tree: what its manifest lists, the manifest, the root.

    ``open_files`` tells which of the freed bytes are still held by somebody.

    Raises Refused when the manifest cannot be understood, since then nothing says what is ours; a root that
    is empty goes all the same. Where strangers' files lie, they stay with the manifest, whose layers are
    then marked as being consumed, and the result says so.
    """
    removal, left = Removal(open_files), None
    try:
        with opened_dir(name, dir_fd=base_fd) as root_fd:
            if inode is not None and inode_of(os.fstat(root_fd)) != inode:
                raise Refused(f"{name}: something else stands there now; nothing was deleted")
            require_same_mount(base_fd, root_fd, name)
            if os.listdir(root_fd):
                require_no_mounts(root_fd, name)
                _remove_content(root_fd, read_manifest(root_fd, ephemeral=ephemeral), name, removal)
            _rmdir(base_fd, name, removal)
            # The manifest is the last to be named: it stays because of the others.
            rest = sorted(os.listdir(root_fd), key=lambda entry: (entry.startswith("kt-"), entry))
            left = f"{rest[0]} is not its own and was left in it" if rest else None
    except FileNotFoundError:
        pass  # somebody else has removed it meanwhile
    except OSError as exc:
        raise from_os_error(exc, f"cannot remove {name}", shown_path(name, base_fd)) from exc
    return replace(removal.result(), left=left)


def _remove_content(root_fd: int, read: ReadManifest, name: str, removal: Removal) -> None:
    manifest, outline = read.parsed.manifest, read.parsed.outline
    if manifest is None or outline is None:
        raise Refused(
            f"{name}: {read.parsed.findings[0].message}, and only what a manifest lists is deleted; "
            "quarantine moves the tree aside whole"
        )
    if not manifest.half_consumed:
        # So that a removal that is killed leaves a tree which says it is garbage, not a damaged one.
        rewriter = Rewriter(outline, [layer.index for layer in manifest.layers])
        for layer in manifest.layers:
            rewriter.set_state(layer.index, LayerState.CONSUMING)
        with suppress(NoRoom):  # a full tmpfs is no reason not to empty it
            rewrite(root_fd, read.schema.document, rewriter.document())
    for layer in manifest.layers:
        delete_layer(root_fd, manifest.geometry, layer, removal)
    for left in os.listdir(root_fd):
        if layout.temporary_pid(left) is not None:
            removal.unlink(root_fd, left, regular=True)
    if os.listdir(root_fd) == [read.schema.document]:
        removal.unlink(root_fd, read.schema.document, regular=True)


def rewrite(root_fd: int, document: str, data: bytes) -> None:
    """Replace a manifest; NoRoom or IoFailed when that cannot be done, the old one is in place then."""
    mode = stat.S_IMODE(os.stat(document, dir_fd=root_fd, follow_symlinks=False).st_mode)
    try:
        replace_document(root_fd, document, data, mode=mode)
    except OSError as exc:
        path = shown_path(document, root_fd)
        raise from_os_error(exc, "cannot rewrite the manifest", path) from exc


def restore(root_fd: int, document: str, data: bytes) -> None:
    """Put a manifest back that was unlinked a moment ago."""
    replace_document(root_fd, document, data, mode=stat.S_IRUSR | stat.S_IWUSR)
