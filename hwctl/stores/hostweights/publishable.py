"""What would make every publication into a store fail: asked before anything in it is touched.

Owns what upstream finds out too late, after the artifact that was there has been denied and set aside, or
after hours of writing. Whether a store may be opened at all is judged in ``opening``.
"""

from __future__ import annotations

from contextlib import suppress

from hwctl.errors import Refused, from_os_error
from hwctl.fs.mounts import mount_id, mount_of_fd
from hwctl.stores.hostweights.layout import ARTIFACTS, DOMAIN, QUARANTINE, TMP
from hwctl.stores.hostweights.store_root import StoreRoot
from hwctl.stores.hostweights.verdict import Code, Stage, coded


def require_publishable(root: StoreRoot) -> None:
    """Refused, with what has to be mended; IoFailed when it cannot be found out."""
    _require_readable_uuid(root)
    try:
        _require_one_mount(root)
    except OSError as exc:
        path = exc.filename or root.path
        raise from_os_error(exc, f"cannot look into the store {root.path}", path) from exc


def _require_readable_uuid(root: StoreRoot) -> None:
    """Readers encode it as ASCII for every lookup: with another they deny sound artifacts, and each rebuild
    fails the same way and leaves one more copy in quarantine."""
    if root.domain is None or root.domain.domain_uuid.isascii():
        return
    path, uuid = root.path / DOMAIN, root.domain.domain_uuid
    message = f"{path}: the domain_uuid {uuid!r} is not ASCII, so that no reader finds anything here"
    raise coded(Refused(message, path=path), Stage.CONFIGURATION, Code.DOMAIN_POLICY_MISMATCH)


def _require_one_mount(root: StoreRoot) -> None:
    """Artifacts are renamed from one of these folders into the other; rename(2) says EXDEV even between two
    bind mounts of one file system (PUB-02)."""
    found: dict[str, int | None] = {}
    for name in (TMP, ARTIFACTS, QUARANTINE):
        with suppress(FileNotFoundError), root.folder(name) as folder:
            found[name] = mount_id(folder)
            if found[name] == next(iter(found.values())):
                continue
            mount, path = mount_of_fd(folder), root.path / name
            message = f"{path} is a mount of its own ({mount.fs_type}), and nothing can be renamed into it"
            details: dict[str, object] = {"fs_type": mount.fs_type, "operation": "rename"}
            raise coded(Refused(message, path=path, details=details), Stage.DOMAIN, Code.DOMAIN_UNAVAILABLE)
