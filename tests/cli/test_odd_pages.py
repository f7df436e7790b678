"""Pages whose files are not what their names say: every verb tells so, and none makes it worse."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import make_pageweights
import pytest
from holders import locked, passed_around
from run_hwctl import environment, hwctl_

prefix_of = make_pageweights.prefix_of


def files(pages: Path, number: int = 0) -> tuple[Path, Path, Path]:
    """Locator, receipt and artifact of a page."""
    (receipt,) = pages.glob(f"{prefix_of(number)}.*.receipt.json")
    (artifact,) = pages.glob(f"{prefix_of(number)}.*.safetensors")
    return pages / f"{prefix_of(number)}.locator.json", receipt, artifact


def located(pages: Path) -> set[str]:
    return {path.name[:64] for path in pages.glob("*.locator.json")}


def as_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def as_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def as_link(path: Path) -> None:
    path.rename(path.parent / "elsewhere")
    path.symlink_to("elsewhere")


def as_link_to_nothing(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


def cut(path: Path) -> None:
    path.chmod(0o600)
    os.truncate(path, 100)


def empty(path: Path) -> None:
    path.chmod(0o600)
    os.truncate(path, 0)


@pytest.mark.parametrize("which", [1, 2], ids=["receipt", "artifact"])
@pytest.mark.parametrize(
    ("spoil", "state"),
    [
        (as_folder, "damaged"),
        (as_pipe, "damaged"),
        (as_link, "damaged"),
        (as_link_to_nothing, "incomplete"),
        (cut, "damaged"),
        (empty, "damaged"),
    ],
)
def test_inspect_tells_what_the_stat_of_a_file_shows(
    spoil: Callable[[Path], None], state: str, which: int, pages: Path
) -> None:
    spoil(files(pages)[which])
    run = hwctl_("inspect", pages, "--json")
    states = {row["key"]: row["state"] for row in run.results}
    assert run.status == 0 and states[prefix_of(0)] == state
    assert [states[prefix_of(number)] for number in (1, 2)] == ["ready", "ready"]
    assert hwctl_("verify", pages).status == 65


def test_a_locator_that_is_a_link_to_nothing_is_a_row(pages: Path) -> None:
    as_link_to_nothing(files(pages)[0])
    run = hwctl_("inspect", pages, "--json")
    (row,) = [row for row in run.results if row["key"] == prefix_of(0)]
    assert row["state"] == "damaged" and "link to nothing" in row["reason"]
    checked = hwctl_("verify", pages, "--json")
    (row,) = [row for row in checked.results if row["key"] == prefix_of(0)]
    assert checked.status == 65 and [one["code"] for one in row["findings"]] == ["unprotected"]
    emptied = hwctl_("evict", pages, "--all", "-y", "--json")
    assert {row["key"]: row["outcome"] for row in emptied.results}[prefix_of(0)] == "skipped"
    assert os.path.islink(pages / f"{prefix_of(0)}.locator.json")
    assert hwctl_("quarantine", pages / f"{prefix_of(0)}.locator.json", "--reason", "odd", "-y").status == 0
    assert not list(pages.glob("*.json")) and not list(pages.glob("*.safetensors"))


def test_a_circle_of_links_and_a_closed_one_stop_no_eviction(pages: Path) -> None:
    for name, target in (("s", "s.safetensors"), ("t", "elsewhere/below"), ("u", "nowhere")):
        (pages / f"{name}.safetensors").symlink_to(target)
    (pages / "elsewhere").touch()
    one = files(pages)[2].stat().st_size
    run = hwctl_("evict", pages, "--max-size", str(one), "-y")
    assert run.status == 0, run.err
    assert len(located(pages)) == 1


@pytest.mark.parametrize("by_size", [True, False])
def test_a_link_in_place_of_an_artifact_counts_the_same_coming_and_going(by_size: bool, pages: Path) -> None:
    artifact = files(pages)[2]
    one = artifact.stat().st_size
    as_link(artifact)
    for number in range(3):
        make_pageweights.set_last_use(pages, number, 10**18 + number)
    run = hwctl_("inspect", pages, "--json")
    assert run.document["totals"]["stores"][0]["bytes"] == 3 * one
    assert sum(row["bytes"] for row in run.results if row["state"] != "foreign") == 3 * one
    words = ("--max-size", str(2 * one)) if by_size else ("--keep", "2")
    run = hwctl_("evict", pages, *words, "-y", "--json")
    assert run.status == 0 and located(pages) == {prefix_of(1), prefix_of(2)}
    assert run.document["totals"]["stores"][0]["size"] == 2 * one


@pytest.mark.parametrize("which", [1, 2], ids=["receipt", "artifact"])
def test_a_folder_among_a_pages_files_is_seen_before_any_of_them_goes(which: int, pages: Path) -> None:
    locator, odd = files(pages)[0], files(pages)[which]
    as_folder(odd)
    for words in (("evict", locator), ("evict", pages, "--all")):
        run = hwctl_(*words, "-y")
        assert run.status == 12 and "is a directory" in run.out
        assert locator.exists() and odd.is_dir()
    assert located(pages) == {prefix_of(0)}
    assert hwctl_("quarantine", locator, "--reason", "odd", "-y").status == 0
    assert hwctl_("evict", pages, "--quarantined", "--all", "-y").status == 0
    assert not list(pages.glob("*.json")) and not odd.exists()


def test_an_orphan_with_a_folder_in_it_can_be_set_aside(pages: Path, tmp_path: Path) -> None:
    """What another program's eviction left: the locator gone, and a folder in place of the receipt."""
    locator, receipt, artifact = files(pages)
    as_folder(receipt)
    locator.unlink()
    run = hwctl_("reclaim-stale", pages, "-y")
    assert run.status == 12 and "is a directory" in run.out and artifact.exists()
    page, authority = tmp_path / "page.safetensors", tmp_path / "authority.json"
    page.write_bytes(make_pageweights.artifact_bytes(0, 8))
    authority.write_text(json.dumps(make_pageweights.authority(0)))
    publish = ("publish", "pageweights", "--cache", pages, "--page", page, "--authority", authority)
    run = hwctl_(*publish)
    assert run.status == 12 and "is a directory" in run.err
    assert receipt.is_dir() and artifact.exists() and not list(pages.glob(".*.tmp"))
    assert hwctl_("quarantine", artifact, "--reason", "odd", "-y").status == 0
    assert not receipt.exists() and not artifact.exists()
    assert hwctl_(*publish).status == 0
    assert hwctl_("verify", pages).status == 0


def test_an_orphan_set_aside_takes_no_page_with_it(pages: Path) -> None:
    orphan = make_pageweights.make_artifact(pages, 0, 64, locator=False)
    before = located(pages)
    run = hwctl_("quarantine", orphan, "--reason", "in the way", "-y")
    assert run.status == 0, run.err
    assert not orphan.exists() and located(pages) == before
    assert hwctl_("verify", pages).status == 0


def test_the_last_use_orders_clocks_that_cannot_be_true(pages: Path) -> None:
    clocks = {number: 4 * 10**18 - number * 10**9 for number in range(3)}
    for number, clock in clocks.items():
        make_pageweights.set_last_use(pages, number, clock)
    assert hwctl_("evict", pages, "--keep", "1", "-y").status == 0
    assert located(pages) == {prefix_of(0)}


def test_totals_have_the_allocated_bytes_beside_the_size(pages: Path, weights: Path, base: Path) -> None:
    run = hwctl_("inspect", pages, weights, base, "--json")
    (base_, weights_, pages_) = (
        next(one for one in run.document["totals"]["stores"] if one["store"] == str(store))
        for store in (base, weights, pages)
    )
    artifacts = list(pages.glob("*.safetensors"))
    assert pages_["bytes"] == sum(path.stat().st_size for path in artifacts)
    assert pages_["allocated_bytes"] == sum(path.stat().st_blocks * 512 for path in artifacts)
    assert weights_["allocated_bytes"] == blocks(weights)
    trees = [Path(row["path"]) for row in run.results if row["family"] == "ktint8"]
    assert base_["allocated_bytes"] == sum(map(blocks, trees)) > 0


def blocks(top: Path) -> int:
    return sum(path.lstat().st_blocks * 512 for path in (top, *top.rglob("*")))


def test_a_named_page_must_be_of_the_authority(pages: Path, tmp_path: Path) -> None:
    authority = tmp_path / "authority.json"
    authority.write_text(json.dumps(make_pageweights.authority(1)))
    mine, other = files(pages, 1), files(pages, 2)
    for path in (*mine, pages / prefix_of(1)):
        run = hwctl_("verify", path, "--authority", authority, "--level", "size", "--json")
        assert run.status == 0 and [row["key"] for row in run.results] == [prefix_of(1)]
    run = hwctl_("verify", other[0], "--authority", authority, "--level", "size", "--json")
    assert run.status == 65 and run.results[0]["findings"][0]["code"] == "locator-authority"
    run = hwctl_("verify", mine[0], "--source", authority, "--level", "size", "--json")
    assert run.status == 65 and run.results[0]["findings"][0]["code"] == "locator-authority"
    mine[0].unlink()
    shutil.rmtree(mine[1], ignore_errors=True)
    assert hwctl_("verify", mine[0], "--authority", authority).status == 10


def test_torch_is_loaded_before_any_lock_is_taken(pages: Path, tmp_path: Path) -> None:
    """Its first import takes seconds, and the cache's own program waits for that lock at every access."""
    told, lock = tmp_path / "told", pages / f".{prefix_of(0)}.lock"
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "torch.py").write_text(
        "import fcntl, os\n"
        f"fd = os.open({str(lock)!r}, os.O_RDWR)\n"
        f"with open({str(told)!r}, 'a') as file:\n"
        "    try:\n"
        "        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
        "        print('free', file=file)\n"
        "    except BlockingIOError:\n"
        "        print('held', file=file)\n"
        "os.close(fd)\n"
        "raise ImportError('no torch here')\n"
    )
    env = {"PYTHONPATH": f"{tmp_path / 'here'}:{environment()['PYTHONPATH']}"}
    page, authority = tmp_path / "page.safetensors", tmp_path / "authority.json"
    page.write_bytes(make_pageweights.artifact_bytes(0, 8))
    authority.write_text(json.dumps(make_pageweights.authority(0)))
    publish = ("publish", "pageweights", "--cache", pages, "--page", page, "--authority", authority)
    locator = files(pages)[0]
    for words in (("verify", locator), publish):
        assert hwctl_(*words, env=env).status == 0
    locator.unlink()
    assert hwctl_(*publish, env=env).status == 13
    assert told.read_text().split() == ["free"] * 3


def test_quarantine_waits_for_a_running_eviction(pages: Path) -> None:
    """The cache's own program dies of a file that goes between its listing and its look at the size."""
    make_pageweights.put_eviction_lock(pages)
    with locked(pages / ".eviction.lock", "exclusive") as pid:
        run = hwctl_("quarantine", files(pages)[0], "--reason", "odd", "-y", "--json")
        assert run.status == 11 and str(pid) in run.results[0]["reason"]
        assert len(located(pages)) == 3
    assert hwctl_("quarantine", files(pages)[0], "--reason", "odd", "-y").status == 0


@pytest.mark.parametrize("verb", ["quarantine", "evict"])
def test_programs_at_work_make_nobody_busy(verb: str, pages: Path) -> None:
    """Each access of the cache's own program takes the eviction lock for a moment."""
    make_pageweights.put_eviction_lock(pages)
    words = ("evict", pages, "--all") if verb == "evict" else (verb, files(pages)[0], "--reason", "odd")
    with passed_around(pages / ".eviction.lock"):
        run = hwctl_(*words, "-y", "--json")
    assert run.status == 0 and {row["outcome"] for row in run.results} == {"done"}
