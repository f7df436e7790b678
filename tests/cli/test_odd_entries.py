"""What stands oddly in a store or a base hides nothing else, and every verb has a word for it."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import make_hostweights
import make_ktint8
import make_pageweights
import private_mounts
import pytest
from holders import locked
from run_hwctl import NOBODY, hwctl_, open_to_all, start

RUN = "run-000001"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can do this")


@pytest.fixture
def unserved(shm: Path) -> Iterator[Path]:
    """A folder in /dev/shm on which the FUSE mount of a server that has died stands, for this process."""
    if (reason := private_mounts.why_not()) is not None:
        pytest.skip(reason)
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("no FUSE file system can be mounted here")
    point = shm / "point"
    point.mkdir()
    server = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={server},rootmode=40000,user_id=0,group_id=0".encode()
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mount(b"test", os.fsencode(point), b"fuse", 0, options) == 0
    os.close(server)
    yield point
    assert libc.umount2(os.fsencode(point), 2) == 0


@pytest.mark.hardware
def test_a_dead_mount_in_a_base_hides_no_tree(unserved: Path, shm: Path) -> None:
    with pytest.raises(OSError, match=os.strerror(errno.ENOTCONN)):
        unserved.stat()
    tree = make_ktint8.make_staging(shm, RUN, process=make_ktint8.dead_process())
    rows = hwctl_("inspect", shm, "--json").results
    assert [row["path"] for row in rows] == [str(tree)]
    assert hwctl_("reclaim-stale", shm, "-y").status == 0 and not tree.exists()


@needs_root
def test_a_quarantined_page_that_is_closed_hides_no_other(tmp_path: Path) -> None:
    open_to_all(tmp_path)
    cache = make_pageweights.make_store(tmp_path / "cache")
    for number in range(2):
        make_pageweights.make_artifact(cache, number)
    locator = cache / f"{make_pageweights.prefix_of(0)}.locator.json"
    (row,) = hwctl_("quarantine", locator, "--reason", "x", "-y", "--json").results
    for path in [cache, *cache.rglob("*")]:
        os.chown(path, NOBODY, NOBODY)
    Path(row["moved_to"]).chmod(0)
    run = hwctl_("inspect", cache, "--json", uid=NOBODY)
    assert run.status == 0 and sorted(found["state"] for found in run.results) == ["ready", "unreadable"]
    assert hwctl_("evict", cache, "--all", "-n", uid=NOBODY).status == 15
    assert hwctl_("verify", cache, uid=NOBODY).status == 0


def test_a_folder_with_a_temporary_s_name_is_a_stranger(tmp_path: Path) -> None:
    cache = make_pageweights.make_store(tmp_path / "cache")
    make_pageweights.make_artifact(cache, 0)
    make_pageweights.put_lock(cache, 0)
    (cache / f".{make_pageweights.prefix_of(0)}.8.8.8.tmp").mkdir()
    for how in ("-n", "-y"):
        run = hwctl_("reclaim-stale", cache, how)
        assert run.status == 0 and run.out.startswith("nothing to do")
    (row,) = hwctl_("inspect", cache, "--state", "foreign", "--json").results
    assert row["reason"] == "a directory with the name of a temporary"


@needs_root
def test_another_users_closed_tree_is_refused_with_the_command(tmp_path: Path) -> None:
    open_to_all(tmp_path)
    tree = make_ktint8.make_ready(tmp_path, RUN)
    tree.chmod(0o700)
    run = hwctl_("quarantine", tree, "--reason", "x", "-y", "--json", uid=NOBODY)
    assert run.status == 12 and "sudo -u root hwctl quarantine" in run.results[0]["reason"]


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_an_eviction_of_a_tree_that_was_killed_is_finished_at_once(shm: Path, signum: int) -> None:
    tree = make_ktint8.make_ready(shm, RUN, states=("ready",) * 400)
    process = start("evict", tree, "-y", "--json")
    while (tree / "_layer_3").exists():
        time.sleep(0.0005)
    process.send_signal(signum)
    process.communicate(timeout=30)
    if not (tree / make_ktint8.MANIFEST).exists():
        pytest.skip("it was faster than the signal")
    run = hwctl_("reclaim-stale", shm, "-y", "--json")
    assert run.status == 0 and not tree.exists(), run.out
    assert run.results[0]["reason"].startswith("stale: its removal was begun and not finished")


def test_a_read_only_file_system_is_said_in_every_family(small: Path) -> None:
    store = make_hostweights.make_store(small / "store")
    cache = make_pageweights.make_store(small / "cache")
    base = small / "base"
    base.mkdir()
    make_hostweights.make_artifact(store, 0)
    make_pageweights.make_artifact(cache, 0)
    make_ktint8.make_ready(base, RUN)
    private_mounts.mount("-o", "remount,ro", small)
    for root in (store, cache, base):
        run = hwctl_("evict", root, "--all", "-y", "--json")
        assert run.status == 15 and "Read-only file system" in run.err, run.out


def test_a_reason_that_could_not_be_noted_is_told(small: Path) -> None:
    store = make_hostweights.make_store(small / "store")
    cache = make_pageweights.make_store(small / "cache")
    base = small / "base"
    base.mkdir()
    make_pageweights.make_artifact(cache, 0)
    paths = [make_hostweights.make_artifact(store, 0), make_ktint8.make_ready(base, RUN)]
    paths.append(next(cache.glob("*.locator.json")))
    with pytest.raises(OSError, match="No space"), open(small / "filling", "wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    run = hwctl_("quarantine", *paths, "--reason", "checksum differs", "-y", "--json")
    assert run.status == 0
    assert {row["outcome"] for row in run.results} == {"done"}
    for row in run.results:
        assert row["reason"].startswith("checksum differs; the reason could not be noted"), row
    (small / "filling").unlink()
    for path in paths:
        assert not path.exists()


def test_a_page_s_place_that_an_orphan_has_is_in_the_plan_of_a_restore(tmp_path: Path) -> None:
    cache = make_pageweights.make_store(tmp_path / "cache")
    make_pageweights.make_artifact(cache, 0)
    (row,) = hwctl_("quarantine", *cache.glob("*.locator.json"), "--reason", "x", "-y", "--json").results
    make_pageweights.make_artifact(cache, 0, locator=False)
    for how in ("-n", "-y"):
        run = hwctl_("quarantine", "--restore", row["moved_to"], how, "--json")
        assert run.status == 12 and "is there already" in run.results[0]["reason"]


@needs_root
def test_root_is_told_the_same_as_the_owner_of_a_store_at_work(tmp_path: Path) -> None:
    open_to_all(tmp_path)
    store = make_hostweights.make_store(tmp_path / "store")
    make_hostweights.make_artifact(store, 0)
    for path in [store, *store.rglob("*")]:
        os.chown(path, NOBODY, NOBODY)
    with locked(store, "exclusive"):
        own = hwctl_("evict", store, "--all", "-y", uid=NOBODY)
        root = hwctl_("evict", store, "--all", "-y", "--other-users")
    assert (own.status, root.status) == (11, 11)
    assert root.out.startswith("nothing was done")


def test_commands_and_descriptors_that_cannot_be(store: Path) -> None:
    path = make_hostweights.make_artifact(store, 0)
    run = hwctl_("exec", path, "--", "")
    assert run.status == 127 and "No such file" in run.err
    assert hwctl_("exec", path, "--", "true", env={"HWCTL_LEASE_FDS": "99999999999999999999"}).status == 0


def test_a_marker_of_an_artifact_that_is_there_says_its_own_reason(store: Path) -> None:
    path = make_hostweights.make_artifact(store, 0)
    marker = store / "deny" / f"{path.name}.json"
    marker.write_bytes(b"{}")
    marker.chmod(0o600)
    (row,) = hwctl_("inspect", marker, "--json").results
    assert (row["state"], row["reason"]) == ("denied", "a deny marker is there")


def test_numbers_beyond_all_measure_are_called_so(store: Path) -> None:
    for words, said in (
        (["--older-than", "99999999999999999999d"], "longer than a hundred years"),
        (["--max-size", "99999999999999999999TiB"], "no number of bytes"),
    ):
        run = hwctl_("evict", store, *words, "-n")
        assert run.status == 2 and said in run.err
        assert json.dumps(run.out) == '""'


def test_where_the_memory_of_a_page_lies_is_told_of_all_its_files(shm: Path) -> None:
    cache = make_pageweights.make_store(shm / "cache")
    make_pageweights.make_artifact(cache, 0, 100_000)
    (row,) = hwctl_("inspect", *cache.glob("*.locator.json"), "--json").results
    assert (
        sum(row["pages_per_node"].values()) * os.sysconf("SC_PAGE_SIZE") == row["allocated_bytes"] > 400_000
    )


def test_folders_above_a_new_root_are_nobody_elses(tmp_path: Path) -> None:
    page, authority = tmp_path / "page.safetensors", tmp_path / "authority.json"
    page.write_bytes(make_pageweights.artifact_bytes(0, 8))
    authority.write_text(json.dumps(make_pageweights.authority(0)))
    cache = tmp_path / "a" / "b" / "cache"
    run = hwctl_("publish", "pageweights", "--cache", cache, "--page", page, "--authority", authority)
    assert run.status == 0, run.err
    assert [path.stat().st_mode & 0o777 for path in (cache.parent.parent, cache.parent, cache)] == [0o700] * 3
