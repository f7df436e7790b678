"""``hwctl quarantine`` as a process: aside and back, and what it refuses."""

from __future__ import annotations

import os
from pathlib import Path

import holders
import pytest
from kits import KITS, HostWeights, Kit
from run_hwctl import hwctl_


@pytest.fixture(params=sorted(KITS))
def kit(request: pytest.FixtureRequest, tmp_path: Path) -> Kit:
    made: Kit = KITS[request.param](tmp_path)
    return made


@pytest.fixture
def one(tmp_path: Path) -> Kit:
    """One family, for what does not depend on it."""
    return HostWeights(tmp_path)


def set_aside(path: Path, reason: str = "bad RAM on n17") -> Path:
    run = hwctl_("quarantine", path, "--reason", reason, "-y", "--json")
    assert run.status == 0, run.err
    (row,) = run.results
    assert (row["action"], row["outcome"], row["reason"]) == ("quarantine", "done", reason)
    return Path(row["moved_to"])


def test_aside_and_back(kit: Kit) -> None:
    path = kit.artifact(0)
    data = kit.payload(path).read_bytes()
    aside = set_aside(path)
    assert not path.exists() and aside.exists()
    run = hwctl_("quarantine", "--restore", aside, "-y", "--json")
    assert run.status == 0, run.err
    assert run.results[0]["moved_to"] == str(path)
    assert kit.payload(path).read_bytes() == data and not aside.exists()
    assert hwctl_("verify", path).status == 0


def test_back_by_key_and_by_name_in_a_named_root_or_in_the_default_ones(one: Kit) -> None:
    path = one.artifact(0)
    aside = set_aside(path)
    assert hwctl_("quarantine", one.root, "--restore", one.key(0), "-y").status == 0
    aside = set_aside(path)
    roots = {"HWCTL_ROOTS": str(one.root)}
    both = ["--restore", one.key(0), "--restore", aside.name, "--restore", aside]
    run = hwctl_("quarantine", *both, "-y", "--json", env=roots)
    assert (run.status, len(run.results)) == (0, 1), run.err
    assert path.exists()
    aside = set_aside(path)
    assert hwctl_("quarantine", "--restore", aside.name, "-y", env=roots).status == 0
    assert path.exists()
    assert hwctl_("quarantine", "--restore", "no-such-name", "-y", env=roots).status == 10


def test_inspect_lists_what_is_aside_with_its_reason(one: Kit) -> None:
    set_aside(one.artifact(0), "smells of smoke")
    run = hwctl_("inspect", one.root, "--state", "quarantined", "--json")
    assert run.status == 0
    (row,) = run.results
    assert (row["state"], row["reason"], row["key"]) == ("quarantined", "smells of smoke", one.key(0))


def test_a_leased_artifact_is_busy_and_not_moved(kit: Kit) -> None:
    """QUA-03."""
    path = kit.artifact(0)
    with holders.locked(kit.lock(0)) as pid:
        run = hwctl_("quarantine", path, "--reason", "bad", "-y", "--json")
        assert run.status == 11 and path.exists()
        assert run.results[0]["error"]["details"]["holders"][0]["pid"] == pid
    verdict = hwctl_("verify", path, "--level", "marker")
    assert verdict.status == (65 if kit.denies else 0)
    if kit.denies:
        assert hwctl_("quarantine", kit.root, "--restore", kit.key(0), "-y").status == 0
        assert hwctl_("verify", path).status == 0


def test_twice_is_harmless_and_twice_the_key_keeps_both(one: Kit) -> None:
    path = one.artifact(0)
    first = set_aside(path)
    again = hwctl_("quarantine", first, "--reason", "again", "-y", "--json")
    assert again.status == 0 and again.results[0]["outcome"] == "skipped"
    one.artifact(0)
    second = set_aside(path)
    assert first.exists() and second.exists() and first != second
    run = hwctl_("quarantine", one.root, "--restore", one.key(0), "-y", "--json")
    assert run.status == 12
    assert sorted(run.error["details"]["candidates"]) == sorted(map(str, (first, second)))


def test_restore_goes_over_nothing(one: Kit) -> None:
    path = one.artifact(0)
    aside = set_aside(path)
    one.artifact(0)
    inode = path.stat().st_ino
    assert hwctl_("quarantine", "--restore", aside, "-y").status == 12
    assert path.stat().st_ino == inode and aside.exists()


def test_a_folder_of_the_store_is_no_name_of_an_entry(kit: Kit) -> None:
    aside = set_aside(kit.artifact(0))
    for name in (aside.parent.name, kit.root.name):
        assert hwctl_("quarantine", kit.root, "--restore", name, "-y").status == 10
    assert aside.exists()


def test_what_is_damaged_is_not_restored_and_every_finding_is_told(one: Kit) -> None:
    path = one.artifact(0)
    payload = one.payload(path)
    mode = payload.stat().st_mode
    payload.chmod(0o600)
    payload.write_bytes(payload.read_bytes()[:-4])
    payload.chmod(mode & 0o777)
    aside = set_aside(path)
    run = hwctl_("quarantine", "--restore", aside, "-y", "--json")
    assert run.status == 65 and aside.exists()
    assert run.error["details"]["findings"]
    assert run.results[0]["findings"] == run.results[0]["error"]["details"]["findings"]


def test_absent_leftover_store_and_nonsense(one: Kit) -> None:
    assert hwctl_("quarantine", one.open_path(7), "--reason", "x", "-y").status == 10
    leftover = one.leftover(0)
    assert hwctl_("quarantine", leftover, "--reason", "x", "-y").status == 12
    assert hwctl_("quarantine", one.root, "--reason", "x", "-y").status == 12
    path = one.artifact(1)
    for words in (
        [path],
        [path, "--reason", ""],
        ["--reason", "x"],
        [path, "--reason", "x", "--restore", "y"],
    ):
        assert hwctl_("quarantine", *words, "-y").status == 2, words
    assert hwctl_("quarantine", path, "--reason", "x").status == 12
    assert path.exists()


def test_a_dry_run_changes_nothing(one: Kit) -> None:
    path = one.artifact(0)
    before = sorted(os.listdir(one.root))
    run = hwctl_("quarantine", path, "--reason", "x", "-n", "--json")
    assert run.status == 0 and run.results[0]["outcome"] == "planned"
    assert path.exists() and sorted(os.listdir(one.root)) == before


def test_a_move_tells_the_size_of_what_was_moved(kit: Kit) -> None:
    path = kit.artifact(0)
    (seen,) = [row for row in hwctl_("inspect", kit.root, "--json").results if row["path"] == str(path)]
    run = hwctl_("quarantine", path, "--reason", "bad", "-y")
    word, action, size, *_ = run.out.splitlines()[0].split("\t")
    assert (word, action, int(size)) == ("done", "quarantine", seen["allocated_bytes"])
    assert int(size) > 0


def test_lifting_a_denial_is_no_move(one: Kit) -> None:
    path = one.artifact(0)
    (one.root / "deny" / f"{one.key(0)}.json").touch()
    run = hwctl_("quarantine", one.root, "--restore", one.key(0), "-y")
    assert (run.status, run.err) == (0, f"the deny marker of {path} was lifted\n")


def test_one_finding_is_told_as_it_is(one: Kit) -> None:
    path = one.artifact(0)
    payload = one.payload(path)
    payload.chmod(0o600)
    with payload.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)[0]
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last ^ 1]))
    payload.chmod(0o444)
    run = hwctl_("quarantine", "--restore", set_aside(path), "-y", "--json")
    assert run.status == 65
    assert run.results[0]["reason"] == "not restored: model.safetensors: the bytes have another SHA-256"


def test_the_words_of_the_help_empty_the_quarantine(kit: Kit) -> None:
    aside = set_aside(kit.artifact(0))
    assert hwctl_("evict", kit.root, "--quarantined", "-y").status == 2
    assert hwctl_("evict", kit.root, "--quarantined", "--older-than", "7d", "-y").status == 0
    assert aside.exists()
    left_out = hwctl_("evict", kit.root, "--all", "-n").out
    assert left_out.startswith(f"nothing to do; {kit.root}: ")
    assert "KiB in quarantine (evict --quarantined --all)" in left_out
    done = hwctl_("evict", kit.root, "--quarantined", "--all", "-y")
    assert done.status == 0 and not aside.exists()
    again = hwctl_("evict", kit.root, "--quarantined", "--all", "-n", "--family", kit.name)
    assert again.out == "nothing to do\n"


def test_one_bad_path_keeps_no_other_from_being_set_aside(one: Kit, tmp_path: Path) -> None:
    """A whole store, which is no entry, stands before one; it must not keep the rest from being done."""
    whole, path = HostWeights(tmp_path / "other").root, one.artifact(0)
    run = hwctl_("quarantine", whole, path, "--reason", "x", "--yes", "--json")
    assert run.status == 12
    assert [(row["path"], row["outcome"]) for row in run.results] == [(str(path), "done")]
    assert run.error["path"] == str(whole)
    back = hwctl_("quarantine", "--restore", whole, "--restore", run.results[0]["moved_to"], "-y", "--json")
    assert back.status == 12
    assert [(row["key"], row["outcome"]) for row in back.results] == [(one.key(0), "done")]
