"""What else may delete a store (EVI-08): read from configuration that each test lays out itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from hwctl.core.hazards import ageing, hazards, parse_rules, removes_ipc

SHM = Path("/dev/shm/kt-int8-job1")


def put(base: Path, name: str, text: str = "") -> None:
    path = base / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def system(tmp_path: Path) -> Path:
    """A machine that was booted by systemd."""
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    return tmp_path


@pytest.mark.parametrize(
    ("configs", "removes"),
    [
        ([], True),
        (["[Login]\n#RemoveIPC=no\n"], True),
        (["[Login]\nRemoveIPC=no\n"], False),
        (["RemoveIPC = yes\n", "RemoveIPC=off\n"], False),
        (["RemoveIPC=no\n", "RemoveIPC=1\n"], True),
        (["RemoveIPC=\n"], True),
    ],
)
def test_the_last_assignment_counts(configs: list[str], removes: bool) -> None:
    assert removes_ipc(configs) is removes


def test_an_ordinary_users_shared_memory_goes_with_the_last_session(system: Path) -> None:
    (warning,) = hazards(SHM, 4_000_123, base=system)
    assert "RemoveIPC" in warning
    put(system, "etc/systemd/logind.conf.d/keep.conf", "[Login]\nRemoveIPC=no\n")
    assert hazards(SHM, 4_000_123, base=system) == ()


def test_nobody_is_warned_without_cause(system: Path, tmp_path: Path) -> None:
    assert hazards(SHM, 0, base=system) == ()
    assert hazards(SHM, 998, base=system) == ()
    assert hazards(Path("/srv/weights"), 4_000_123, base=system) == ()
    assert hazards(SHM, 4_000_123, base=tmp_path / "container") == ()
    put(system, "etc/login.defs", "SYS_UID_MAX 5000000\n")
    assert hazards(SHM, 4_000_123, base=system) == ()


TMP = "q /tmp 1777 root root 10d\nq /var/tmp 1777 root root 30d\n"


@pytest.mark.parametrize(
    ("path", "texts", "age"),
    [
        ("/tmp/store", [TMP], "10d"),
        ("/var/tmp/a/b", [TMP], "30d"),
        ("/srv/store", [TMP], None),
        ("/tmpfoo", [TMP], None),
        ("/tmp/store", [TMP, "x /tmp/store\n"], None),
        ("/tmp/store/artifacts", [TMP, "x /tmp/st*\n"], None),
        ("/tmp/store", [TMP, "X /tmp/store\n"], "10d"),  # spares the folder, and not what lies in it
        ("/tmp/store", ["d /tmp 1777 root root -\n", TMP], None),
        ("/tmp/store", ["d /tmp/store 0700 user user 2h\n", TMP], "2h"),
        ("/dev/shm/a", ["e! /dev/shm - - - ~6h\n"], "6h"),
        ("/tmp/store", ["# q /tmp 1777 root root 10d\nf /tmp/x 0644 - - 1d\nd\n"], None),
        ("/home/u/store", ["d %h/store 0700 - - 1d\n"], None),
    ],
)
def test_which_line_ages_a_path(path: str, texts: list[str], age: str | None) -> None:
    found = ageing(path, parse_rules((f"{number}.conf", text) for number, text in enumerate(texts)))
    assert (None if found is None else found.age) == age


def test_a_name_in_etc_hides_the_vendors(system: Path) -> None:
    put(system, "usr/lib/tmpfiles.d/tmp.conf", TMP)
    (warning,) = hazards(Path("/tmp/store"), 0, base=system)
    assert "/usr/lib/tmpfiles.d/tmp.conf" in warning
    assert "10d" in warning
    put(system, "etc/tmpfiles.d/tmp.conf", "d /tmp 1777 root root -\n")
    assert hazards(Path("/tmp/store"), 0, base=system) == ()
