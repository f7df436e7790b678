"""The root of a cache: opened by descriptor, judged, and made where a writer may make it.

An existing root that is open to others is reported and never repaired: as root, a chmod could hit another
user's folder. Names inside it are ``layout``'s.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from hwctl.errors import Finding, NotFound, Refused, from_os_error
from hwctl.fs.mounts import mount_of_fd, storage_class
from hwctl.fs.paths import open_dir
from hwctl.fs.probe import probe
from hwctl.stores.pageweights import layout
from hwctl.stores.pageweights.place import Place


@dataclass(frozen=True, slots=True)
class Root:
    """An open root. ``findings`` say what is wrong with its mode; its owner is ``place.uid``."""

    path: Path
    place: Place
    findings: tuple[Finding, ...]
    device: int

    @property
    def fd(self) -> int:
        return self.place.dir_fd


@contextmanager
def opened(path: Path) -> Iterator[Root]:
    """Open a root for looking, judged against whoever owns it.

    Raises NotFound when it is absent, Refused when it is a link or no directory, IoFailed otherwise.
    """
    try:
        fd = open_dir(path)
    except FileNotFoundError as exc:
        raise NotFound(f"{path} does not exist", path=path) from exc
    except OSError as exc:
        if exc.errno in (errno.ENOTDIR, errno.ELOOP):
            raise Refused(f"{path} is a link or no directory; name the root itself", path=path) from exc
        raise from_os_error(exc, f"cannot open {path}", path) from exc
    try:
        st = os.fstat(fd)
        yield Root(path, Place(fd, st.st_uid), layout.judge_root(st, st.st_uid), st.st_dev)
    finally:
        os.close(fd)


@contextmanager
def writable(path: Path, *, create: bool = False) -> Iterator[Root]:
    """Open a root for changing it: only its owner may, and only while nobody else can reach into it.

    With ``create`` a missing root is made 0700, its parents as the umask says.
    """
    if create:
        make(path)
    with opened(path) as root:
        owner, caller = root.place.uid, os.geteuid()
        if owner != caller:
            raise Refused(f"{path} belongs to uid {owner}; uid {caller} does not write there", path=path)
        if root.findings:
            raise Refused(f"{path}: {root.findings[0].message}", path=path)
        yield root


def make(path: Path) -> None:
    """Make a missing root; whether an existing one is fit is seen when it is opened."""
    with suppress(FileExistsError):
        try:
            os.makedirs(path.absolute().parent, exist_ok=True)
            os.mkdir(path, layout.ROOT_MODE)
        except FileExistsError:
            raise
        except OSError as exc:
            raise from_os_error(exc, f"cannot make {path}", path) from exc


def require_fit_for_publishing(root: Root) -> None:
    """Refuse file systems where locks or renames do not hold (PUB-02, LEA-02), before the first byte."""
    mount = mount_of_fd(root.fd)
    kind = storage_class(mount.fs_type)
    if kind == "remote":
        message = f"{root.path} lies on a remote file system ({mount.fs_type}), where locks exclude nobody"
        raise Refused(message, path=root.path, details={"fs_type": mount.fs_type})
    if kind == "unknown":
        probe(root.fd)


def own_budget(fd: int) -> int:
    """The budget in bytes that the cache's own program gives itself for a root without being told one."""
    facts = os.fstatvfs(fd)
    memory_page = os.sysconf("SC_PAGE_SIZE")
    physical = os.sysconf("SC_PHYS_PAGES") * memory_page
    return layout.default_budget(memory_page, physical, facts.f_blocks * facts.f_frsize)
