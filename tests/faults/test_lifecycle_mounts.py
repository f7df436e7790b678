"""What is mounted inside an entry is refused before anything of the entry has moved or gone."""

from __future__ import annotations

import subprocess
from pathlib import Path

import make_hostweights
import make_pageweights
import private_mounts
import pytest
from run_hwctl import hwctl_

from hwctl.fs.deadline import Deadline
from hwctl.stores.pageweights import roots
from hwctl.stores.pageweights.eviction import evict_to_budget


@pytest.fixture(autouse=True)
def mounts() -> None:
    if (reason := private_mounts.why_not()) is not None:
        pytest.skip(reason)


def tree(root: Path) -> list[tuple[str, int]]:
    return sorted((str(path), path.lstat().st_mode) for path in root.rglob("*") if "locks" not in path.parts)


@pytest.mark.parametrize("named", [True, False])
def test_an_artifact_with_a_mount_below_stays_in_its_place(named: bool, tmp_path: Path) -> None:
    store = make_hostweights.make_store(tmp_path / "store")
    path = make_hostweights.make_artifact(store, 0)
    path.chmod(0o755)
    (path / "sub").mkdir()
    path.chmod(0o555)
    with private_mounts.tmpfs(path / "sub", "size=1m"):
        before = tree(store)
        run = hwctl_("evict", *([path] if named else [store, "--all"]), "-y", "--json")
        assert run.status == 12 and "is a mount point" in run.error["message"]
        assert tree(store) == before
    assert hwctl_("evict", path, "-y").status == 0
    assert list((store / "quarantine").iterdir()) == list((store / "artifacts").iterdir()) == []


@pytest.mark.parametrize("suffix", ["safetensors", "receipt.json"])
def test_a_page_with_a_file_mounted_keeps_its_locator(suffix: str, tmp_path: Path) -> None:
    cache = make_pageweights.make_store(tmp_path / "cache")
    make_pageweights.make_artifact(cache, 0)
    make_pageweights.put_lock(cache, 0)
    (file,) = cache.glob(f"*.{suffix}")
    before = tree(cache)
    private_mounts.mount("--bind", file, file)
    try:
        run = hwctl_("evict", cache, "--all", "-y", "--json")
        with roots.writable(cache) as root:
            evicted = evict_to_budget(root, 1, Deadline.now())
    finally:
        subprocess.run(["umount", file], check=True)
    assert run.status == 12 and "is a mount point" in run.error["message"]
    assert not evicted.reached and "is a mount point" in evicted.passed[0].reason
    assert [entry for entry in tree(cache) if ".eviction.lock" not in entry[0]] == before
    assert hwctl_("verify", cache).status == 0
