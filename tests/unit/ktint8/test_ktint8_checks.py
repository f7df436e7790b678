"""The three levels over every kind of tree: what each looks at, and what it says."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import ktroot
import pytest

from hwctl.errors import Busy, NotFound, Unsupported
from hwctl.fs.deadline import Deadline
from hwctl.fs.lock_table import Mode
from hwctl.fs.locks import acquire_dir
from hwctl.fs.pace import TimedOut
from hwctl.stores.base import Artifact, CheckOptions, Content, Level, Report, State
from hwctl.stores.ktint8 import checks
from hwctl.stores.ktint8.expect import Expectation
from hwctl.stores.ktint8.locating import recognise
from hwctl.stores.ktint8.store import open_store

ONE = "_layer_3/_numa_0/INT8_gate_0_4096Byte_quant_.kt"
SCALE = "_layer_3/_numa_0/INT8_gate_0_256Byte_scale_.kt"
FILES, BYTES = 48, 2 * 2 * 2 * (3 * 64 * 64 + 4 * 3 * 64)


def look(path: Path) -> Artifact:
    match = recognise(path)
    assert match is not None
    named = Artifact(match.family, match.root, match.key or "", match.path, State.ABSENT)
    found = open_store(match.root).look(named)
    assert found is not None
    return found


def check(path: Path, level: Level = Level.FULL, **options: Any) -> Report:
    artifact = look(path)
    return open_store(artifact.store).check(artifact, level, CheckOptions(**{"jobs": 2} | options))


def codes(report: Report) -> list[str]:
    return [finding.code for finding in report.findings]


def test_levels_of_a_sound_tree(base: Path) -> None:
    root = ktroot.ready(base)
    for level, looked in ((Level.MARKER, 0), (Level.SIZE, 0), (Level.FULL, BYTES)):
        report = check(root, level)
        assert report.valid
        assert report.checked_bytes == looked
        assert report.content is (Content.CHECKED if level is Level.FULL else Content.NOT_ASKED)


def test_each_level_sees_more(base: Path) -> None:
    root = ktroot.persistent(base)
    data = bytearray((root / ONE).read_bytes())
    data[200] ^= 1
    (root / ONE).write_bytes(data)
    assert check(root, Level.SIZE).valid
    report = check(root)
    assert codes(report) == ["digest-mismatch"]
    assert report.findings[0].file == ONE
    (root / SCALE).unlink()
    assert check(root, Level.MARKER).valid
    assert codes(check(root, Level.SIZE)) == ["missing-file"]
    assert codes(check(root)) == ["missing-file", "digest-mismatch"]


@pytest.mark.parametrize(
    ("file", "data", "code"),
    [
        (ONE, b"\x80", "code-out-of-range"),
        (SCALE, b"\0\0\x80\xff", "scale-not-sound"),
        (SCALE, b"\0\0\0\0", "row-not-zero"),
    ],
)
def test_content_rules_without_digests(base: Path, file: str, data: bytes, code: str) -> None:
    """A tree of kt-kernel's has no digests: the rules are all that full can look at (VER-05)."""
    root = ktroot.ready(base)
    with (root / file).open("r+b") as opened:
        opened.write(data)
    report = check(root)
    assert codes(report) == [code]
    assert report.findings[0].file == ONE


def test_without_torch_the_digests_are_checked_all_the_same(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "torch_loads", lambda: False)
    root = ktroot.persistent(base)
    report = check(root)
    assert report.valid
    assert report.content is Content.NOT_CHECKED
    (root / ONE).write_bytes(b"\x7f" * 4096)
    assert codes(check(root)) == ["digest-mismatch"]


def test_jobs_do_not_change_the_report(base: Path) -> None:
    root = ktroot.persistent(base, geo={"layers": (0, 1, 2, 3, 4), "experts": 4})
    for path in sorted(root.rglob("*gate*quant*"))[::3]:
        path.write_bytes(b"\x80" * path.stat().st_size)
    one, many = check(root, jobs=1), check(root, jobs=4)
    assert one.findings == many.findings
    assert one.findings


def test_advance_is_told_every_byte(base: Path) -> None:
    counts: list[int] = []
    assert check(ktroot.ready(base), advance=counts.append).valid
    assert sum(counts) == BYTES


def test_a_deadline_ends_it(base: Path) -> None:
    with pytest.raises(TimedOut):
        check(ktroot.ready(base), deadline=Deadline.now())


def test_a_base_that_is_named_by_a_link(base: Path) -> None:
    ktroot.ready(base)
    (base.parent / "link").symlink_to(base)
    store = open_store(base.parent / "link")
    (artifact,) = store.scan()
    assert store.check(artifact, Level.SIZE, CheckOptions()).valid


def test_held_by_a_consumer(base: Path) -> None:
    root = ktroot.ready(base)
    with acquire_dir(root, Mode.EXCLUSIVE, Deadline.now()), pytest.raises(Busy) as caught:
        check(root)
    assert caught.value.details["holders"]
    with acquire_dir(root, Mode.SHARED, Deadline.now()):
        assert check(root).valid


def test_gone(base: Path) -> None:
    artifact = look(ktroot.ready(base))
    store = open_store(base)
    with store.lease(artifact, Mode.EXCLUSIVE, Deadline.now()):
        store.remove(artifact)
    assert store.look(artifact) is None
    with pytest.raises(NotFound):
        store.check(artifact, Level.SIZE, CheckOptions())


def test_an_unknown_schema_is_not_damage(base: Path) -> None:
    root = ktroot.persistent(base, edit=lambda d: d.update(schema_version=3))
    with pytest.raises(Unsupported):
        check(root)
    assert look(root).state is State.DAMAGED


def test_staging_is_never_valid(base: Path) -> None:
    root = ktroot.staging(base)
    report = check(root)
    assert codes(report) == ["not-ready"]
    assert report.checked_bytes == BYTES
    (root / ktroot.LEASE).unlink()
    os.truncate(root / ONE, 7)
    assert codes(check(root, Level.SIZE)) == ["not-ready", "no-lease", "file-size"]
    assert codes(check(root, Level.MARKER)) == ["not-ready", "no-lease"]


def test_staging_that_holds_nothing_yet(base: Path) -> None:
    root = base / "kt-int8-run-0001.staging"
    root.mkdir(mode=0o700)
    assert codes(check(root)) == ["not-ready", "no-lease", "no-layers"]


def test_half_consumed(base: Path) -> None:
    def edit(document: dict[str, Any]) -> None:
        document["layers"][0]["state"] = "consuming"

    root = ktroot.ready(base, edit=edit)
    (root / ONE).unlink()
    report = check(root)
    assert codes(report) == ["half-consumed"]
    assert report.checked_bytes == BYTES // 2
    assert report.artifact.state is State.CONSUMING
    (root / "_layer_4/_numa_0/x").touch()
    assert codes(check(root)) == ["half-consumed", "extra-entry"]


@pytest.mark.parametrize(
    ("expected", "words"),
    [
        (Expectation(layers=(3, 4), parts=2, experts=2, hidden=64, intermediate=128), None),
        (Expectation(), None),
        (Expectation(layers=(3,)), "has also 4"),
        (Expectation(layers=(3, 4, 5, 6)), "lacks 5-6"),
        (Expectation(parts=1), "threadpool_count is 2 where 1"),
        (Expectation(experts=3), "expert_num"),
        (Expectation(hidden=128), "hidden_size"),
        (Expectation(intermediate=64), "intermediate_size"),
    ],
)
def test_expectations(base: Path, expected: Expectation, words: str | None) -> None:
    report = check(ktroot.ready(base), Level.MARKER, expected=expected)
    assert codes(report) == ([] if words is None else ["not-expected"])
    assert words is None or words in report.findings[0].message


def test_a_legacy_tree_under_any_name(base: Path) -> None:
    root = ktroot.persistent(base, schema=1, name="copied")
    assert check(root).valid
    assert look(root).detail["kind"] == "persistent"
    (root / ktroot.MANIFEST).rename(base / "kept")
    assert recognise(root) is None


def test_an_ephemeral_root_must_be_named_for_its_run(base: Path) -> None:
    root = ktroot.ready(base)
    other = root.rename(base / "kt-int8-other-run")
    assert codes(check(other, Level.MARKER)) == ["run-id"]
    document = json.loads((other / ktroot.MANIFEST).read_text())
    document |= {"run_id": "other-run", "owner_uid": os.getuid() + 1}
    ktroot.dump(other / ktroot.MANIFEST, document)
    assert codes(check(other, Level.MARKER)) == ["owner"]


def test_a_quarantined_tree_is_judged_as_it_would_stand_again(base: Path) -> None:
    store = open_store(base)
    entry = store.set_aside(look(ktroot.ready(base)), "tried")
    assert codes(store.check(entry, Level.FULL, CheckOptions())) == ["quarantined"]
    restoring = replace(CheckOptions(), restoring=True)
    assert store.check(entry, Level.FULL, restoring).valid
