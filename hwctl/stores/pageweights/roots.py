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
from hwctl.fs.mounts import Mount, mount_of_fd, storage_class
from hwctl.fs.paths import make_parents, open_dir
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
        require_own(root)
        yield root


def require_own(root: Root) -> None:
    """Refuse a root of somebody else, or one that others can reach into."""
    owner, caller = root.place.uid, os.geteuid()
    if owner != caller:
        message = f"{root.path} belongs to uid {owner}; uid {caller} does not write there"
        raise Refused(message, path=root.path)
    if root.findings:
        raise Refused(f"{root.path}: {root.findings[0].message}", path=root.path)


def make(path: Path) -> None:
    """Make a missing root; whether an existing one is fit is seen when it is opened."""
    with suppress(FileExistsError):
        try:
            make_parents(path, layout.ROOT_MODE)
            os.mkdir(path, layout.ROOT_MODE)
        except FileExistsError:
            raise
        except OSError as exc:
            raise from_os_error(exc, f"cannot make {path}", path) from exc


def require_fit_for_publishing(root: Root) -> None:
    """Refuse file systems where locks or renames do not hold (PUB-02, LEA-02), before the first byte."""
    if require_local(root.path, mount_of_fd(root.fd)) == "unknown":
        probe(root.fd)


def require_local(path: Path, mount: Mount) -> str:
    """The kind of storage that a root lies on, or will; Refused for a remote one."""
    kind = storage_class(mount.fs_type)
    if kind == "remote":
        message = f"{path} lies on a remote file system ({mount.fs_type}), where locks exclude nobody"
        raise Refused(message, path=path, details={"fs_type": mount.fs_type})
    return kind


def is_read_only(root: Root) -> bool:
    """Whether the root lies on a read-only mount: its pages can be used and nothing can be made."""
    return bool(os.fstatvfs(root.fd).f_flag & os.ST_RDONLY)


def require_writable(path: Path) -> None:
    """Ask without writing whether names can be made in a folder, or in the nearest one above that exists.

    Raises IoFailed as the first write would.
    """
    there = path.absolute()
    while not os.path.lexists(there) and there != there.parent:
        there = there.parent
    if os.access(there, os.W_OK | os.X_OK, effective_ids=True):
        return
    try:
        number = errno.EROFS if os.statvfs(there).f_flag & os.ST_RDONLY else errno.EACCES
        raise OSError(number, os.strerror(number))
    except OSError as exc:
        raise from_os_error(exc, f"cannot write into {there}", path) from exc


def own_budget(fd: int) -> int:
    """The budget in bytes that the cache's own program gives itself for a root without being told one."""
    facts = os.fstatvfs(fd)
    memory_page = os.sysconf("SC_PAGE_SIZE")
    physical = os.sysconf("SC_PHYS_PAGES") * memory_page
    return layout.default_budget(memory_page, physical, facts.f_blocks * facts.f_frsize)
