"""Processes that use one page cache, as hwctl's library or as the cache's own protocol does.

Started by ``test_page_oracle`` with one JSON list, an object for each process: kind (oracle, hwctl, keeper),
root, pages, and either ``sweep`` (ask for every page in turn so many times) or ``accesses`` with a ``seed``
(ask at random). ``room`` is the budget in pages. Every returned weight is compared with what its page must
hold. The processes are forked from one, so that torch is imported once; they begin at the same moment.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import torch
from page_oracle import NAMES, OracleCache

from hwctl.errors import HwctlError, NotFound
from hwctl.fs.deadline import Deadline
from hwctl.fs.lock_table import Mode
from hwctl.stores.base import CheckOptions, Death, Level, StalePolicy, State
from hwctl.stores.pageweights import roots
from hwctl.stores.pageweights.authority import Authority, read_authority
from hwctl.stores.pageweights.eviction import evict_to_budget
from hwctl.stores.pageweights.loading import load_or_build
from hwctl.stores.pageweights.store import PageStore, open_store

FLOATS = 3000
PAGE_BYTES = 10 * 4 * FLOATS + 900
DTYPES = ("float32", "bfloat16", "float16", "float64", "int8", "bool", "complex64", "float8_e5m2")
WAIT_SECONDS = 300.0
NEVER_FULL = 1 << 50


def authority(page: int, dtype: str) -> dict[str, object]:
    return {
        "contractRevision": 1,
        "pageId": page,
        "sourceObjectSha256": "ab" * 32,
        "sourceObjectBytes": 4096,
        "sourceFileIdentity": [1, 2**63 + page, 4096, -3, 4],
        "sourceFormatRevision": 1,
        "materializedDtype": dtype,
    }


def weights(page: int, dtype: str) -> dict[str, torch.Tensor]:
    kind = getattr(torch, dtype)
    made = {name: torch.full((1, FLOATS), float(page % 7)).to(kind) for name in NAMES[1:]}
    return {"page_ids_t": torch.tensor([page]), **made}


class Actor:
    def __init__(self, options: dict[str, Any]) -> None:
        self.kind: str = options["kind"]
        self.root = Path(options["root"])
        self.budget = options["room"] * PAGE_BYTES if "room" in options else NEVER_FULL
        self.did = {"built": 0, "hits": 0, "checked": 0, "damaged": 0}

    def access(self, page: int) -> None:
        dtype = DTYPES[page % len(DTYPES)]
        built = 0

        def build() -> dict[str, torch.Tensor]:
            nonlocal built
            built += 1
            time.sleep(0.002)  # long enough for rivals to arrive meanwhile
            return weights(page, dtype)

        record = authority(page, dtype)
        if self.kind == "oracle":
            found = OracleCache(self.root, self.budget).load_or_build(record, build)
        else:
            parsed = read_authority(record)
            assert isinstance(parsed, Authority)
            wait = Deadline.after(WAIT_SECONDS)
            found = dict(load_or_build(self.root, parsed, build, wait=wait, budget=self.budget).weights)
        for name, wanted in weights(page, dtype).items():
            got = found[name]
            assert got.dtype == wanted.dtype and got.shape == wanted.shape
            assert torch.equal(got.view(torch.uint8), wanted.view(torch.uint8)), (page, name)
        self.did["built" if built else "hits"] += 1

    def keep(self) -> None:
        """One turn of the housekeeping: check every page, evict to the budget, reclaim what is garbage."""
        store = open_store(self.root)
        for artifact in store.scan():
            if artifact.state in (State.READY, State.INCOMPLETE):
                try:
                    report = store.check(artifact, Level.FULL, CheckOptions(wait=Deadline.after(30)))
                except NotFound:
                    continue  # evicted since it was listed
                self.did["checked"] += 1
                self.did["damaged"] += not report.valid
        with roots.writable(self.root) as root:
            evict_to_budget(root, self.budget, Deadline.after(WAIT_SECONDS))
        self.clean(store)

    def clean(self, store: PageStore) -> None:
        """Set one page aside, reclaim garbage, empty the quarantine: files vanish under the others."""
        entries = list(store.scan())
        ready = [artifact for artifact in entries if artifact.state is State.READY]
        for artifact in (*ready[:1], *entries):
            try:
                with store.lease(artifact, Mode.EXCLUSIVE, Deadline.now()):
                    now = store.look(artifact)
                    if now is None or now.state is not artifact.state:
                        continue
                    if artifact in ready[:1]:
                        store.set_aside(now, "for the test")
                        continue
                    garbage = store.stale(now, StalePolicy()).death is Death.PROVEN
                    if garbage or now.state is State.QUARANTINED:
                        store.remove(now)
            except HwctlError:
                continue


def pages_of(options: dict[str, Any]) -> Iterator[int]:
    if "sweep" in options:
        for _ in range(options["sweep"]):
            yield from range(options["pages"])
    else:
        chance = random.Random(options["seed"])
        for _ in range(options["accesses"]):
            yield chance.randrange(options["pages"])


def act(options: dict[str, Any]) -> dict[str, int]:
    actor = Actor(options)
    if actor.kind == "keeper":
        while not actor.root.exists():
            time.sleep(0.01)
    for page in pages_of(options):
        if actor.kind == "keeper":
            actor.keep()
        else:
            actor.access(page)
    return actor.did


def child(options: dict[str, Any], gate: int, writer: int) -> NoReturn:
    """Wait at the gate, act, report; never returns into the parent's code."""
    code = 1
    try:
        os.read(gate, 1)
        os.write(writer, json.dumps(act(options)).encode())
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def main() -> int:
    torch.set_num_threads(1)
    gate, opener = os.pipe()
    running = []
    for options in json.loads(sys.argv[1]):
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(opener)
            child(options, gate, writer)
        os.close(writer)
        running.append((pid, reader))
    os.close(opener)  # end of file is what all of them wait for
    found, failed = [], 0
    for pid, reader in running:
        with open(reader, "rb") as report:
            found.append(report.read().decode())
        failed |= os.waitpid(pid, 0)[1]
    if failed:
        return 1
    print(json.dumps([json.loads(one) for one in found]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
