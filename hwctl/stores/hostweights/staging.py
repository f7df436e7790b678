"""The staging directory of one publication, from its creation to the moment it may be renamed.

Owns its name, modes and syncs, and its removal. The build lock of the key is the caller's: nobody else
makes or removes staging of that key.
"""

from __future__ import annotations

import os
import stat

from hwctl.errors import HwctlError
from hwctl.fs.atomic import create_document, sync_dir
from hwctl.fs.deadline import Deadline
from hwctl.fs.paths import open_dir
from hwctl.fs.remove import remove_tree
from hwctl.fs.walk import Inode, inode_of
from hwctl.stores.hostweights import leases
from hwctl.stores.hostweights.layout import (
    DIRECTORY_MODE,
    FILE_MODE,
    MANIFEST,
    READY,
    STAGED_MODE,
    staging_name,
)
from hwctl.stores.hostweights.records import Sealed
from hwctl.stores.hostweights.store_root import StoreRoot


class Staging:
    """One directory below ``tmp/``. ``fd`` stays valid through the rename; ``close`` it in the end."""

    def __init__(self, root: StoreRoot, tmp_fd: int, key: str) -> None:
        self.key = key
        self.name = staging_name(key)
        self._root = root
        self.tmp_fd = tmp_fd
        os.mkdir(self.name, DIRECTORY_MODE, dir_fd=tmp_fd)
        try:
            self.fd, self.inode = _opened(self.name, tmp_fd)
        except BaseException:
            os.rmdir(self.name, dir_fd=tmp_fd)
            raise

    def seal(self, sealed: Sealed) -> None:
        """Write the manifest, then the marker that makes it whole, then sync the directory."""
        create_document(self.fd, MANIFEST, sealed.manifest_bytes, FILE_MODE)
        create_document(self.fd, READY, sealed.ready_bytes, FILE_MODE)
        sync_dir(self.fd)

    def size(self) -> int:
        """Bytes in the files that are there now."""
        return sum(os.stat(name, dir_fd=self.fd).st_size for name in os.listdir(self.fd))

    def mark(self) -> None:
        """Make it unusable until the commit, should the machine die right after the rename."""
        os.fchmod(self.fd, STAGED_MODE)
        os.fsync(self.fd)

    def close(self) -> None:
        os.close(self.fd)

    def discard(self) -> None:
        """Remove what is still below ``tmp/``; after the rename there is nothing.

        Upstream does this under the artifact lock. It is taken when it is free and not waited for: a
        publisher that is told to end has no time, and the build lock protects the directory already.
        """
        if not self._is_there():
            return
        try:
            held = leases.replacing(self._root, self.key, Deadline.now())
        except HwctlError:
            held = None
        try:
            remove_tree(self.tmp_fd, self.name, inode=self.inode)
        finally:
            if held is not None:
                held.release()

    def _is_there(self) -> bool:
        try:
            os.stat(self.name, dir_fd=self.tmp_fd, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True


def _opened(name: str, tmp_fd: int) -> tuple[int, Inode]:
    """The descriptor of a directory just made, with the modes that the umask may have taken away."""
    fd = open_dir(name, dir_fd=tmp_fd)
    try:
        st = os.fstat(fd)
        if stat.S_IMODE(st.st_mode) != DIRECTORY_MODE:
            os.fchmod(fd, DIRECTORY_MODE)
    except BaseException:
        os.close(fd)
        raise
    return fd, inode_of(st)
