"""``hwctl verify`` as a process: verdicts, statuses and words for every outcome."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import holders
import make_hostweights
import make_ktint8
import make_pageweights
import pytest
import run_hwctl
from terminal import on_a_terminal

Run = Callable[..., run_hwctl.Run]


def tree(base: Path, run: str = "job-4711") -> Path:
    return base / f"kt-int8-{run}"


def shrink(folder: Path) -> Path:
    """Damage a tree that its sizes give away."""
    victim = next(path for path in sorted(folder.rglob("*.kt")) if "quant" in path.name)
    victim.write_bytes(b"short")
    return victim


def flip(path: Path) -> None:
    """Change one byte and leave size and times as they were (VER-05)."""
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    mode = path.stat().st_mode
    path.chmod(0o600)
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)[0]
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last ^ 1]))
    path.chmod(mode)
    os.utime(path, ns=times)


def test_all_valid_says_so(hwctl: Run, pages: Path) -> None:
    done = hwctl("verify", pages)
    assert done.status == 0
    lines = done.out.splitlines()
    assert [line.split()[0] for line in lines] == ["valid"] * 3 + ["verified"]
    assert "verified 3 artifacts: all valid, no errors found" in lines[-1]
    assert done.err == ""


def test_quiet_is_silent_when_all_is_well(hwctl: Run, pages: Path, base: Path) -> None:
    quick = ("--level", "size")
    assert hwctl("verify", "-q", pages, *quick) == hwctl("verify", *quick, pages, "-q")
    assert hwctl("verify", "-q", pages, *quick).out == ""
    shrink(tree(base))
    loud = hwctl("verify", "-q", base, *quick)
    assert loud.status == 65
    assert loud.out.splitlines()[0] == f"damaged {tree(base)}"
    assert "job-4712" not in loud.out


def test_damage_is_listed_and_does_not_hide_the_rest(hwctl: Run, base: Path, pages: Path) -> None:
    victim = shrink(tree(base))
    done = hwctl("verify", base, pages, "--json")
    assert done.status == 65
    document = done.document
    assert document["status"] == "damaged"
    assert document["totals"]["valid"] == 4
    assert document["totals"]["damaged"] == 1
    (bad,) = [row for row in document["results"] if not row["valid"]]
    assert bad["state"] == "damaged"
    assert bad["findings"][0]["file"] == str(victim.relative_to(tree(base)))
    assert done.error["code"] == "damaged"


@pytest.mark.parametrize(("level", "code"), [("marker", 0), ("size", 0), ("full", 65)])
def test_a_flipped_byte_is_found_at_full_and_the_quick_levels_do_not_boast(
    hwctl: Run, pages: Path, level: str, code: int
) -> None:
    flip(next(pages.glob("*.safetensors")))
    for words in ((), ("--json",)):
        done = hwctl("verify", pages, "--level", level, *words)
        assert done.status == code
        assert ("verified" in done.out) == (level == "full" and not words)


def test_absent_and_foreign_paths_are_10_and_name_the_path(hwctl: Run, tmp_path: Path, pages: Path) -> None:
    for path in (tmp_path / "nope", tmp_path):
        done = hwctl("verify", path, "--json")
        assert done.status == 10
        assert done.document["results"][0]["state"] == "absent"
        assert done.error["path"] == str(path)
    done = hwctl("verify", tmp_path / "nope", pages)
    assert done.status == 10
    assert done.out.count("valid /") == 3


def test_damage_wins_over_absence(hwctl: Run, base: Path, tmp_path: Path) -> None:
    shrink(tree(base))
    assert hwctl("verify", tmp_path / "nope", base, "--json").status == 65


def test_a_link_is_refused_by_name(
    hwctl: Run, pages: Path, weights: Path, base: Path, tmp_path: Path
) -> None:
    artifact = weights / "artifacts" / make_hostweights.key_of(0)
    link = tmp_path / "link"
    for target in (pages, weights, base, artifact, tree(base), tmp_path / "nowhere", link):
        link.symlink_to(target)
        done = hwctl("verify", link)
        assert (done.status, str(target) in done.out) == (12, True)
        link.unlink()


def test_a_link_inside_a_base_stands_for_nothing_else(hwctl: Run, base: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir(mode=0o700)
    make_ktint8.make_ready(other, "job-1")
    link = base / "kt-int8-job-4713"
    link.symlink_to(other)
    assert hwctl("evict", link, "-y").status == 12
    assert hwctl("evict", base, "--all", "-y").status in (0, 12)
    assert tree(other, "job-1").exists()


def test_busy_names_the_holder_and_waiting_ends(hwctl: Run, base: Path) -> None:
    with holders.locked(tree(base), "exclusive") as pid:
        done = hwctl("verify", tree(base), "--json")
        assert done.status == 11
        assert done.error["retryable"] is True
        assert str(pid) in json.dumps(done.error["details"])
        before = time.monotonic()
        waited = hwctl("verify", tree(base), "--wait", "0.5s")
        assert waited.status == 11
        assert time.monotonic() - before >= 0.5
        assert str(pid) in waited.out


def test_wait_also_waits_for_an_artifact_to_become_ready(hwctl: Run, tmp_path: Path) -> None:
    base = tmp_path / "late"
    base.mkdir()
    staging = make_ktint8.make_staging(base, "job-1234", pid=os.getpid(), process=make_ktint8.this_process())
    early = hwctl("verify", base / "kt-int8-job-1234", "--json")
    assert early.status == 11
    assert str(staging) in early.error["message"]
    mover = subprocess.Popen(
        ["sh", "-c", f"sleep 1; rm -r {staging}; mv {tmp_path}/other/kt-int8-job-1234 {base}/"]
    )
    (tmp_path / "other").mkdir()
    make_ktint8.make_ready(tmp_path / "other", "job-1234")
    late = hwctl("verify", base / "kt-int8-job-1234", "--wait", "30s")
    mover.wait(10)
    assert late.status == 0, late


def test_staging_of_a_dead_producer_is_damage_and_not_awaited(hwctl: Run, tmp_path: Path) -> None:
    staging = make_ktint8.make_staging(tmp_path, "job-1234", process=make_ktint8.dead_process())
    done = hwctl("verify", staging, "--json")
    assert done.status == 65
    assert done.document["results"][0]["findings"][0]["code"] == "abandoned"


def test_jobs_never_change_the_output(hwctl: Run, pages: Path, base: Path) -> None:
    shrink(tree(base))
    seen = set()
    for jobs in ("1", "2", "7"):
        for paths in ((pages, base), (base, pages)):
            document = hwctl("verify", *paths, "--level", "size", "--jobs", jobs, "--json").document
            seen.add(json.dumps({**document, "seconds": 0, "started": ""}))
    assert len(seen) == 1
    assert hwctl("verify", pages, "--level", "size", env={"HWCTL_JOBS": "3"}).status == 0
    assert hwctl("verify", pages, env={"HWCTL_JOBS": "0"}).status == 2
    assert hwctl("verify", pages, "--level=size", "--jobs=2", env={"HWCTL_JOBS": "0"}).status == 0


@pytest.mark.parametrize("ending", ["\n", "\0"])
def test_paths_from_a_list(hwctl: Run, base: Path, tmp_path: Path, ending: str) -> None:
    names = [str(tree(base)), "", str(tree(base, "job-4712"))]
    listed = "".join(name + ending for name in names).encode()
    zero = ("-0",) if ending == "\0" else ()
    piped = hwctl("verify", "--paths-from", "-", *zero, "--level", "size", "--json", stdin=listed)
    assert piped.document["totals"]["valid"] == 2
    (tmp_path / "list").write_bytes(listed)
    from_file = hwctl("verify", "--level=marker", "--paths-from", tmp_path / "list", *zero)
    assert from_file.status == 0
    if zero:
        assert hwctl("verify", "--paths-from", tmp_path / "list").status == 2  # one name with NULs in it
    assert hwctl("verify", "--paths-from", tmp_path / "absent").status == 2
    nothing = hwctl("verify", "--paths-from", "-", "--json", stdin=b"")
    assert nothing.status == 0
    assert nothing.document["results"] == []


def test_an_authority_names_a_page_that_need_not_be_there(hwctl: Run, pages: Path, tmp_path: Path) -> None:
    file = tmp_path / "authority.json"
    for number, code in ((1, 0), (7, 10)):
        file.write_text(json.dumps(make_pageweights.authority(number)))
        assert hwctl("verify", pages, "--authority", file, "--json").status == code
    file.write_text("{}")
    assert hwctl("verify", pages, "--authority", file, "--json").status == 2
    assert hwctl("verify", tmp_path / "base", "--authority", file).status == 10


def test_a_page_whose_files_are_missing_is_damaged(hwctl: Run, pages: Path, tmp_path: Path) -> None:
    for path in pages.glob(f"{make_pageweights.prefix_of(1)}.*.safetensors"):
        path.unlink()
    file = tmp_path / "authority.json"
    file.write_text(json.dumps(make_pageweights.authority(1)))
    assert hwctl("verify", pages, "--authority", file, "--json").status == 65


def test_a_pre_launch_check_says_what_is_wrong(hwctl: Run, weights: Path, tmp_path: Path) -> None:
    """LEA-05: half there, denied, being built, given up, set aside, of another identity: one line each."""

    def ask(number: int, *words: str, **other: object) -> run_hwctl.Run:
        document = make_hostweights.identity(number)
        document["representation"].update(other)  # type: ignore[attr-defined]
        file = tmp_path / "identity.json"
        file.write_text(json.dumps(document))
        return hwctl("verify", weights, "--identity", file, "--level", "marker", *words)

    assert ask(0).status == 0
    unmarked = make_hostweights.make_artifact(weights, 10)
    unmarked.chmod(0o755)
    (unmarked / "READY.json").unlink()
    unmarked.chmod(0o555)
    assert (ask(10).status, "READY.json" in ask(10).out) == (65, True)
    (weights / "deny" / f"{make_hostweights.key_of(1)}.json").touch()
    assert (ask(1).status, "denied" in ask(1).out) == (65, True)
    other = ask(2, dtype="torch.float64")
    assert (other.status, "representation.dtype" in other.out) == (10, True)
    assert ask(11).status == 10
    make_hostweights.make_staging(weights, 12)
    assert (ask(12).status, "never finished" in ask(12).out) == (10, True)
    with holders.locked(weights / "locks" / f"{make_hostweights.key_of(12)}.build.lock", "exclusive") as pid:
        building = ask(12)
        assert (building.status, str(pid) in building.out) == (11, True)
        assert ask(12, "--json").error["retryable"] is True
    aside = hwctl("quarantine", weights / "artifacts" / make_hostweights.key_of(0), "--reason", "odd", "-y")
    assert aside.status == 0
    assert (ask(0).status, "set aside" in ask(0).out) == (10, True)
    assert all(run.out.count("\n") <= 3 for run in (ask(0), ask(11), ask(12)))


def test_expectations_of_a_tree(hwctl: Run, base: Path, pages: Path) -> None:
    fits = ("--expect", "layers=0", "--expect", "hidden=64", "--expect", "intermediate=64")
    assert hwctl("verify", tree(base), *fits, "--expect", "numa=1", "--expect", "experts=1").status == 0
    other = hwctl("verify", tree(base), "--expect", "layers=0-2", "--expect", "experts=8", "--json")
    assert other.status == 65
    assert {finding["code"] for finding in other.document["results"][0]["findings"]} == {"not-expected"}
    for bad in ("layers=0-", "experts", "experts=0", "colour=red"):
        assert hwctl("verify", tree(base), "--expect", bad).status == 2
    assert hwctl("verify", tree(base), "--expect", "numa=1", "--expect", "numa=1").status == 2
    assert hwctl("verify", pages, "--expect", "experts=1").status == 2


def test_a_source_object_names_its_pages_until_it_is_touched(hwctl: Run, tmp_path: Path) -> None:
    source, page, cache = tmp_path / "source", tmp_path / "page.safetensors", tmp_path / "cache"
    source.write_bytes(b"source object")
    page.write_bytes(make_pageweights.artifact_bytes(7, 8))
    words = ("--source", source, "--source-format-revision", "1", "--page-id", "7")
    assert hwctl("publish", "pageweights", "--page", page, "--cache", cache, *words).status == 0
    ask = ("verify", cache, "--source", source, "--level", "size", "--json")
    done = hwctl(*ask)
    assert (done.status, done.document["totals"]["valid"]) == (0, 1)
    os.utime(source, ns=(0, 0))
    assert (hwctl(*ask).status, "touched" in hwctl(*ask).error["message"]) == (10, True)
    source.write_bytes(b"another")
    assert hwctl(*ask).status == 10
    source.unlink()
    assert hwctl(*ask).status == 2


def test_a_tree_must_fit_the_model(hwctl: Run, base: Path, tmp_path: Path) -> None:
    config: dict[str, object] = {
        "model_type": "qwen3_moe",
        "num_experts": 1,
        "hidden_size": 64,
        "moe_intermediate_size": 64,
        "num_hidden_layers": 1,
    }

    def ask(*words: str, **other: object) -> int:
        (tmp_path / "config.json").write_text(json.dumps(config | other))
        return hwctl("verify", tree(base), "--level", "marker", "--for", tmp_path, *words).status

    assert ask() == 0
    assert ask("--numa", "1") == 0
    assert ask("--numa", "2") == 65
    assert ask(num_experts=8) == 65
    assert ask(num_hidden_layers=2) == 65
    assert ask(model_type="gpt_oss") == 13
    assert ask(hidden_size="wide") == 2
    (tmp_path / "config.json").unlink()
    assert hwctl("verify", tree(base), "--for", tmp_path).status == 2


def test_unreadable_is_not_damaged(hwctl: Run) -> None:
    """VER-10: what could not be looked at is 15, whatever else could."""
    with tempfile.TemporaryDirectory(prefix="hwctl-unreadable-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        make_ktint8.make_ready(folder, "job-4711")
        done = hwctl("verify", tree(folder), "--json", uid=run_hwctl.NOBODY)
        assert done.status == 15
        assert done.document["results"][0]["valid"] is None
        (row,) = hwctl("inspect", folder, "--json", uid=run_hwctl.NOBODY).document["results"]
        assert (row["state"], row["owner_uid"]) == ("unreadable", 0)


def test_a_timeout_is_could_not_check(hwctl: Run, tmp_path: Path) -> None:
    root = make_pageweights.make_store(tmp_path / "large")
    make_pageweights.make_artifact(root, 1, floats=4_000_000)
    make_pageweights.put_lock(root, 1)
    done = hwctl("verify", root, "--timeout", "0.01s", "--json")
    assert done.status == 15, done
    assert done.document["results"][0]["valid"] is None
    slow = hwctl("verify", root, "--rate", "1GB", "--json")
    assert slow.status == 0


def test_a_denied_artifact_is_called_denied_and_counted_as_damaged(hwctl: Run, weights: Path) -> None:
    path = weights / "artifacts" / make_hostweights.key_of(1)
    (weights / "deny" / f"{path.name}.json").touch()
    done = hwctl("verify", path)
    assert (done.status, done.out.splitlines()[0]) == (65, f"denied {path}")
    assert done.out.splitlines()[-1].startswith("verified 1 artifact: 1 denied")
    totals = hwctl("verify", path, "--json").document["totals"]
    assert (totals["damaged"], totals["valid"], totals["absent"]) == (1, 0, 0)
    flip(path / "model.safetensors")
    assert hwctl("verify", path).out.splitlines()[0] == f"damaged {path}"


def test_a_missing_marker_is_told_once(hwctl: Run, weights: Path) -> None:
    path = weights / "artifacts" / make_hostweights.key_of(0)
    path.chmod(0o755)
    (path / "READY.json").unlink()
    path.chmod(0o555)
    done = hwctl("verify", path, "--json")
    found = [(item["code"], item["file"]) for item in done.results[0]["findings"]]
    assert found == [("missing-file", "READY.json")]


def test_the_file_of_a_finding_is_said_once(hwctl: Run, weights: Path) -> None:
    path = weights / "artifacts" / make_hostweights.key_of(0)
    flip(path / "model.safetensors")
    line = hwctl("verify", path).out.splitlines()[1]
    assert f"{path}: digest-mismatch model.safetensors: the bytes have another SHA-256 (expected" in line


def test_what_is_absent_was_not_verified(hwctl: Run, base: Path) -> None:
    done = hwctl("verify", "--expect", "numa=1", tree(base, "job-9999"))
    assert (done.status, done.out.splitlines()[-1]) == (10, "nothing was verified: 1 absent")


def test_an_empty_store_is_ok_and_the_line_says_how_to_insist(hwctl: Run, tmp_path: Path) -> None:
    store = make_hostweights.make_store(tmp_path / "store")
    done = hwctl("verify", store)
    said = "nothing to check: no artifacts here; name one, or --identity, where one must be there\n"
    assert (done.status, done.out) == (0, said)
    identity = tmp_path / "id.json"
    identity.write_text(json.dumps(make_hostweights.identity(0)))
    assert hwctl("verify", store, "--identity", identity).status == 10


def test_on_a_terminal_findings_stand_below_their_artifact(weights: Path) -> None:
    (artifact,) = [weights / "artifacts" / make_hostweights.key_of(0)]
    artifact.chmod(0o755)
    (artifact / "READY.json").unlink()
    artifact.chmod(0o555)
    shown = on_a_terminal("verify", artifact, "--color", "never", status=65).splitlines()
    assert shown[:2] == [f"damaged {artifact}", "    missing-file READY.json: READY.json is missing"]


def test_a_path_that_is_not_there_is_told_and_counted_like_an_absent_key(
    hwctl: Run, weights: Path, tmp_path: Path
) -> None:
    """A PATH that leads nowhere, a link in place of a store, a key that is absent: none was checked."""
    good = weights / "artifacts" / make_hostweights.key_of(0)
    gone, key, link = tmp_path / "gone", weights / "artifacts" / ("0" * 64), tmp_path / "link"
    link.symlink_to(weights)
    metrics = tmp_path / "verify.prom"
    done = hwctl("verify", good, gone, key, link, "--level", "size", "--metrics", metrics)
    assert done.status == 12 and done.err == ""
    assert sorted(done.out.splitlines()[:-1]) == [
        f"absent {gone}: does not exist",
        f"absent {key}: is absent",
        f"unchecked {link}: is a symbolic link to {weights}; name its target instead",
        f"valid {good}",
    ]
    assert done.out.splitlines()[-1] == "checked, sizes only, 4 artifacts: 1 valid, 2 absent, 1 unchecked"
    assert 'hwctl_verify_artifacts{result="absent"} 2\n' in metrics.read_text()
    assert 'hwctl_verify_artifacts{result="unchecked"} 1\n' in metrics.read_text()

    told = hwctl("verify", good, gone, "--json")
    assert (told.status, told.error["path"]) == (10, str(gone))
    assert told.document["totals"] | {"artifacts": 2, "valid": 1, "absent": 1} == told.document["totals"]
    alone = hwctl("verify", gone, "-q")
    assert (alone.status, alone.err) == (10, "")
    assert alone.out == f"absent {gone}: does not exist\nnothing was verified: 1 absent\n"


def test_what_is_in_quarantine_is_not_to_be_quarantined_again(hwctl: Run, weights: Path) -> None:
    folder = weights / "artifacts" / make_hostweights.key_of(0)
    flip(folder / "model.safetensors")
    assert "hwctl quarantine PATH" in hwctl("verify", folder).err
    assert hwctl("quarantine", folder, "--reason", "a flipped bit", "--yes").status == 0
    (aside,) = (weights / "quarantine").iterdir()
    done = hwctl("verify", aside)
    assert done.status == 65 and "hwctl quarantine PATH" not in done.err
