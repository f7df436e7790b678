"""What would make every publication into a store fail: asked before anything in it is touched.

Owns what upstream finds out too late, after the artifact that was there has been denied and set aside, or
after hours of writing. Whether a store may be opened at all is judged in ``opening``.
"""

from __future__ import annotations

from hwctl.errors import Refused, from_os_error
from hwctl.fs.mounts import mount_id, mount_of_fd
from hwctl.stores.hostweights.layout import ARTIFACTS, DOMAIN, QUARANTINE, TMP
from hwctl.stores.hostweights.store_root import StoreRoot
from hwctl.stores.hostweights.verdict import Code, Stage, coded


def require_findable(root: StoreRoot) -> None:
    """Refuse a domain_uuid that is not ASCII, before anything is looked up.

    Readers encode it as ASCII for every lookup: with another they deny sound artifacts, and each rebuild
    fails the same way and leaves one more copy in quarantine.
    """
    if root.domain is None or root.domain.domain_uuid.isascii():
        return
    path, uuid = root.path / DOMAIN, root.domain.domain_uuid
    message = f"{path}: the domain_uuid {uuid!r} is not ASCII, so that no reader finds anything here"
    raise coded(Refused(message, path=path), Stage.CONFIGURATION, Code.DOMAIN_POLICY_MISMATCH)


def require_one_mount(root: StoreRoot) -> None:
    """Refuse folders on different mounts, before anything is built; IoFailed when it cannot be found out.

    Artifacts are renamed from one of these folders into the other, and rename(2) says EXDEV even between two
    bind mounts of one file system (PUB-02).
    """
    found: dict[str, int | None] = {}
    for name in (TMP, ARTIFACTS, QUARANTINE):
        path = root.path / name
        try:
            with root.folder(name) as folder:
                found[name] = mount_id(folder)
                if found[name] == next(iter(found.values())):
                    continue
                fs_type = mount_of_fd(folder).fs_type
        except FileNotFoundError:
            continue
        except OSError as exc:
            raise from_os_error(exc, f"cannot look into {path}", path) from exc
        message = f"{path} is a mount of its own ({fs_type}), and nothing can be renamed into it"
        details: dict[str, object] = {"fs_type": fs_type, "operation": "rename"}
        raise coded(Refused(message, path=path, details=details), Stage.DOMAIN, Code.DOMAIN_UNAVAILABLE)
