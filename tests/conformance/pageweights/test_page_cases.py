"""The recorded cases of the page cache: hwctl's verdict, its reason, and what lies there afterwards."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pagecase import CASES, Ctx, complete_pages, difference
from pagegen import as_torch, digest, encode, raw_bytes

from hwctl.core import evict as core_evict
from hwctl.core import evict_plan
from hwctl.core.plan import Result, Target
from hwctl.core.policy import Filters, Limits
from hwctl.errors import Busy, Damaged, NotFound, Refused
from hwctl.fs.deadline import Deadline
from hwctl.stores.base import Artifact, CheckOptions, Content, Family, Level, State
from hwctl.stores.pageweights import loading, offers, publication, roots
from hwctl.stores.pageweights.authority import Authority, read_authority
from hwctl.stores.pageweights.eviction import evict_to_budget
from hwctl.stores.pageweights.publication import Outcome
from hwctl.stores.pageweights.store import open_store

Build = Callable[..., Ctx]
Answer = tuple[str, str | None]


def test_every_recorded_case_is_here(expected: dict[str, Any]) -> None:
    assert len(CASES) == 116 and set(CASES) == set(expected)


def authority_of(ctx: Ctx) -> Authority | str:
    """The presented authority, or the reason why it is none."""
    found = read_authority(ctx.authority)
    return found if isinstance(found, Authority) else found[0].code


def judge(answer: Answer, hwctl: dict[str, Any]) -> None:
    verdict, reason = answer
    assert verdict in hwctl["verdicts"], answer
    if verdict == "refused" and "reason" in hwctl:
        assert reason == hwctl["reason"]


def checked(ctx: Ctx, level: Level = Level.FULL) -> Answer:
    """A read-only check of the presented authority."""
    authority = authority_of(ctx)
    if isinstance(authority, str):
        return "refused", authority
    prefix = authority.prefix
    named = Artifact(Family.PAGEWEIGHTS, ctx.root, prefix, ctx.root / f"{prefix}.locator.json", State.ABSENT)
    try:
        report = open_store(ctx.root).check(named, level, CheckOptions(expected=authority))
    except NotFound:
        return "miss", None
    except Busy:
        return "busy", None
    except Refused:
        return "refused", None
    if report.valid:
        if level is Level.FULL:
            assert report.content is Content.CHECKED
            assert report.checked_bytes > sum(len(blob.data) for blob in ctx.offer.values())
        return "hit", None
    first = report.findings[0].code
    return ("miss", None) if first == "miss" else ("refused", first)


def test_a_check_answers_as_recorded_and_changes_nothing(
    load_case: str, build: Build, expected: dict[str, Any]
) -> None:
    ctx = build(load_case)
    before = ctx.snapshot()
    judge(checked(ctx), expected[load_case]["hwctl"])
    assert difference(before, ctx.snapshot()) == {}


# Steps 1 to 7, and of those after them what can be told without the payload.
_MARKER = {"malformed-record", "record-authority", "locator-authority", "bad-digest", "receipt-hash"}
_MARKER |= {"receipt-authority", "source-authority"}
_NEEDS_PAYLOAD = {"nonfinite", "content-key"}


def test_a_shallow_check_goes_as_deep_as_its_level(
    load_case: str, build: Build, expected: dict[str, Any]
) -> None:
    ctx = build(load_case)
    hwctl = expected[load_case]["hwctl"]
    for level in (Level.MARKER, Level.SIZE):
        answer = checked(ctx, level)
        reason = hwctl.get("reason")
        documents = reason == "unprotected" and not load_case.startswith("artifact")
        if reason is None or reason in _MARKER or documents:
            judge(answer, hwctl)
        elif level is Level.MARKER or reason in _NEEDS_PAYLOAD:
            assert answer == ("hit", None)
        elif reason != "artifact-hash":  # a size that differs is seen, other bytes are not
            judge(answer, hwctl)


def test_a_load_gives_the_very_weights_or_the_same_answer(
    load_case: str, build: Build, expected: dict[str, Any]
) -> None:
    ctx = build(load_case)
    authority = authority_of(ctx)
    if isinstance(authority, str):
        return
    before = ctx.snapshot()
    try:
        with roots.writable(ctx.root) as root:
            page = loading.load(root, authority, wait=Deadline.now())
    except Damaged as exc:
        answer: Answer = "refused", exc.findings[0].code
    except Refused:
        answer = "refused", None
    except NotFound:
        answer = "miss", None
    except Busy:
        answer = "busy", None
    else:
        answer = ("miss", None) if page is None else ("hit", None)
    judge(answer, expected[load_case]["hwctl"])
    touched = {"touched": [f"<P{ctx.case.page}>.locator.json"]} if answer[0] == "hit" else {}
    assert difference(before, ctx.snapshot()) == touched
    if answer[0] == "hit":
        assert page is not None
        tensors = page.to_torch()
        assert set(tensors) == set(ctx.offer)
        for name, blob in ctx.offer.items():
            assert str(tensors[name].dtype) == f"torch.{blob.dtype}"
            assert tuple(tensors[name].shape) == blob.shape
            assert raw_bytes(tensors[name]) == blob.data


def published(ctx: Ctx) -> Answer:
    authority = authority_of(ctx)
    assert isinstance(authority, Authority)
    offer = offers.from_torch({name: as_torch(blob) for name, blob in ctx.offer.items()})
    try:
        with roots.writable(ctx.root, create=True) as root:
            done = publication.publish(root, authority, offer, wait=Deadline.now(), budget=ctx.budget)
    except Damaged as exc:
        return "refused", exc.findings[0].code
    except Busy:
        return "busy", None
    return ("published" if done.outcome is Outcome.PUBLISHED else "hit"), None


def test_a_publication_answers_as_recorded(publish_case: str, build: Build, expected: dict[str, Any]) -> None:
    ctx = build(publish_case)
    before = ctx.snapshot()
    answer = published(ctx)
    judge(answer, expected[publish_case]["hwctl"])
    changes = difference(before, ctx.snapshot())
    if answer[0] in ("refused", "busy"):
        assert set(changes) <= {"added"}
        assert all(name.endswith(".lock") for name in changes.get("added", []))
        return
    assert checked(ctx) == ("hit", None)
    if not expected[publish_case]["hwctl"].get("differs_from_original"):
        recorded = {
            kind: [n for n in names if n != ".eviction.lock"]
            for kind, names in expected[publish_case]["original"]["files"].items()
        }
        made = {kind: [n for n in names if n != ".eviction.lock"] for kind, names in changes.items()}
        assert made == recorded
    prefix = digest(ctx.authority)
    (artifact,) = [p for p in ctx.root.iterdir() if p.name.startswith(prefix) and p.suffix == ".safetensors"]
    assert artifact.read_bytes() == encode(ctx.offer)
    if "pages" in expected[publish_case]["hwctl"]:
        assert complete_pages(ctx) in expected[publish_case]["hwctl"]["pages"][answer[0]]


def evicted(ctx: Ctx) -> str:
    """By the library's own pass, as after a publication with a budget."""
    assert ctx.budget is not None
    try:
        with roots.writable(ctx.root) as root:
            evict_to_budget(root, ctx.budget, Deadline.now())
    except Busy:
        return "busy"
    return "done"


def evicted_by_the_verb(ctx: Ctx) -> str:
    """By ``hwctl evict ROOT --max-size``, over the Store protocol."""
    store = open_store(ctx.root)
    plan = evict_plan.plan(Target(store), Limits(max_size=ctx.budget), Filters(), ())
    try:
        outcomes = list(core_evict.evict(core_evict.Walk(plan), Deadline.now()))
    except Busy:
        return "busy"
    # What cannot be trusted fails by itself and is reported, the rest goes on.
    assert all(o.error is not None for o in outcomes if o.result is Result.FAILED)
    return "done"


@pytest.mark.parametrize("road", [evicted, evicted_by_the_verb])
def test_an_eviction_leaves_what_was_recorded(
    evict_case: str, road: Callable[[Ctx], str], build: Build, expected: dict[str, Any]
) -> None:
    ctx = build(evict_case)
    before = ctx.snapshot()
    verdict = road(ctx)
    hwctl = expected[evict_case]["hwctl"]
    assert verdict in hwctl["verdicts"]
    assert complete_pages(ctx) in hwctl["pages"][verdict]
    changes = difference(before, ctx.snapshot())
    assert not changes.get("changed") and not changes.get("touched")
    assert all(name.endswith(".lock") for name in changes.get("added", []))
    ours = {f"<{page.label}>" for page in ctx.pages}
    for name in changes.get("removed", []):
        assert name.split(".")[0] in ours and not name.endswith(".lock")
    if "dangling" not in evict_case and "done" in hwctl["verdicts"]:
        left = sum(p.lstat().st_size for p in Path(ctx.root).iterdir() if p.suffix == ".safetensors")
        with roots.opened(ctx.root) as root:
            assert open_store(ctx.root).size().bytes == left
            assert root.place.uid == os.geteuid()
