"""Room, reservations and what trees really use."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hwctl.errors import NoRoom, Status
from hwctl.fs import cgroup, space
from hwctl.fs.mounts import Mount
from hwctl.fs.paths import opened_dir


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[int]:
    with opened_dir(tmp_path) as fd:
        yield fd


def test_room_is_what_df_says(tmp_path: Path, folder: int) -> None:
    here = space.room(tmp_path)
    facts = os.statvfs(tmp_path)
    assert here.total_bytes <= facts.f_blocks * facts.f_frsize
    assert 0 < here.free_bytes <= here.total_bytes
    assert here.free_inodes is None or here.free_inodes > 0
    assert space.room(folder).total_bytes == here.total_bytes
    assert space.room(tmp_path / "not" / "yet").total_bytes == here.total_bytes


def test_enough_room_says_nothing(tmp_path: Path, folder: int) -> None:
    space.require(tmp_path, 1, 1, what="publish")
    space.require(folder, 0, 0, keep_free=1, what="publish")


def test_too_little_room_is_told_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(NoRoom) as caught:
        space.require(tmp_path, 1 << 60, 3, keep_free=1 << 30, what="staging of run 'abc'")
    message = caught.value.message
    assert message.startswith("staging of run 'abc': needs 1048576.0 TiB (1152921504606846976 bytes)")
    assert "1.0 GiB (1073741824 bytes) kept free" in message and "available are" in message
    assert caught.value.status is Status.NO_ROOM and caught.value.path == os.fspath(tmp_path)
    details = caught.value.details
    assert (details["need_bytes"], details["keep_free_bytes"]) == (1 << 60, 1 << 30)
    assert details["mount"] in message


def test_too_few_inodes_are_told(tmp_path: Path) -> None:
    if space.room(tmp_path).free_inodes is None:
        pytest.skip("the file system of the tests makes inodes as needed")
    with pytest.raises(NoRoom, match=r"needs 1099511627776 inodes, available are \d+ on "):
        space.require(tmp_path, 0, 1 << 40, what="publish")


def test_a_reservation_takes_the_blocks(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        space.reserve(file.fileno(), 1 << 20)
        st = os.fstat(file.fileno())
        assert (st.st_size, st.st_blocks * 512 >= 1 << 20) == (1 << 20, True)
    with (tmp_path / "empty").open("wb") as file:
        space.reserve(file.fileno(), 0)
        assert os.fstat(file.fileno()).st_size == 0


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP])
def test_without_reservations_the_size_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def fallocate(*_args: int) -> None:
        raise OSError(code, "not here")

    monkeypatch.setattr(os, "posix_fallocate", fallocate)
    with (tmp_path / "file").open("wb") as file:
        space.reserve(file.fileno(), 12345)
        assert os.fstat(file.fileno()).st_size == 12345


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_no_room_is_not_papered_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def fallocate(*_args: int) -> None:
        raise OSError(code, "no")

    monkeypatch.setattr(os, "posix_fallocate", fallocate)
    with (tmp_path / "file").open("wb") as file:
        with pytest.raises(OSError) as caught:
            space.reserve(file.fileno(), 12345)
        assert caught.value.errno == code and os.fstat(file.fileno()).st_size == 0


def test_usage_agrees_with_du(tmp_path: Path, folder: int) -> None:
    # EVI-04: a sparse file, a hard-linked pair, a stray file, and a link to something large.
    tree = tmp_path / "tree"
    (tree / "sub").mkdir(parents=True)
    with (tree / "sparse").open("wb") as file:
        file.truncate(1 << 30)
    (tree / "one").write_bytes(b"x" * 100_000)
    (tree / "sub" / "two").hardlink_to(tree / "one")
    (tree / "stray").write_bytes(os.urandom(1 << 20))
    (tmp_path / "large").write_bytes(bytes(5 << 20))
    (tree / "link").symlink_to(tmp_path / "large")
    found = space.usage(folder, "tree")
    done = subprocess.run(["du", "-s", "--block-size=1", tree], capture_output=True, text=True, check=True)
    assert found.allocated == int(done.stdout.split()[0])
    assert found.bytes == (1 << 30) + 200_000 + (1 << 20)
    assert found.files == 5


def test_usage_knows_the_newest_change(tmp_path: Path, folder: int) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "file").touch()
    late = (tmp_path / "tree").stat().st_mtime_ns + 10**15
    os.utime(tmp_path / "tree" / "file", ns=(late, late))
    found = space.usage(folder, "tree")
    assert (found.newest_ns, found.written_ns) == (late, late)
    # A chmod or a rename moves the ctime and is no writing.
    os.utime(tmp_path / "tree" / "file", ns=(1, 1))
    os.utime(tmp_path / "tree", ns=(1, 1))
    found = space.usage(folder, "tree")
    assert found.written_ns == 1 < found.newest_ns
    assert space.usage(folder, "missing") == space.Usage(0, 0, 0, 0, 0)


def v2(point: Path, root: bytes = b"/") -> tuple[Mount, ...]:
    return (Mount(os.fsencode(point), "cgroup2", (0, 30), b"cgroup", root=root),)


def control(folder: Path, limit: str, usage: int, cache: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{usage}\n")
    (folder / "memory.stat").write_text(f"anon 1\ninactive_file {cache}\nactive_file 5\nshmem 7\n")


def test_the_tightest_group_on_the_way_up_binds(tmp_path: Path) -> None:
    control(tmp_path / "job" / "step", "max", 10)
    control(tmp_path / "job", "1000", 400, cache=95)
    control(tmp_path, "5000", 4900)
    limit = cgroup.limit_of(b"0::/job/step\n", v2(tmp_path))
    assert limit == cgroup.MemoryLimit(5000, 105)
    control(tmp_path, "max", 4900)
    assert cgroup.limit_of(b"0::/job/step\n", v2(tmp_path)) == cgroup.MemoryLimit(1000, 700)


@pytest.mark.parametrize("group", [b"/outside/of/it", b"/../../elsewhere", b"/"])
def test_a_container_sees_its_group_as_the_top(tmp_path: Path, group: bytes) -> None:
    control(tmp_path, "1000", 1200)
    found = cgroup.limit_of(b"0::" + group + b"\n", v2(tmp_path, root=b"/docker/abc"))
    assert found == cgroup.MemoryLimit(1000, 0)


def test_the_old_controller_counts_too(tmp_path: Path) -> None:
    (tmp_path / "memory.limit_in_bytes").write_text("2000\n")
    (tmp_path / "memory.usage_in_bytes").write_text("500\n")
    (tmp_path / "memory.stat").write_text("total_inactive_file 100\ntotal_active_file 100\ninactive_file 9\n")
    mount = Mount(os.fsencode(tmp_path), "cgroup", (0, 31), b"cgroup", options=b"rw,memory")
    other = Mount(os.fsencode(tmp_path), "cgroup", (0, 32), b"cgroup", options=b"rw,cpu")
    lines = b"3:cpu:/\n4:memory:/\n0::/\n"
    assert cgroup.limit_of(lines, (other, mount)) == cgroup.MemoryLimit(2000, 1700)
    (tmp_path / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert cgroup.limit_of(lines, (mount,)) is None


def test_no_controller_no_limit(tmp_path: Path) -> None:
    assert cgroup.limit_of(b"0::/\n", v2(tmp_path)) is None
    assert cgroup.limit_of(b"", ()) is None
    cgroup.memory_limit()  # whatever this machine has, it can be read
