"""mountinfo as bytes, and the mount that really shows at a path."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hwctl.fs import mounts

TABLE = (
    rb"""22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 master:2 - ext4 /dev/vda rw,discard
30 27 0:27 / /dev/shm rw - tmpfs tmpfs rw,size=64k
31 27 0:28 /sub /data/with\040space\134and\011tab rw - xfs /dev/sd\040b rw
32 27 0:29 / /data rw - ext4 /dev/one rw
33 27 0:30 / /data rw - nfs4 server:/export rw
34 27 0:31 / /caf"""
    + b"\xe9"
    + rb""" rw - fuse.gcsfuse bucket rw
not a line of mountinfo
"""
)


def test_lines_are_read_as_bytes() -> None:
    table = mounts.parse_mountinfo(TABLE)
    assert len(table) == 7
    spaced = table[3]
    assert (spaced.point, spaced.root, spaced.source) == (
        b"/data/with space\\and\ttab",
        b"/sub",
        b"/dev/sd b",
    )
    assert (table[1].fs_type, table[1].device, table[1].number) == ("ext4", (254, 0), 27)
    assert table[6].point == b"/caf\xe9"
    assert table[2].options == b"rw,size=64k"


@pytest.mark.parametrize(
    ("path", "fs_type"),
    [
        (b"/", "ext4"),
        (b"/dev/shm", "tmpfs"),
        (b"/dev/shm/a/b", "tmpfs"),
        (b"/dev/shmother", "ext4"),
        (b"/data/with space\\and\ttab/x", "xfs"),
        (b"/data/x", "nfs4"),
    ],
)
def test_the_longest_and_last_mount_point_wins(path: bytes, fs_type: str) -> None:
    assert mounts.covering(mounts.parse_mountinfo(TABLE), path).fs_type == fs_type


def test_the_device_tells_a_covered_mount() -> None:
    table = mounts.parse_mountinfo(TABLE)
    assert mounts.covering(table, b"/data/x", os.makedev(0, 29)).source == b"/dev/one"
    assert mounts.covering(table, b"/dev/shm/x", os.makedev(254, 0)).point == b"/"
    # A btrfs subvolume has a device number that no mount has.
    assert mounts.covering(table, b"/data/x", os.makedev(0, 99)).fs_type == "nfs4"


def test_no_mount_is_said_so() -> None:
    with pytest.raises(LookupError):
        mounts.covering((), b"/")


def test_the_kernel_is_asked_for_the_mount(tmp_path: Path) -> None:
    proc = mounts.mount_of(Path("/proc/self"))
    assert (proc.fs_type, proc.point) == ("proc", b"/proc")
    here = mounts.mount_of(tmp_path)
    assert mounts.mount_of(tmp_path / "not" / "there" / "yet") == here
    (tmp_path / "link").symlink_to("/proc/self")
    assert mounts.mount_of(tmp_path / "link") == proc


def test_classes_are_an_allow_list() -> None:
    classes = {
        name: mounts.storage_class(name) for name in ("ext4", "tmpfs", "ramfs", "nfs4", "fuse.sshfs", "vfat")
    }
    assert classes == {
        "ext4": "disk",
        "tmpfs": "tmpfs",
        "ramfs": "tmpfs",
        "nfs4": "remote",
        "fuse.sshfs": "remote",
        "vfat": "unknown",
    }
    assert not mounts.LOCAL_DISK & mounts.REMOTE


def test_the_table_is_parsed_once_as_long_as_it_is_the_same() -> None:
    """A deletion of 10,000 files asks for each."""
    mounts.parse_mountinfo.cache_clear()
    assert mounts.plain_devices() == mounts.plain_devices()
    assert mounts.mounts() is mounts.mounts()
    assert mounts.parse_mountinfo.cache_info().misses <= 2  # somebody may mount something meanwhile
