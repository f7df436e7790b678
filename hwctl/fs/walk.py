"""Walking a tree by descriptor, never through a link, with entries that vanish meanwhile.

Owns moving about in a tree and nothing else: what is counted, judged or removed is for the callers.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from types import TracebackType

from hwctl.fs.paths import open_dir

Inode = tuple[int, int]


def inode_of(st: os.stat_result) -> Inode:
    """(device, inode): what tells a file from a later one of the same name."""
    return (st.st_dev, st.st_ino)


def allocated(st: os.stat_result) -> int:
    """The bytes a file takes; st_blocks counts 512 of them, whatever the block size of the file system is."""
    return st.st_blocks * 512


class Descent:
    """One open folder that moves down into children and up again.

    Only one descriptor is open at a time, so that a tree of any depth, a hostile one too, can be walked.
    Going up is by ``..``, checked against the folder that was left: if somebody moved a folder meanwhile,
    that is ESTALE, never a walk somewhere else.
    """

    def __init__(self, dir_fd: int, name: str) -> None:
        self.fd = open_dir(name, dir_fd=dir_fd)
        self._trail: list[Inode] = []

    def down(self, name: str) -> None:
        """Into the child ``name`` of the current folder. On an error the place stays the same."""
        child = open_dir(name, dir_fd=self.fd)
        try:
            here = inode_of(os.fstat(self.fd))
        except BaseException:
            os.close(child)
            raise
        self._trail.append(here)
        self._move(child)

    def up(self) -> None:
        """Back to the folder that the last ``down`` left."""
        parent = open_dir("..", dir_fd=self.fd)
        try:
            if inode_of(os.fstat(parent)) != self._trail[-1]:
                raise OSError(errno.ESTALE, "a folder was moved away while it was walked")
        except BaseException:
            os.close(parent)
            raise
        self._trail.pop()
        self._move(parent)

    def _move(self, fd: int) -> None:
        previous, self.fd = self.fd, fd
        os.close(previous)

    def close(self) -> None:
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            os.close(fd)

    def __enter__(self) -> Descent:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _exc: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self.close()


def walk_stats(dir_fd: int, name: str) -> Iterator[os.stat_result]:
    """The stat of ``name`` and of everything below it, a folder before its contents.

    What vanishes between listing and looking is passed over; other OSErrors are raised.
    """
    return (st for _, _, st in walk_entries(dir_fd, name))


def walk_entries(dir_fd: int, name: str) -> Iterator[tuple[int, str, os.stat_result]]:
    """As ``walk_stats``, each with the folder that it lies in, open until the next one is asked for, and its
    name there."""
    try:
        top = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
        yield dir_fd, name, top
        if not stat.S_ISDIR(top.st_mode):
            return
        descent = Descent(dir_fd, name)
    except FileNotFoundError:
        return
    with descent:
        pending = [_look(descent.fd)]
        while True:
            entries, folders = pending[-1]
            for entry, st in entries:
                yield descent.fd, entry, st
            entries.clear()
            if folders:
                with suppress(FileNotFoundError, NotADirectoryError):  # gone, or replaced, since the listing
                    descent.down(folders.pop())
                    pending.append(_look(descent.fd))
                continue
            pending.pop()
            if not pending:
                return
            descent.up()


def _look(fd: int) -> tuple[list[tuple[str, os.stat_result]], list[str]]:
    """The names and stats of a folder's entries, and the names of those that are folders."""
    found: list[tuple[str, os.stat_result]] = []
    folders: list[str] = []
    # A folder that was itself removed answers ENOENT when it is listed.
    with suppress(FileNotFoundError), os.scandir(fd) as entries:
        for entry in entries:
            try:
                st = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            found.append((entry.name, st))
            if stat.S_ISDIR(st.st_mode):
                folders.append(entry.name)
    return found, folders
