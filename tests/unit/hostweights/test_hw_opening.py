"""Opening a store: what is created, what is compared, what is refused; and looking without touching."""

from __future__ import annotations

import json
import os
import stat
import threading
from pathlib import Path
from typing import Any

import make_hostweights
import pytest

from hwctl.errors import HwctlError, IoFailed, Refused
from hwctl.fs.deadline import Deadline
from hwctl.fs.lock_table import Mode
from hwctl.fs.locks import acquire
from hwctl.stores.hostweights import opening
from hwctl.stores.hostweights.domain import Capacity, parse_domain, parse_policy
from hwctl.stores.hostweights.opening import Wanted, open_root
from hwctl.stores.hostweights.store_root import StoreRoot, look_at_root

FOLDERS = ("locks", "artifacts", "tmp", "quarantine", "deny")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def words(error: HwctlError) -> tuple[object, object]:
    return error.details["stage"], error.details["code"]


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077, 0o777])
def test_a_new_store_has_its_modes_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    previous = os.umask(umask)
    try:
        root = open_root(tmp_path / "deep" / "store", Wanted())
    finally:
        os.umask(previous)
    for folder in (root.path.parent, root.path, *(root.path / name for name in FOLDERS)):
        assert mode(folder) == 0o700
    for name in ("domain.json", "domain-policy.json"):
        assert mode(root.path / name) == 0o444
    assert mode(root.path / "locks" / "domain-init.lock") == 0o600 & ~umask
    assert sorted(os.listdir(root.path)) == sorted([*FOLDERS, "domain.json", "domain-policy.json"])


def test_the_documents_are_the_ones_vllm_omni_wants(root: StoreRoot) -> None:
    domain = json.loads((root.path / "domain.json").read_bytes())
    assert len(domain.pop("domain_uuid")) == 32
    kind = make_hostweights.fs_type(root.path)
    assert domain == {
        "schema_version": 1,
        "scope": "node",
        "domain_id": "node",
        "backend": "local_filesystem",
        "storage_class": "tmpfs" if kind in ("tmpfs", "ramfs") else "disk",
        "filesystem_type": kind,
    }
    assert (root.path / "domain-policy.json").read_bytes() == (
        b'{"eviction":"none","max_artifact_bytes":null,"max_store_bytes":null,"min_free_bytes":0,'
        b'"policy_version":1,"schema_version":1}'
    )


def test_opening_again_keeps_every_byte(root: StoreRoot) -> None:
    before = (root.path / "domain.json").read_bytes()
    again = open_root(root.path, Wanted("node", "node", None, Capacity()))
    assert again == root and (root.path / "domain.json").read_bytes() == before
    assert look_at_root(root.path) == root


def test_wishes_hold_for_a_new_store_and_are_compared_later(tmp_path: Path) -> None:
    capacity = Capacity(10**9, 10**12, 5)
    root = open_root(tmp_path / "s", Wanted("numa", "numa-1", None, capacity))
    assert root.domain is not None and (root.domain.scope, root.domain.domain_id) == ("numa", "numa-1")
    assert open_root(root.path, Wanted()).capacity == capacity
    for wanted in (Wanted(scope="node"), Wanted(domain_id="x"), Wanted(capacity=Capacity())):
        with pytest.raises(Refused) as refused:
            open_root(root.path, wanted)
        assert words(refused.value) == ("configuration", "domain_policy_mismatch")


@pytest.mark.parametrize("name", FOLDERS)
def test_folders_that_others_may_write_or_that_are_links_are_refused(root: StoreRoot, name: str) -> None:
    folder = root.path / name
    folder.chmod(0o770)
    with pytest.raises(Refused, match="mode 0770"):
        open_root(root.path, Wanted())
    folder.chmod(0o700)
    folder.rename(root.path / "elsewhere")
    folder.symlink_to("elsewhere")
    with pytest.raises(Refused) as refused:
        open_root(root.path, Wanted())
    assert words(refused.value) == ("domain", "domain_unavailable") and not refused.value.retryable


@pytest.mark.needs_root
def test_another_users_store_is_refused_with_both_names(root: StoreRoot) -> None:
    """LEA-04."""
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    os.chown(root.path, 12345, -1)
    with pytest.raises(Refused, match=r"uid 12345, the caller is uid 0"):
        open_root(root.path, Wanted())
    assert look_at_root(root.path).owner_uid == 12345


def test_a_file_in_place_of_a_folder_is_an_unavailable_domain(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("")
    with pytest.raises(IoFailed) as failed:
        open_root(tmp_path / "store", Wanted())
    assert words(failed.value) == ("domain", "domain_unavailable") and failed.value.retryable


@pytest.mark.parametrize("name", ["domain.json", "domain-policy.json"])
@pytest.mark.parametrize("odd", ["fifo", "directory", "link", "two links", "empty", "array"])
def test_odd_documents_are_refused_at_once(root: StoreRoot, name: str, odd: str) -> None:
    """A fifo hangs every process of the node in vLLM-Omni."""
    path = root.path / name
    good = path.read_bytes()
    path.chmod(0o600)
    if odd == "two links":
        os.link(path, root.path / "second")
    else:
        path.unlink()
        match odd:
            case "fifo":
                os.mkfifo(path)
            case "directory":
                path.mkdir()
            case "link":
                (root.path / "other").write_bytes(good)
                path.symlink_to("other")
            case "empty":
                path.write_bytes(b"")
            case "array":
                path.write_bytes(b"[]")
    with pytest.raises(HwctlError) as refused:
        open_root(root.path, Wanted())
    stage = "domain" if odd == "link" else "configuration"
    assert refused.value.details["stage"] == stage
    seen = look_at_root(root.path)
    assert len(seen.problems) == 1 and seen.problems[0].file == str(path)


def test_a_wait_for_the_initialisation_lock_is_bounded(root: StoreRoot) -> None:
    held = acquire(root.path / "locks/domain-init.lock", Mode.EXCLUSIVE, Deadline.now())
    assert held is not None
    with held, pytest.raises(HwctlError) as busy:
        open_root(root.path, Wanted(wait=Deadline.after(0.1)))
    assert words(busy.value) == ("domain", "domain_unavailable") and busy.value.retryable


def test_many_openers_make_one_domain(tmp_path: Path) -> None:
    found: list[StoreRoot] = []
    threads = [
        threading.Thread(target=lambda: found.append(open_root(tmp_path / "s", Wanted()))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 and len({root.domain for root in found}) == 1


@pytest.mark.parametrize("fs_type", ["nfs4", "virtiofs", "vfat", "fuse.sshfs", "squashfs"])
def test_remote_and_unknown_file_systems_are_refused(
    tmp_path: Path, fs_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LEA-02: locks that do not lock. There is no such mount here, so the mount table says so."""
    real = opening.mount_of

    class Elsewhere:
        def __init__(self) -> None:
            self.fs_type = fs_type

    monkeypatch.setattr(opening, "mount_of", lambda path: Elsewhere() if path else real(path))
    with pytest.raises(Refused, match=fs_type) as refused:
        open_root(tmp_path / "s", Wanted())
    assert words(refused.value) == ("configuration", "domain_policy_mismatch")
    assert not (tmp_path / "s").exists()


def test_looking_changes_nothing_and_tells_what_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "s"
    (path / "artifacts").mkdir(parents=True)
    seen = look_at_root(path)
    assert seen.problems == () and seen.missing == (
        "domain.json",
        "domain-policy.json",
        "locks",
        "tmp",
        "quarantine",
        "deny",
    )
    assert os.listdir(path) == ["artifacts"]


def test_a_store_that_was_moved_says_so(root: StoreRoot) -> None:
    path = root.path / "domain.json"
    document = json.loads(path.read_bytes()) | {"filesystem_type": "zfs"}
    path.chmod(0o600)
    path.write_text(json.dumps(document))
    (found,) = look_at_root(root.path).problems
    assert found.code == "storage-class" and "records zfs" in found.message
    with pytest.raises(Refused, match="filesystem_type"):
        open_root(root.path, Wanted())


def test_a_document_that_cannot_be_read_is_no_damage(
    root: StoreRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """VER-10."""
    real = os.open

    def failing(name: Any, *args: Any, **options: Any) -> int:
        if name == "domain.json":
            raise OSError(5, os.strerror(5))
        return real(name, *args, **options)

    monkeypatch.setattr(os, "open", failing)
    seen = look_at_root(root.path)
    assert seen.problems == () and [type(error) for error in seen.unknown] == [IoFailed]


@pytest.mark.parametrize(
    "change",
    [
        {"scope": "rack"},
        {"backend": "s3"},
        {"storage_class": "disc"},
        {"filesystem_type": ""},
        {"domain_uuid": 5},
        {"schema_version": 2},
        {"domain_id": None},
        {"more": 1},
    ],
)
def test_a_wrong_domain_is_findings(root: StoreRoot, change: dict[str, object]) -> None:
    document = json.loads((root.path / "domain.json").read_bytes()) | change
    domain, problems = parse_domain(json.dumps(document).encode())
    assert domain is None and problems.found


@pytest.mark.parametrize(
    ("change", "good"),
    [
        ({"schema_version": True}, True),
        ({"min_free_bytes": False}, True),
        ({"max_store_bytes": 5.0}, True),
        ({"policy_version": 7}, True),
        ({"policy_version": True}, False),
        ({"policy_version": 0}, False),
        ({"max_store_bytes": 0}, False),
        ({"max_artifact_bytes": "5"}, False),
        ({"min_free_bytes": -1}, False),
        ({"min_free_bytes": None}, False),
        ({"max_store_bytes": 1.5}, False),
        ({"eviction": "lru"}, False),
        ({"schema_version": 2}, False),
        ({"build_admission": "serialized"}, False),
    ],
)
def test_policies_are_compared_as_upstream_compares(change: dict[str, object], good: bool) -> None:
    document = Capacity().document() | change
    capacity, problems = parse_policy(json.dumps(document).encode())
    assert (capacity is not None) is good and bool(problems.found) is not good
