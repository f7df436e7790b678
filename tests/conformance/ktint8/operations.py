"""The five operations of the published lifecycle cases, as hwctl's library does them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ktroot import GEO, RUN

from hwctl.errors import Damaged, Refused
from hwctl.fs.deadline import Deadline
from hwctl.fs.lock_table import Mode
from hwctl.stores.base import Artifact, CheckOptions, Death, Level, StalePolicy, State
from hwctl.stores.ktint8.adoption import Adoption, publish_staging
from hwctl.stores.ktint8.expect import Expectation
from hwctl.stores.ktint8.locating import recognise
from hwctl.stores.ktint8.opening import Opening, consuming, open_tree
from hwctl.stores.ktint8.store import KtInt8Store, open_store

TINY_GRACE = StalePolicy(older_than=1000)
"""Cases are built fresh: nothing may have changed for a microsecond."""


def call_of(case: dict[str, Any]) -> dict[str, Any]:
    return {"run": RUN, **GEO, **case["call"]}


def expectation(call: dict[str, Any]) -> Expectation:
    return Expectation(
        tuple(call["layers"]), call["numa"], call["experts"], call["hidden"], call["intermediate"]
    )


def entry(path: Path) -> tuple[KtInt8Store, Artifact]:
    match = recognise(path)
    assert match is not None
    store = open_store(match.root)
    found = store.look(Artifact(match.family, match.root, match.key or "", match.path, State.ABSENT))
    assert found is not None
    return store, found


def publish(case: dict[str, Any], base: Path, root: Path) -> str:
    call = call_of(case)
    publish_staging(root, call["run"], Adoption(expectation(call)))
    return "accept"


def open_only(case: dict[str, Any], base: Path, root: Path) -> str:
    with open_tree(root, Opening(expectation(call_of(case)))):
        return "accept"


def open_close(case: dict[str, Any], base: Path, root: Path) -> str:
    with consuming(root, Opening(expectation(call_of(case)))):
        return "accept"


def consume_all(case: dict[str, Any], base: Path, root: Path) -> str:
    call = call_of(case)
    with open_tree(root, Opening(expectation(call))) as tree:
        if case["after_open"]:
            case["after_open"](base, root)
        for layer in call.get("order", call["layers"]):
            tree.consume(layer)
        tree.finish()
    return "accept"


def reclaim(case: dict[str, Any], base: Path, root: Path) -> str:
    store, artifact = entry(root)
    verdict = store.stale(artifact, TINY_GRACE)
    if verdict.death is Death.LIVE:
        return "keep"
    if verdict.death is not Death.PROVEN:
        raise Refused("; ".join(verdict.evidence))
    with store.lease(artifact, Mode.EXCLUSIVE, Deadline.now()):
        assert store.stale(artifact, TINY_GRACE).death is Death.PROVEN
        store.remove(artifact)
    return "reclaim"


def persistent(case: dict[str, Any], base: Path, root: Path) -> str:
    store, artifact = entry(root)
    options = CheckOptions(jobs=2, expected=expectation(call_of(case)))
    report = store.check(artifact, Level.FULL, options)
    if not report.valid:
        raise Damaged(report.findings[0].message, report.findings)
    return "accept"


OPERATIONS = {
    "publish": publish,
    "open": open_only,
    "open-close": open_close,
    "consume-all": consume_all,
    "reclaim": reclaim,
    "persistent": persistent,
}
