"""``hwctl publish pageweights`` as a process: what lands in the cache, what is said, each status.

Most pages here hold integers, whose finiteness needs no torch: importing it takes longer than all the rest.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import struct
from pathlib import Path
from typing import Any

import make_pageweights
import pytest
from holders import locked
from run_hwctl import NOBODY, Run, environment, hwctl_, start


@pytest.fixture
def page(tmp_path: Path) -> Path:
    """The file of page 7, laid out as no library would: the cache lays it out anew."""
    return write_page(tmp_path / "page7.safetensors", 7)


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    return write_authority(tmp_path / "page7.json", 7)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "below" / "cache"


def write_page(
    path: Path, number: int, floats: int = 8, last: float | None = None, dtype: str = "I32"
) -> Path:
    raw = make_pageweights.artifact_bytes(number, floats)
    if last is not None:
        raw = raw[:-4] + struct.pack("<f", last)
    length = struct.unpack_from("<Q", raw)[0]
    # Other padding and metadata: the same tensors, other bytes.
    header = json.loads(raw[8 : 8 + length].replace(b"F32", dtype.encode()))
    text = json.dumps({"__metadata__": {"by": "hand"}, **header}).encode() + b" " * 64
    path.write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + length :])
    return path


def record(number: int, **changes: object) -> dict[str, object]:
    return {**make_pageweights.authority(number), "materializedDtype": "int32", **changes}


def prefix_of(number: int) -> str:
    return make_pageweights.digest(record(number))


def write_authority(path: Path, number: int, **changes: object) -> Path:
    path.write_text(json.dumps(record(number, **changes)))
    return path


def publish(page: Path, cache: Path, *words: str | Path, **more: Any) -> Run:
    return hwctl_("publish", "pageweights", "--page", page, "--cache", cache, *words, **more)


def result(run: Run) -> dict[str, Any]:
    (row,) = run.results
    return row


def names(cache: Path) -> set[str]:
    """What lies in a cache, lock files left out."""
    return {path.name for path in cache.iterdir() if not path.name.endswith(".lock")}


def made_by_hand(tmp_path: Path, number: int) -> dict[str, tuple[int, bytes]]:
    """The same page as an independent writer of the format makes it."""
    root = make_pageweights.make_store(tmp_path / "by-hand")
    make_pageweights.make_artifact(root, number)
    make_pageweights.put_eviction_lock(root)
    return contents(root)


def contents(root: Path) -> dict[str, tuple[int, bytes]]:
    return {path.name: (stat.S_IMODE(path.stat().st_mode), path.read_bytes()) for path in root.iterdir()}


def test_a_page_lands_byte_for_byte_as_the_format_says(cache: Path, tmp_path: Path) -> None:
    page = write_page(tmp_path / "page", 7, dtype="F32")
    authority = write_authority(tmp_path / "authority.json", 7, materializedDtype="float32")
    run = publish(page, cache, "--authority", authority)
    prefix = make_pageweights.prefix_of(7)
    assert (run.status, run.out) == (0, f"{cache}/{prefix}.locator.json\n"), run.err
    assert contents(cache) == made_by_hand(tmp_path, 7)
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700


def test_the_document_names_every_link_of_the_chain(page: Path, authority: Path, cache: Path) -> None:
    run = publish(page, cache, "--authority", authority, "--json")
    assert run.status == 0 and run.document["schema"] == "hwctl.publish-pageweights/1"
    row, prefix = result(run), prefix_of(7)
    assert (row["outcome"], row["state"], row["key"]) == ("published", "ready", prefix)
    stem = cache / f"{prefix}.{row['cache_key']}"
    assert row["artifact_sha256"] == hashlib.sha256(Path(f"{stem}.safetensors").read_bytes()).hexdigest()
    assert row["manifest_sha256"] == hashlib.sha256(Path(f"{stem}.receipt.json").read_bytes()).hexdigest()
    assert row["findings"] == [] and row["evicted"] == []


def test_what_is_there_already_is_a_hit_that_moves_the_clock(
    page: Path, authority: Path, cache: Path
) -> None:
    publish(page, cache, "--authority", authority)
    locator = cache / f"{prefix_of(7)}.locator.json"
    os.utime(locator, ns=(10**18, 10**18))
    before = contents(cache)
    run = publish(page, cache, "--authority", authority, "--json")
    assert (run.status, result(run)["outcome"]) == (0, "already-published")
    assert contents(cache) == before
    assert locator.stat().st_mtime_ns > 10**18


@pytest.mark.parametrize("victims", ["*.safetensors", "*.receipt.json", "*.locator.json *.safetensors"])
def test_what_is_left_of_an_incomplete_page_goes_and_that_is_said(
    page: Path, authority: Path, cache: Path, victims: str
) -> None:
    publish(page, cache, "--authority", authority)
    for pattern in victims.split():
        (victim,) = cache.glob(pattern)
        victim.unlink()
    run = publish(page, cache, "--authority", authority, "--json")
    assert (run.status, result(run)["outcome"]) == (0, "published")
    assert run.document["warnings"] == ["the rest of an incomplete page was in its place and is gone"]
    assert hwctl_("verify", cache).status == 0


def test_a_dry_run_says_of_a_page_that_is_there_what_the_run_would(
    page: Path, authority: Path, cache: Path, tmp_path: Path
) -> None:
    words = ("--authority", authority, "--json")
    publish(page, cache, *words)
    before = contents(cache)
    hit = publish(page, cache, *words, "-n")
    assert (hit.status, result(hit)["outcome"]) == (0, "already-published")
    other = write_page(tmp_path / "other", 7, last=1.5)
    assert publish(other, cache, *words, "-n").status == publish(other, cache, *words).status == 12
    assert contents(cache).keys() == before.keys()
    (artifact,) = cache.glob("*.safetensors")
    data = artifact.read_bytes()
    artifact.chmod(0o600)
    artifact.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    artifact.chmod(before[artifact.name][0])
    damaged = publish(page, cache, *words, "-n")
    assert (damaged.status, publish(page, cache, *words).status) == (65, 65)
    assert damaged.results[0]["findings"] and "quarantine it" in damaged.error["message"]
    artifact.unlink()
    missing = publish(page, cache, *words, "-n")
    assert (missing.status, result(missing)["outcome"]) == (0, "planned")
    assert missing.document["warnings"] == ["the rest of an incomplete page is in its place and will go"]


def test_a_source_object_gives_the_authority(page: Path, cache: Path, tmp_path: Path) -> None:
    source = tmp_path / "session"
    source.write_bytes(b"accepted " * 500)
    words = ("--source", source, "--source-format-revision", "2", "--page-id", "7")
    run = publish(page, cache, *words, "--json")
    assert run.status == 0, run.err
    st = source.stat()
    recorded = json.loads(Path(result(run)["path"]).read_bytes())["authority"]
    assert recorded == {
        "contractRevision": 1,
        "pageId": 7,
        "sourceObjectSha256": hashlib.sha256(source.read_bytes()).hexdigest(),
        "sourceObjectBytes": st.st_size,
        "sourceFileIdentity": [st.st_dev, st.st_ino, st.st_size, st.st_mtime_ns, st.st_ctime_ns],
        "sourceFormatRevision": 2,
        "materializedDtype": "int32",
    }
    assert hwctl_("verify", cache, "--source", source).status == 0
    source.chmod(0o640)  # the ctime is part of the authority: this is another one, and has no page yet
    assert hwctl_("verify", cache, "--source", source).status == 10
    assert result(publish(page, cache, *words, "--json"))["outcome"] == "published"


def test_a_dry_run_says_what_would_happen_and_writes_nothing(
    page: Path, authority: Path, cache: Path
) -> None:
    run = publish(page, cache, "--authority", authority, "--json", "-n")
    assert (run.status, result(run)["outcome"]) == (0, "planned")
    assert run.document["dry_run"] is True and not cache.parent.exists()
    publish(page, cache, "--authority", authority)
    before = contents(cache)
    assert result(publish(page, cache, "--authority", authority, "--json", "-n"))["outcome"] == (
        "already-published"
    )
    assert contents(cache) == before


@pytest.mark.parametrize(
    "change",
    [
        {"pageId": -1},
        {"pageId": 2**63},
        {"sourceObjectBytes": 4097},
        {"sourceObjectSha256": "AB" * 32},
        {"sourceFormatRevision": True},
        {"sourceFileIdentity": [1, 2, 4096]},
        {"sourceFileIdentity": [1, 2**64, 4096, 3, 4]},
        {"contractRevision": 2},
        {"another": 1},
    ],
)
def test_an_authority_that_nothing_can_be_published_under_is_a_usage_error(
    change: dict[str, object], page: Path, cache: Path, tmp_path: Path
) -> None:
    run = publish(page, cache, "--authority", write_authority(tmp_path / "bad.json", 7, **change), "--json")
    assert run.status == 2 and run.error["code"] == "usage"
    assert not cache.parent.exists()


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--source", "x"],
        ["--source", "x", "--page-id", "1"],
        ["--authority", "a.json", "--page-id", "1"],
        ["--authority", "a.json", "--source", "x"],
        ["--authority", "a.json", "--family", "ktint8"],
        ["--authority", "a.json", "--budget", "0"],
        ["--source", "x", "--source-format-revision", "1", "--page-id", "-1"],
    ],
)
def test_options_that_make_no_sense_touch_nothing(words: list[str], page: Path, cache: Path) -> None:
    run = publish(page, cache, *words)
    assert run.status == 2 and run.out == ""
    assert not cache.parent.exists()


def test_an_infinity_is_refused_and_leaves_nothing_but_a_lock(cache: Path, tmp_path: Path) -> None:
    bad = write_page(tmp_path / "bad.safetensors", 7, last=float("inf"), dtype="F32")
    authority = write_authority(tmp_path / "float.json", 7, materializedDtype="float32")
    run = publish(bad, cache, "--authority", authority, "--json")
    assert run.status == 65
    assert [finding["code"] for finding in result(run)["findings"]] == ["nonfinite"]
    assert names(cache) == set()


def test_tensors_of_another_page_or_dtype_are_named_before_anything_is_made(
    page: Path, cache: Path, tmp_path: Path
) -> None:
    other = write_authority(tmp_path / "other.json", 8, materializedDtype="bfloat16")
    run = publish(page, cache, "--authority", other, "--json")
    assert run.status == 65
    codes = [finding["code"] for finding in result(run)["findings"]]
    assert set(codes) == {"tensor-authority"} and len(codes) == 10
    run = publish(page, cache, "--authority", write_authority(tmp_path / "page8.json", 8), "--json")
    assert run.status == 65 and "holds 7" in result(run)["findings"][0]["message"]


def test_a_file_that_is_no_page_is_called_what_it_is(authority: Path, cache: Path, tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize 12345\n" % ("a" * 64))
    run = publish(text, cache, "--authority", authority, "--json")
    assert run.status == 65 and result(run)["findings"][0]["code"] == "lfs-pointer"
    run = publish(tmp_path / "absent", cache, "--authority", authority)
    assert run.status == 10 and "absent" in run.err


def test_other_content_under_the_same_authority_is_refused(
    page: Path, authority: Path, cache: Path, tmp_path: Path
) -> None:
    """PUB-12."""
    publish(page, cache, "--authority", authority)
    before = contents(cache)
    other = write_page(tmp_path / "other.safetensors", 7, last=1.25)
    run = publish(other, cache, "--authority", authority, "--json")
    assert run.status == 12
    assert len({run.error["details"]["there"], run.error["details"]["offered"]}) == 2
    assert contents(cache) == before


def test_a_damaged_page_stays_until_it_is_quarantined(page: Path, authority: Path, cache: Path) -> None:
    publish(page, cache, "--authority", authority)
    (artifact,) = cache.glob("*.safetensors")
    artifact.chmod(0o600)
    artifact.write_bytes(artifact.read_bytes()[:-1] + b"\x01")
    run = publish(page, cache, "--authority", authority, "--json")
    assert run.status == 65
    assert [finding["code"] for finding in result(run)["findings"]] == ["artifact-hash"]
    locator = cache / f"{prefix_of(7)}.locator.json"
    assert hwctl_("quarantine", locator, "--reason", "bad RAM", "--yes").status == 0
    run = publish(page, cache, "--authority", authority, "--json")
    assert (run.status, result(run)["outcome"]) == (0, "published")
    assert hwctl_("verify", cache).status == 0


def test_a_held_page_is_busy_and_its_holder_is_named(page: Path, authority: Path, cache: Path) -> None:
    publish(page, cache, "--authority", authority)
    before = contents(cache)
    with locked(cache / f".{prefix_of(7)}.lock") as pid:
        run = publish(page, cache, "--authority", authority, "--wait", "0.2s", "--json")
    assert run.status == 11 and run.error["retryable"] is True
    assert [holder["pid"] for holder in run.error["details"]["holders"]] == [pid]
    assert contents(cache) == before


def test_eight_at_once_publish_once(page: Path, authority: Path, cache: Path) -> None:
    words = ("publish", "pageweights", "--page", page, "--cache", cache, "--authority", authority, "--json")
    running = [start(*words) for _ in range(8)]
    outcomes = []
    for process in running:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        outcomes.append(json.loads(out)["results"][0]["outcome"])
    assert outcomes.count("published") == 1
    assert set(outcomes) <= {"published", "joined", "already-published"}
    assert len(names(cache)) == 3


def test_a_budget_evicts_the_least_recently_used(
    pages: Path, page: Path, authority: Path, tmp_path: Path
) -> None:
    for number, rank in ((0, 2), (1, 1), (2, 3)):
        make_pageweights.set_last_use(pages, number, 10**18 + rank)
    size = next(pages.glob("*.safetensors")).stat().st_size
    run = publish(page, pages, "--authority", authority, "--budget", str(3 * size), "--json")
    assert run.status == 0
    assert result(run)["evicted"] == [make_pageweights.prefix_of(1)]
    left = {path.name.partition(".")[0] for path in pages.glob("*.locator.json")}
    assert left == {*(make_pageweights.prefix_of(number) for number in (0, 2)), prefix_of(7)}
    large = write_page(tmp_path / "large.safetensors", 9, floats=4096)
    other = write_authority(tmp_path / "page9.json", 9)
    run = publish(large, pages, "--authority", other, "--budget", str(3 * size), "--json")
    assert run.status == 14 and run.error["details"]["budget_bytes"] == 3 * size


def test_without_a_budget_nothing_is_evicted(pages: Path, page: Path, authority: Path) -> None:
    run = publish(page, pages, "--authority", authority, "--json")
    assert run.status == 0 and len(list(pages.glob("*.locator.json"))) == 4


def test_a_root_that_is_open_to_others_is_refused_and_not_changed(
    pages: Path, page: Path, authority: Path
) -> None:
    pages.chmod(0o755)
    run = publish(page, pages, "--authority", authority)
    assert run.status == 12 and "0755" in run.err
    assert stat.S_IMODE(pages.stat().st_mode) == 0o755
    assert hwctl_("verify", pages).status == 65


def test_another_users_cache_is_left_to_its_owner(
    page: Path, authority: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make another user's cache")
    root = make_pageweights.make_store(tmp_path_factory.mktemp("theirs") / "cache")
    os.chown(root, NOBODY, NOBODY)
    run = publish(page, root, "--authority", authority, "--json")
    assert run.status == 12 and run.error["details"]["owner_uid"] == NOBODY
    assert f"sudo -u '#{NOBODY}' hwctl publish" in run.error["message"]
    assert list(root.iterdir()) == []


def test_without_torch_pages_are_verified_and_floats_are_not_published(pages: Path, tmp_path: Path) -> None:
    """DEP-02: everything but the finiteness of the weights stands."""
    (tmp_path / "absent").mkdir()
    (tmp_path / "absent" / "torch.py").write_text("raise ImportError('no torch here')\n")
    env = {"PYTHONPATH": f"{tmp_path / 'absent'}:{environment()['PYTHONPATH']}"}
    run = hwctl_("verify", pages, "--json", env=env)
    assert run.status == 0, run.err
    assert {row["content"] for row in run.results} == {"not-checked"}
    (artifact, *_) = pages.glob("*.safetensors")
    artifact.chmod(0o600)
    artifact.write_bytes(artifact.read_bytes()[:-1] + b"\x01")
    run = hwctl_("verify", pages, "--json", env=env)
    codes = [finding["code"] for row in run.results for finding in row["findings"]]
    assert (run.status, codes) == (65, ["artifact-hash"])
    page = write_page(tmp_path / "page", 7, dtype="F32")
    authority = write_authority(tmp_path / "authority.json", 7, materializedDtype="float32")
    run = publish(page, tmp_path / "new", "--authority", authority, env=env)
    assert run.status == 13 and "torch" in run.err
    assert not names(tmp_path / "new")
    page, authority = write_page(page, 7), write_authority(authority, 7)
    assert publish(page, tmp_path / "new", "--authority", authority, env=env).status == 0
