"""Publishing a staged tree: one manifest, one rename, and nothing changed unless it succeeds.

Owns the last steps, for a run's tree and for a persistent one alike. Everything that can be wrong with a
tree was checked before. The lease goes last and comes back if the rename fails, so that at every moment the
root says whose it is (section 8 of the format).
"""

from __future__ import annotations

import errno
import hashlib
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hwctl.errors import Finding, Refused, from_os_error
from hwctl.fs.atomic import create_document, rename_noreplace, replace_document, sync_dir
from hwctl.fs.paths import read_document
from hwctl.stores.ktint8 import json_text, layout, lease, manifest_text
from hwctl.stores.ktint8.finished import unsound
from hwctl.stores.ktint8.manifest import Schema
from hwctl.stores.ktint8.root_lock import LockedRoot, inode_named
from hwctl.stores.ktint8.staging import Staging
from hwctl.stores.ktint8.tree import Plan, judge_tree

PRIVATE = 0o600
READABLE = 0o644


@dataclass(frozen=True, slots=True)
class Published:
    """Where the tree is now, and the SHA-256 of its manifest."""

    path: Path
    manifest_sha256: str


def require_free(root: LockedRoot, name: str) -> None:
    """Refuse early when the name is taken by anything, a dangling link too; the rename has the last word."""
    path = root.path.with_name(name)
    try:
        taken = inode_named(root.base_fd, name) is not None
    except OSError as exc:
        raise from_os_error(exc, "cannot look at the name to publish under", path) from exc
    if taken:
        raise _taken(path)


def _taken(path: Path) -> Refused:
    return Refused(f"{path} exists already; nothing was published", path=path)


def publish(root: LockedRoot, name: str, schema: Schema, data: bytes) -> Published:
    """Give a staging root its manifest ``data`` and its final ``name`` in the base.

    Raises Refused when the name is taken, NoRoom or IoFailed; the root then is as it was, lease and all.
    """
    base_fd, root_fd, final = root.base_fd, root.fd, root.path.with_name(name)
    require_free(root, name)
    mode = PRIVATE if schema is Schema.EPHEMERAL else READABLE
    document = schema.document
    try:
        kept = _read(root_fd, layout.LEASE, lease.SIZE_LIMIT)
        before = _read(root_fd, document, json_text.SIZE_LIMIT)
        try:
            replace_document(root_fd, document, data, mode=mode)
            if kept is not None:
                os.unlink(layout.LEASE, dir_fd=root_fd)
            if schema is Schema.PERSISTENT:
                os.fchmod(root_fd, 0o755)  # a store to be shared; its staging root was ours alone
            sync_dir(root_fd)
            rename_noreplace(base_fd, root.path.name, base_fd, name)
        except BaseException:
            # A signal may come between the rename and its return: a published tree is not to be undone.
            if inode_named(base_fd, name) != root.lock.inode:
                _undo(root_fd, document, before, kept)
            raise
        sync_dir(base_fd)
    except OSError as exc:
        if exc.errno in (errno.EEXIST, errno.ENOTEMPTY):
            raise _taken(final) from exc
        raise from_os_error(exc, "cannot publish the tree", final) from exc
    return Published(final, hashlib.sha256(data).hexdigest())


def _read(root_fd: int, name: str, limit: int) -> bytes | None:
    try:
        return read_document(name, dir_fd=root_fd, limit=limit).data
    except FileNotFoundError:
        return None


def _undo(root_fd: int, document: str, before: bytes | None, kept: bytes | None) -> None:
    """Take the manifest away and put back what was there, in this order: there may be room for one only."""
    with suppress(FileNotFoundError):
        os.unlink(document, dir_fd=root_fd)
    for name, data in ((layout.LEASE, kept), (document, before)):
        if data is not None:
            with suppress(FileExistsError):
                create_document(root_fd, name, data, PRIVATE)
    sync_dir(root_fd)


def publish_staged(staging: Staging, schema: Schema) -> Published:
    """Publish a staging root of our own, all of whose layers are finished.

    Raises Damaged when the tree is not exactly what was staged, and what ``publish`` raises.
    """
    order = staging.order
    plan = Plan(order.geometry, order.layers, documents=frozenset({layout.LEASE}), private=not order.shared)
    try:
        findings = list(judge_tree(staging.root.fd, plan))
    except OSError as exc:
        raise from_os_error(exc, "cannot look at the staged tree", staging.path) from exc
    if findings or staging.missing:
        raise unsound(staging.path, findings or [Finding("layer-unfinished", "layers are missing")])
    texts = {
        layer: manifest_text.layer_text(order.geometry, layer, digests)
        for layer, digests in staging.done.items()
    }
    origin = manifest_text.Origin(order.run_id, os.geteuid(), staging.producer, order.source)
    compose = manifest_text.ephemeral_text if schema is Schema.EPHEMERAL else manifest_text.persistent_text
    data = compose(order.geometry, texts, origin)
    return publish(staging.root, order.final, schema, data)
