"""A folder is tried before the first data byte, and left as it was (PUB-02)."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from hwctl.errors import IoFailed, NoRoom, Refused
from hwctl.fs import probe as probing
from hwctl.fs.paths import opened_dir


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[int]:
    with opened_dir(tmp_path) as fd:
        yield fd


def test_a_good_folder_passes_and_stays_empty(tmp_path: Path, folder: int) -> None:
    probing.probe(folder)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.EPERM, errno.EOPNOTSUPP])
@pytest.mark.parametrize(
    ("module", "call", "doing"),
    [
        (os, "rename", "rename a file"),
        (os, "fchmod", "change a mode"),
        (fcntl, "flock", "lock a file"),
        (os, "fsync", "sync a file"),
        (probing, "rename_noreplace", "rename without replacing"),
        (probing, "sync_dir", "sync a directory"),
    ],
)
def test_what_is_missing_is_named_with_the_mount(
    tmp_path: Path,
    folder: int,
    monkeypatch: pytest.MonkeyPatch,
    module: object,
    call: str,
    doing: str,
    code: int,
) -> None:
    def fail(*_args: object, **_named: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(module, call, fail)
    with pytest.raises(Refused) as caught:
        probing.probe(folder)
    assert f"cannot {doing}" in caught.value.message and "\n" not in caught.value.message
    assert caught.value.details["operation"] == doing
    assert str(caught.value.details["fs_type"]) in caught.value.message
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("code", "error"), [(errno.ENOSPC, NoRoom), (errno.EDQUOT, NoRoom), (errno.EIO, IoFailed)]
)
def test_other_failures_are_what_they_are(
    tmp_path: Path,
    folder: int,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    error: type[Exception],
) -> None:
    def fail(*_args: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(error):
        probing.probe(folder)
    assert os.listdir(tmp_path) == []


def test_a_folder_that_may_not_be_written_is_an_io_failure(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(0o555)
    caller = os.geteuid()
    with opened_dir(tmp_path / "closed") as fd:
        if caller == 0:
            os.seteuid(65534)  # uid 0 may write everywhere
        try:
            with pytest.raises(IoFailed, match="cannot make a directory"):
                probing.probe(fd)
        finally:
            os.seteuid(caller)
