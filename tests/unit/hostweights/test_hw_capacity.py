"""Capacity: limits before the first byte, and two builders of whom one fits."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from hwctl.errors import HwctlError, NoRoom
from hwctl.fs.deadline import Deadline
from hwctl.stores.hostweights.build import get_or_build
from hwctl.stores.hostweights.capacity import store_bytes
from hwctl.stores.hostweights.domain import Capacity
from hwctl.stores.hostweights.identity import Identity
from hwctl.stores.hostweights.opening import Wanted, open_root
from hwctl.stores.hostweights.publication import Publication
from hwctl.stores.hostweights.store_root import StoreRoot
from hwctl.stores.hostweights.tensors import TensorSpec, plan_payloads
from hwctl.stores.hostweights.verdict import failure_of
from hwctl.stores.hostweights.writer import ArtifactWriter, Producer


def names(root: StoreRoot, folder: str) -> list[str]:
    return sorted(os.listdir(root.path / folder))


def words(error: HwctlError) -> tuple[str, str]:
    failure = failure_of(error)
    return str(failure.stage), str(failure.code)


def limited(tmp_path: Path, **limits: int) -> StoreRoot:
    return open_root(tmp_path / "limited", Wanted(capacity=Capacity(**limits)))


@pytest.mark.parametrize(
    ("limits", "code"),
    [
        ({"max_artifact_bytes": 70_000}, "artifact_too_large"),
        ({"max_store_bytes": 70_000}, "store_limit_exceeded"),
        ({"min_free_bytes": 1 << 60}, "insufficient_capacity"),
    ],
)
def test_limits_are_held_before_the_first_byte(
    tmp_path: Path, publication: Publication, limits: dict[str, int], code: str
) -> None:
    root = limited(tmp_path, **limits)
    with pytest.raises(NoRoom) as refused:
        get_or_build(root, publication, lambda _writer: pytest.fail("too late"), deadline=Deadline.after(5))
    assert words(refused.value) == ("capacity", code) and refused.value.retryable
    assert names(root, "tmp") == []


def test_documents_count_too(tmp_path: Path, publication: Publication, producer: Producer) -> None:
    """The last check is of the artifact as it is, manifest and marker included."""
    payloads = sum(plan.size for plan in plan_payloads(publication.tensors))
    root = limited(tmp_path, max_artifact_bytes=payloads)
    with pytest.raises(NoRoom) as refused:
        get_or_build(root, publication, producer, deadline=Deadline.after(5))
    assert words(refused.value) == ("capacity", "artifact_too_large")
    assert names(root, "tmp") == names(root, "artifacts") == []


@pytest.mark.parametrize("round_", range(5))
def test_of_two_builds_where_one_fits_exactly_one_succeeds(
    tmp_path: Path, publication: Publication, producer: Producer, round_: int
) -> None:
    """Both fail in vLLM-Omni: neither sees the other before the end."""
    root = limited(tmp_path, max_store_bytes=110_000)
    results: list[str] = []
    gate = threading.Barrier(2)

    def work(tag: str) -> None:
        source = replace(publication.identity.source, revision=f"{tag}{round_}")
        mine = replace(publication, identity=replace(publication.identity, source=source))
        gate.wait()
        try:
            found = get_or_build(root, mine, producer, deadline=Deadline.after(10))
        except NoRoom as exc:
            results.append(words(exc)[1])
        else:
            assert found.lease is not None
            found.lease.release()
            results.append("built")

    threads = [threading.Thread(target=work, args=(tag,)) for tag in ("x", "y")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == ["built", "store_limit_exceeded"]


def test_store_bytes_are_counted_as_upstream_counts(root: StoreRoot) -> None:
    before = store_bytes(root)
    (root.path / "README").write_bytes(b"12345")
    os.link(root.path / "README", root.path / "again")
    (root.path / "link").symlink_to("README")
    with open(root.path / "tmp" / "sparse", "wb") as file:
        file.truncate(1 << 20)
    assert store_bytes(root) - before == 5 + 5 + (1 << 20)


def test_the_capacity_question_does_not_walk_the_store(
    tmp_path: Path, identity: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once for a publication, however many files it has."""
    from hwctl.stores.hostweights import capacity

    root = limited(tmp_path, max_store_bytes=1 << 40)
    walks: list[int] = []
    real = capacity.store_bytes

    def counted(of: StoreRoot) -> int:
        walks.append(1)
        return real(of)

    monkeypatch.setattr(capacity, "store_bytes", counted)
    specs = tuple(TensorSpec(f"t{n}", "torch.int8", (1,), f"{n}.safetensors") for n in range(40))

    def produce(writer: ArtifactWriter) -> None:
        for name in writer.file_names:
            with writer.open(name) as payload:
                payload.write_tensor(f"t{name.split('.')[0]}", b"x")

    found = get_or_build(root, Publication(identity, specs), produce, deadline=Deadline.after(5))
    assert found.lease is not None
    found.lease.release()
    assert len(walks) == 1
