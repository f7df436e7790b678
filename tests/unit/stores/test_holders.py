"""How the holders of an artifact's locks are counted, for every family."""

from __future__ import annotations

from hwctl.fs.lock_table import Entry, Mode
from hwctl.stores.base import Holders

INODE = (1, 2)


def test_holders_of_nothing() -> None:
    assert Holders.of(()) == Holders()


def test_each_lock_counts_and_each_pid_is_named_once() -> None:
    entries = [Entry(INODE, Mode.SHARED, 9), Entry(INODE, Mode.SHARED, 7), Entry(INODE, Mode.SHARED, 9)]
    assert Holders.of([*entries, Entry(INODE, Mode.EXCLUSIVE, 8)]) == Holders(3, 1, (7, 8, 9))


def test_a_holder_in_another_pid_namespace_has_no_pid_here() -> None:
    assert Holders.of([Entry(INODE, Mode.SHARED, 0), Entry(INODE, Mode.EXCLUSIVE, -1)]) == Holders(1, 1, ())
