"""The commit of a publication: rename, final mode, syncs; and what to do when the name is taken or it fails.

Before the last sync the outcome is uncertain, after it the artifact is authoritative. Whatever interrupts
the steps in between, no reader is handed an artifact that might not be there after a power cut.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from hwctl.errors import HwctlError, IoFailed, Refused, from_os_error
from hwctl.fs.atomic import rename_noreplace, sync_dir
from hwctl.fs.deadline import Deadline
from hwctl.fs.paths import opened_dir, read_document
from hwctl.fs.walk import inode_of
from hwctl.stores.hostweights import canonical, deny, leases, moves, quarantine
from hwctl.stores.hostweights.fields import Problems
from hwctl.stores.hostweights.layout import (
    ARTIFACT_MODE,
    ARTIFACTS,
    IDENTITY_COLLISION,
    MANIFEST,
    METADATA_LIMIT,
    PUBLICATION_FAILURE,
    QUARANTINE,
    quarantine_name,
)
from hwctl.stores.hostweights.manifest import parse_manifest
from hwctl.stores.hostweights.manifest_text import read_text
from hwctl.stores.hostweights.records import Manifest, Sealed
from hwctl.stores.hostweights.staging import Staging
from hwctl.stores.hostweights.store_root import StoreRoot
from hwctl.stores.hostweights.verdict import Code, Stage, coded


@dataclass(frozen=True, slots=True)
class Published:
    """An artifact that is authoritative. ``ours`` is False when the very same one had been there already."""

    path: Path
    manifest_sha256: str
    ours: bool = True


def commit(root: StoreRoot, staging: Staging, sealed: Sealed, deadline: Deadline) -> Published:
    """Turn marked staging into the artifact of its key, under the exclusive artifact lock.

    Raises Busy when the lock is not to be had, Refused for a collision, IoFailed in upstream's words
    publication_failed when the commit itself failed and the entry was contained.
    """
    path = root.path / ARTIFACTS / staging.key
    held = leases.replacing(root, staging.key, deadline)
    with held, root.folder(ARTIFACTS) as artifacts:
        try:
            rename_noreplace(staging.tmp_fd, staging.name, artifacts, staging.key)
            _finish(root, staging, artifacts)
        except FileExistsError:
            return _meet(root, staging, artifacts, sealed)
        except OSError as exc:
            if not _is_renamed(staging, artifacts):
                raise
            raise _contained(root, staging.key, exc) from exc
        except BaseException:
            # A signal. The artifact is complete, and ending what is left takes less than taking it back.
            if _is_renamed(staging, artifacts):
                _finish(root, staging, artifacts)
            raise
    return Published(path, sealed.ready.manifest_sha256)


def _finish(root: StoreRoot, staging: Staging, artifacts: int) -> None:
    """From the rename to the commit; may be run twice. The deny marker goes after the rename, since a
    reader that came before it would have denied the new artifact."""
    os.fchmod(staging.fd, ARTIFACT_MODE)
    os.fsync(staging.fd)
    sync_dir(staging.tmp_fd)
    deny.remove_marker(root, staging.key)
    sync_dir(artifacts)


def _is_renamed(staging: Staging, artifacts: int) -> bool:
    try:
        return inode_of(os.stat(staging.key, dir_fd=artifacts, follow_symlinks=False)) == staging.inode
    except OSError:
        return False


def _contained(root: StoreRoot, key: str, exc: OSError) -> HwctlError:
    told = quarantine.contain(root, key, PUBLICATION_FAILURE)
    path = root.path / ARTIFACTS / key
    if not quarantine.is_contained(told):
        error = from_os_error(exc, f"cannot commit {path}, and cannot take it back", path)
        error.details.update(containment=told, outcome_uncertain=True)
        return coded(error, Stage.DOMAIN, Code.DOMAIN_UNAVAILABLE)
    details: dict[str, object] = {"containment": told, "cause": quarantine.error_details(exc)}
    failed = IoFailed(f"cannot commit {path}: {exc.strerror}; it was taken back", path=path, details=details)
    return coded(failed, Stage.LIFECYCLE, Code.PUBLICATION_FAILED)


def _meet(root: StoreRoot, staging: Staging, artifacts: int, sealed: Sealed) -> Published:
    """The name is taken by a publisher that ignored the build lock: join it, or refuse and keep both."""
    path = root.path / ARTIFACTS / staging.key
    there = _read_manifest(staging.key, artifacts)
    if there is None:
        error = IoFailed(
            f"{path} is there and cannot be read",
            path=path,
            retryable=True,
            details={"competing_entry": "preserved"},
        )
        raise coded(error, Stage.DOMAIN, Code.DOMAIN_UNAVAILABLE)
    manifest, digest = there
    ours = sealed.manifest
    if _same(manifest, ours):
        deny.remove_marker(root, staging.key)
        return Published(path, digest, ours=False)
    name = quarantine_name(staging.key, IDENTITY_COLLISION)
    with root.folder(QUARANTINE) as folder:
        moves.move(staging.tmp_fd, staging.name, folder, name)
    collision = Refused(
        f"{path} holds other content under the same identity; the new one lies in {QUARANTINE}/{name}",
        path=path,
        details={
            "existing_content_sha256": manifest.artifact_content_sha256,
            "new_content_sha256": ours.artifact_content_sha256,
            "quarantined_as": name,
        },
    )
    raise coded(collision, Stage.VALIDATION, Code.IDENTITY_COLLISION)


def _read_manifest(key: str, artifacts: int) -> tuple[Manifest, str] | None:
    try:
        with opened_dir(key, dir_fd=artifacts) as fd:
            text = read_text(read_document(MANIFEST, dir_fd=fd, limit=METADATA_LIMIT).data)
    except (OSError, canonical.BadDocument):
        return None
    manifest = parse_manifest(text.value, Problems(MANIFEST), text.entries)
    return None if manifest is None else (manifest, text.sha256)


def _same(there: Manifest, ours: Manifest) -> bool:
    return (
        there.identity.key == ours.identity.key
        and there.artifact_content_sha256 == ours.artifact_content_sha256
        and there.producer_schema == ours.producer_schema
        and there.restorer_schema == ours.restorer_schema
        and canonical.encode(there.format_metadata) == canonical.encode(ours.format_metadata)
    )
