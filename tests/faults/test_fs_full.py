"""Full file systems: nothing is left behind, old documents stay whole, the message tells the knob."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import private_mounts
import pytest

from hwctl.errors import NoRoom, from_os_error
from hwctl.fs import space
from hwctl.fs.atomic import create_document, replace_document
from hwctl.fs.paths import opened_dir
from hwctl.fs.probe import probe

MIB = 1 << 20


@pytest.fixture
def small(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A tmpfs of 1 MiB, or with the options a test asks for."""
    if reason := private_mounts.why_not():
        pytest.skip(reason)
    with private_mounts.tmpfs(tmp_path / "small", getattr(request, "param", "size=1m")) as point:
        yield point


def test_a_document_that_does_not_fit_is_not_there(small: Path) -> None:
    with opened_dir(small) as fd:
        with pytest.raises(OSError) as caught:
            create_document(fd, "doc", bytes(2 * MIB), 0o444)
        assert isinstance(from_os_error(caught.value, "writing", small), NoRoom)
        assert os.listdir(small) == []
        create_document(fd, "doc", bytes(MIB // 2), 0o444)


def test_a_replacement_that_does_not_fit_leaves_the_old_one(small: Path) -> None:
    with opened_dir(small) as fd:
        replace_document(fd, "doc", b"old" * 1000)
        with pytest.raises(OSError) as caught:
            replace_document(fd, "doc", bytes(2 * MIB))
        assert caught.value.errno == errno.ENOSPC
        assert os.listdir(small) == ["doc"] and (small / "doc").read_bytes() == b"old" * 1000


def test_a_reservation_fails_where_a_map_would_kill(small: Path) -> None:
    # PUB-03: ftruncate alone succeeds, and the store through the map is SIGBUS.
    with (small / "file").open("w+b") as file:
        with pytest.raises(OSError) as caught:
            space.reserve(file.fileno(), 2 * MIB)
        assert caught.value.errno == errno.ENOSPC
        space.reserve(file.fileno(), MIB // 2)
        with mmap.mmap(file.fileno(), MIB // 2) as mapped:
            mapped[:] = b"x" * (MIB // 2)


def test_the_knob_of_a_tmpfs_is_told(small: Path) -> None:
    with pytest.raises(NoRoom) as caught:
        space.require(small, 4 * MIB, 1, what="publish")
    message = caught.value.message
    assert "needs 4.0 MiB (4194304 bytes), available are 1.0 MiB (1048576 bytes)" in message
    assert os.fspath(small) in message and "tmpfs" in message
    assert "--shm-size" in message and "sizeLimit" in message


@pytest.mark.parametrize("small", ["size=1m,nr_inodes=4"], indirect=True)
def test_inodes_run_out_like_room(small: Path) -> None:
    assert space.room(small).free_inodes == 3
    with opened_dir(small) as fd:
        for number in range(3):
            create_document(fd, f"{number}", b"x", 0o444)
        with pytest.raises(OSError) as caught:
            create_document(fd, "doc", b"x", 0o444)
        assert isinstance(from_os_error(caught.value, "writing"), NoRoom)
        with pytest.raises(OSError):
            replace_document(fd, "0", b"y")
        assert sorted(os.listdir(small)) == ["0", "1", "2"] and (small / "0").read_bytes() == b"x"
    with pytest.raises(NoRoom, match=r"needs 1 inodes, available are 0 .*nr_inodes="):
        space.require(small, 0, 1, what="publish")


@pytest.mark.parametrize("small", ["size=1m,nr_inodes=4", "size=1m"], indirect=True)
def test_a_probe_of_a_full_folder_is_no_room(small: Path) -> None:
    with opened_dir(small) as fd:
        left = space.room(small)
        if left.free_inodes == 3:
            for number in range(3):
                create_document(fd, f"{number}", b"", 0o444)
        else:
            create_document(fd, "ballast", bytes(left.free_bytes), 0o444)
        before = sorted(os.listdir(small))
        with pytest.raises(NoRoom):
            probe(fd)
        assert sorted(os.listdir(small)) == before
