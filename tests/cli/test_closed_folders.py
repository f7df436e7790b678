"""A host weight store that another user may see in part: what can be seen is shown (INS-03, LEA-04)."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import make_hostweights
import pytest
import run_hwctl
from run_hwctl import NOBODY

Run = Callable[..., run_hwctl.Run]


@pytest.fixture
def store() -> Iterator[Path]:
    """Root's store of one artifact that everybody may read."""
    if os.geteuid() != 0:
        pytest.skip("only uid 0 can look as somebody else")
    with tempfile.TemporaryDirectory(prefix="hwctl-closed-") as name:
        Path(name).chmod(0o755)
        root = make_hostweights.make_store(Path(name) / "weights")
        make_hostweights.make_artifact(root, 0, locks=False)
        for path in (root, *root.iterdir()):
            path.chmod(0o755 if path.is_dir() else 0o644)
        (root / "artifacts").chmod(0o755)
        yield root


@pytest.mark.parametrize("folder", ["tmp", "quarantine", "artifacts"])
def test_a_closed_folder_is_a_row_and_hides_nothing_else(hwctl: Run, store: Path, folder: str) -> None:
    (store / folder).chmod(0o700)
    run = hwctl("inspect", store, "--json", uid=NOBODY)
    rows = {row["path"]: row for row in run.results}
    barred = rows.pop(str(store / folder))
    assert (barred["state"], barred["owner_uid"]) == ("unreadable", 0)
    assert f"belongs to uid 0, the caller is uid {NOBODY}" in barred["reason"]
    assert [row["state"] for row in rows.values()] == ([] if folder == "artifacts" else ["ready"])
    run = hwctl("verify", store, "--json", uid=NOBODY)
    assert run.status == 15
    assert {row["path"]: row["valid"] for row in run.results} == {
        str(store / folder): None,
        **({} if folder == "artifacts" else dict.fromkeys(rows, True)),
    }


@pytest.mark.parametrize("folder", ["deny", "locks"])
def test_without_markers_or_locks_it_is_said_what_is_closed(hwctl: Run, store: Path, folder: str) -> None:
    (store / folder).chmod(0o700)
    run = hwctl("inspect", store, "--json", uid=NOBODY)
    assert str(store / "artifacts" / make_hostweights.key_of(0)) in {row["path"] for row in run.results}
    run = hwctl("verify", store / "artifacts" / make_hostweights.key_of(0), uid=NOBODY)
    assert run.status == 15
    assert f"{store / folder}" in run.out
    assert "ermission denied" in run.out


def test_a_deny_marker_that_is_a_folder_bars_no_rebuild(hwctl: Run, tmp_path: Path) -> None:
    tiny, store = Path(__file__).parents[1] / "data" / "tiny-llama", tmp_path / "store"
    words = ("publish", "hostweights", "--from", tiny, "--store", store)
    assert hwctl(*words).status == 0
    (key,) = os.listdir(store / "artifacts")
    marker = store / "deny" / f"{key}.json"
    (marker / "deep").mkdir(parents=True)
    assert hwctl("verify", store).status == 65
    assert hwctl(*words).status == 0
    assert not marker.exists()
    assert hwctl("verify", store).status == 0
