"""Publishing and load-or-build as library calls: single flight, adoption, and errors that leave nothing."""

from __future__ import annotations

import dataclasses
import errno
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import make_pageweights
import pytest

from hwctl.errors import Busy, Damaged, HwctlError, IoFailed, NoRoom, Refused
from hwctl.fs import space
from hwctl.fs.deadline import Deadline
from hwctl.stores.pageweights import offers, roots
from hwctl.stores.pageweights.authority import Authority, read_authority
from hwctl.stores.pageweights.geometry import IDS, WEIGHTS
from hwctl.stores.pageweights.loading import load, load_or_build
from hwctl.stores.pageweights.publication import Outcome, Publication, publish

torch = pytest.importorskip("torch")
Weights = dict[str, "torch.Tensor"]


def authority(number: int = 7) -> Authority:
    found = read_authority(make_pageweights.authority(number))
    assert isinstance(found, Authority)
    return found


def weights(number: int = 7, value: float = 7.5) -> Weights:
    return {IDS: torch.tensor([number]), **{name: torch.full((1, 8), value) for name in WEIGHTS}}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def put(root: Path, made: Weights | None = None, budget: int | None = None) -> Publication:
    with roots.writable(root, create=True) as opened:
        offer = offers.from_torch(made or weights())
        return publish(opened, authority(), offer, wait=Deadline.now(), budget=budget)


def names(root: Path) -> set[str]:
    return {path.name for path in root.iterdir() if not path.name.endswith(".lock")}


def built(root: Path, builder: Callable[[], Weights], number: int = 7) -> Weights:
    return dict(load_or_build(root, authority(number), builder, wait=Deadline.after(60)).weights)


def never() -> Weights:
    raise AssertionError("the page is there")


def test_the_files_are_those_of_an_independent_writer(root: Path, tmp_path: Path) -> None:
    put(root)
    by_hand = make_pageweights.make_store(tmp_path / "by-hand")
    make_pageweights.make_artifact(by_hand, 7)
    assert names(root) == names(by_hand)
    for name in names(root):
        assert (root / name).read_bytes() == (by_hand / name).read_bytes()
        assert (root / name).stat().st_mode == (by_hand / name).stat().st_mode


def test_a_hit_is_private_memory_and_moves_the_clock(root: Path) -> None:
    assert built(root, weights)[IDS].item() == 7
    make_pageweights.set_last_use(root, 7, 10**18)
    loaded = built(root, never)
    assert all(torch.equal(loaded[name], weights()[name]) for name in loaded)
    assert (root / f"{authority().prefix}.locator.json").stat().st_mtime_ns > 10**18
    loaded["up_t"].fill_(1.0)  # writable, and nobody else's
    assert torch.equal(built(root, never)["up_t"], weights()["up_t"])


def test_threads_that_ask_at_once_build_once(root: Path) -> None:
    calls: list[int] = []
    gate = threading.Barrier(4)

    def build() -> Weights:
        calls.append(1)
        return weights()

    def ask(_number: int) -> Weights:
        gate.wait()
        return built(root, build)

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(ask, range(4)))
    assert len(calls) == 1
    assert all(torch.equal(one["up_t"], weights()["up_t"]) for one in found)


def test_different_authorities_build_side_by_side(root: Path) -> None:
    both = threading.Barrier(2, timeout=30)

    def build(number: int) -> Weights:
        both.wait()
        return weights(number)

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda number: built(root, lambda: build(number), number), (1, 2)))
    assert [one[IDS].item() for one in found] == [1, 2]


def test_an_error_of_the_builder_passes_through_and_frees_the_lock(root: Path) -> None:
    class Mine(Exception):
        pass

    def fail() -> Weights:
        raise Mine

    with pytest.raises(Mine):
        built(root, fail)
    assert names(root) == set()
    assert built(root, weights)[IDS].item() == 7


def test_what_a_builder_gets_wrong_is_damage_with_findings(root: Path) -> None:
    with pytest.raises(Damaged) as damaged:
        built(root, lambda: weights(8))
    assert [finding.code for finding in damaged.value.findings] == ["tensor-authority"]
    with pytest.raises(Damaged) as damaged:
        built(root, lambda: weights(value=float("nan")))
    assert [finding.code for finding in damaged.value.findings] == ["nonfinite"]
    assert names(root) == set()


def test_an_authority_nothing_can_be_written_under_asks_no_builder(root: Path) -> None:
    bad = dataclasses.replace(authority(), source_identity=(1, 2, 4096))
    with pytest.raises(Damaged) as damaged:
        load_or_build(root, bad, never, wait=Deadline.now())
    assert [finding.code for finding in damaged.value.findings] == ["source-authority"]
    assert list(root.iterdir()) == []


def test_loading_makes_nothing_and_says_none(root: Path) -> None:
    with roots.writable(root, create=True) as opened:
        assert load(opened, authority(), wait=Deadline.now()) is None
    assert list(root.iterdir()) == []


def test_a_damaged_page_is_refused_and_stays(root: Path) -> None:
    put(root)
    artifact = next(root.glob("*.safetensors"))
    artifact.chmod(0o600)
    artifact.write_bytes(artifact.read_bytes()[:-1] + b"\x01")
    before = {name: (root / name).read_bytes() for name in names(root)}
    for attempt in (lambda: built(root, never), lambda: put(root)):
        with pytest.raises(Damaged) as damaged:
            attempt()
        assert damaged.value.findings[0].code == "artifact-hash"
        assert "quarantine" in damaged.value.message
    assert {name: (root / name).read_bytes() for name in names(root)} == before


def test_missing_files_are_cleared_and_the_page_is_built_anew(root: Path) -> None:
    first = put(root)
    (root / f"{authority().prefix}.{first.locator.key}.receipt.json").unlink()
    other = weights(value=1.25)
    assert torch.equal(built(root, lambda: other)["up_t"], other["up_t"])
    assert len(names(root)) == 3 and not any(first.locator.key in name for name in names(root))


def test_a_locator_that_is_a_link_to_nothing_is_replaced(root: Path, tmp_path: Path) -> None:
    root.mkdir(mode=0o700)
    (root / f"{authority().prefix}.locator.json").symlink_to(tmp_path / "nowhere")
    assert put(root).outcome is Outcome.PUBLISHED
    assert not (tmp_path / "nowhere").exists()
    assert built(root, never)[IDS].item() == 7


def test_a_sound_pair_is_adopted_as_it_is(root: Path) -> None:
    put(root)
    locator = root / f"{authority().prefix}.locator.json"
    locator.unlink()
    inodes = {name: (root / name).stat().st_ino for name in names(root)}
    assert put(root).outcome is Outcome.PUBLISHED
    assert {name: (root / name).stat().st_ino for name in inodes} == inodes
    assert built(root, never)[IDS].item() == 7


@pytest.mark.parametrize("which", ["*.safetensors", "*.receipt.json"])
def test_a_wrong_pair_is_replaced(root: Path, which: str) -> None:
    put(root)
    (root / f"{authority().prefix}.locator.json").unlink()
    wrong = next(root.glob(which))
    wrong.chmod(0o600)
    wrong.write_bytes(wrong.read_bytes()[:-2] + b"\n\n")
    assert put(root).outcome is Outcome.PUBLISHED
    assert built(root, never)[IDS].item() == 7
    assert len(names(root)) == 3


@pytest.mark.parametrize("which", ["*.safetensors", "*.receipt.json"])
def test_half_a_pair_is_removed_first(root: Path, which: str) -> None:
    put(root)
    (root / f"{authority().prefix}.locator.json").unlink()
    next(root.glob(which)).unlink()
    assert put(root).outcome is Outcome.PUBLISHED
    assert len(names(root)) == 3 and built(root, never)[IDS].item() == 7


def test_equal_content_is_a_hit_and_other_content_a_collision(root: Path) -> None:
    """PUB-12."""
    assert put(root).outcome is Outcome.PUBLISHED
    assert put(root).outcome is Outcome.ALREADY
    with pytest.raises(Refused) as refused:
        put(root, weights(value=1.25))
    assert refused.value.details["there"] != refused.value.details["offered"]


def test_a_page_above_the_budget_is_refused_before_a_byte(root: Path) -> None:
    with pytest.raises(NoRoom):
        put(root, budget=100)
    assert names(root) == set()


def test_more_than_the_file_system_has_is_refused_before_a_byte(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_args: object, **_more: object) -> None:
        raise NoRoom("full")

    monkeypatch.setattr(space, "require", full)
    with pytest.raises(NoRoom):
        put(root)
    assert names(root) == set()


# Every step that can fail on a full or failing disk, in the order in which publication takes them.
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
@pytest.mark.parametrize("call", ["pwrite", "fsync", "fchmod", "rename"])
def test_whatever_call_fails_nothing_is_left(
    call: str, code: int, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PUB-05, VER-10: the first, the second, ... call fails, until all of them went well."""
    root.mkdir(mode=0o700)
    real = getattr(os, call)
    failures = 0
    for nth in range(30):
        counter = iter(range(100))

        def failing(*args: object, nth: int = nth, counter: object = counter, **more: object) -> object:
            if next(counter) == nth:  # type: ignore[call-overload]
                raise OSError(code, os.strerror(code))
            return real(*args, **more)

        with monkeypatch.context() as patch:
            patch.setattr(os, call, failing)
            try:
                put(root)
            except HwctlError as exc:
                failures += 1
                assert isinstance(exc, IoFailed if code == errno.EIO else NoRoom)
                assert names(root) == set(), (call, nth)
            else:
                break
    assert failures >= 1
    assert built(root, never)[IDS].item() == 7


def test_a_stale_temporary_with_our_numbers_is_in_nobodys_way(root: Path) -> None:
    root.mkdir(mode=0o700)
    name = f"{authority().prefix}.locator.json"
    stale = root / f".{name}.{os.getpid()}.{threading.get_ident()}.tmp"
    stale.write_bytes(b"half")
    assert put(root).outcome is Outcome.PUBLISHED
    assert len(names(root)) == 3


def test_a_builder_of_the_same_authority_is_waited_for_and_joined(root: Path) -> None:
    started, go = threading.Event(), threading.Event()

    def slow() -> Weights:
        started.set()
        assert go.wait(30)
        return weights()

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(built, root, slow)
        assert started.wait(30)
        with pytest.raises(Busy):
            put(root)
        with roots.writable(root) as opened:
            second = pool.submit(
                publish, opened, authority(), offers.from_torch(weights()), wait=Deadline.after(30)
            )
            time.sleep(0.3)  # long enough for it to find the lock taken
            go.set()
            first.result()
            assert second.result().outcome is Outcome.JOINED


def test_a_root_that_others_can_enter_or_own_is_refused(root: Path) -> None:
    root.mkdir(mode=0o750)
    root.chmod(0o750)
    with pytest.raises(Refused):
        put(root)
    assert root.stat().st_mode & 0o777 == 0o750 and list(root.iterdir()) == []
    if os.geteuid() == 0:
        root.chmod(0o700)
        os.chown(root, 65534, -1)
        with pytest.raises(Refused):
            put(root)


def test_parents_are_made_and_the_root_is_private(tmp_path: Path) -> None:
    put(tmp_path / "a" / "b" / "cache")
    assert (tmp_path / "a" / "b" / "cache").stat().st_mode & 0o777 == 0o700
