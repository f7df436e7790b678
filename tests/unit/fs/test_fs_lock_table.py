"""/proc/locks as the kernel writes it, and holders in words."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hwctl.fs.lock_table import Entry, Holder, LockTable, Mode, parse_locks

RAW = b"""1: POSIX  ADVISORY  WRITE 6160 fe:00:402117 0 EOF
2: FLOCK  ADVISORY  WRITE 8712 fe:00:15089666 0 EOF
2: -> FLOCK  ADVISORY  WRITE 99 fe:00:15089666 0 EOF
3: FLOCK  ADVISORY  READ 8712 00:1b:15 0 EOF
4: FLOCK  ADVISORY  READ 0 00:1b:15 0 EOF
5: OFDLCK ADVISORY  READ -1 00:1b:15 0 EOF
6: LEASE  ACTIVE    READ 77 00:1b:15 0 EOF
"""
DISK, MEMORY = os.makedev(0xFE, 0), os.makedev(0, 0x1B)


def test_only_granted_flocks_count() -> None:
    assert parse_locks(RAW) == (
        Entry((DISK, 15089666), Mode.EXCLUSIVE, 8712),
        Entry((MEMORY, 15), Mode.SHARED, 8712),
        Entry((MEMORY, 15), Mode.SHARED, 0),
    )
    assert parse_locks(b"") == ()


def test_the_table_of_this_machine_parses() -> None:
    parse_locks(Path("/proc/locks").read_bytes())


def test_files_are_found_by_device_and_number() -> None:
    table = LockTable(parse_locks(RAW), plain=frozenset({DISK, MEMORY}))
    assert [entry.pid for entry in table.entries((MEMORY, 15))] == [8712, 0]
    assert table.entries((DISK, 15)) == ()


def test_a_device_of_its_own_is_found_by_number_alone() -> None:
    # btrfs: the lock is listed under the file system's device, the stat has the subvolume's.
    btrfs, subvolume = os.makedev(0, 40), os.makedev(0, 41)
    entries = [Entry((btrfs, 15), Mode.SHARED, 1), *parse_locks(RAW)]
    table = LockTable(entries, plain=frozenset({DISK, MEMORY}))
    assert [entry.pid for entry in table.entries((subvolume, 15))] == [1]
    assert [entry.pid for entry in table.entries((MEMORY, 15))] == [8712, 0]


def test_a_holder_that_has_ended_and_one_out_of_sight() -> None:
    gone = 2**22 + 5  # above the kernel's largest pid_max
    table = LockTable([Entry((1, 1), Mode.SHARED, gone), Entry((1, 1), Mode.SHARED, 0)], frozenset({1}))
    ended, unseen = table.holders((1, 1))
    assert (ended.pid, ended.command) == (gone, None)
    assert "has ended" in ended.describe()
    assert (unseen.pid, unseen.describe()) == (None, "a process that is not visible here")


@pytest.mark.parametrize("namespace", [None, 4026532000])
def test_a_holder_in_words_and_as_data(namespace: int | None) -> None:
    holder = Holder(7, Mode.SHARED, 1000, "trainer", 12.34, namespace)
    words = "pid 7 (uid 1000, trainer, running for 12 s"
    assert holder.describe().startswith(words)
    assert ("pid namespace" in holder.describe()) is (namespace is not None)
    assert holder.as_dict() == {
        "pid": 7,
        "mode": "shared",
        "uid": 1000,
        "command": "trainer",
        "age_seconds": 12.3,
        "pid_ns": namespace,
    }
