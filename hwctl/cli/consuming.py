"""How ``hwctl consume`` goes about it and tells: a record a layer as it is done, then the verdict."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hwctl.cli import environment, text
from hwctl.cli.answer import Answer
from hwctl.cli.document import artifact_fields, named
from hwctl.cli.outcomes import deadline_of
from hwctl.cli.units import Spans
from hwctl.core import consume as core
from hwctl.core.consume import Consumed, Ending, HandOver, Work
from hwctl.core.other_users import refusal
from hwctl.errors import NotFound, Refused, Usage
from hwctl.stores import locate
from hwctl.stores.base import Family, Holders, State
from hwctl.stores.ktint8.opening import Opening

_STDERR = 2


class Run:
    """One run over one tree; its layers are told as they are done, so that a signal loses none."""

    def __init__(self, answer: Answer, path: Path, jobs: int, wait: float | None) -> None:
        self._answer = answer
        self._jobs = jobs
        self._opening = Opening(go_on=True, wait=deadline_of(wait), lease_fds=environment.lease_fds())
        self._layers: list[dict[str, object]] = []
        self._word = "checked"
        match = locate.locate(path, Family.KTINT8)
        self._store = locate.open_store(match)
        found = locate.entry(self._store, match)
        if found is None:
            raise Refused("a whole base cannot be consumed; name a tree", path=match.path)
        if found.state is State.ABSENT:
            raise NotFound("there is no such tree", path=match.path)
        self._tree = found

    def check(self, layers: Spans | None) -> None:
        """Read the layers, change nothing."""
        with self._answer.progress("check") as progress:
            work = Work(self._jobs, progress.advance, progress.expect)
            ending = core.check(self._tree.path, self._opening, layers, self._report, work)
        self._tell("checked", ending.left)
        what = f"checked {text.number(len(self._layers), 'layer')}, all sound"
        if ending.half_consumed:
            what += "; the tree is half consumed, only hwctl goes on with it"
        self._answer.close_with(what)

    def consume(self, to: Path | None, each: str | None) -> None:
        """Consume what is left; with neither ``to`` nor ``each`` the layers are deleted as they are."""
        owner = self._store.actor(self._tree)
        if owner != os.geteuid():
            raise refusal(owner, self._tree.path, sys.argv[1:])
        self._word = "consumed"
        ending: Ending | None = None
        try:
            with self._answer.progress("consume") as progress:
                work = Work(self._jobs, progress.advance, progress.expect)
                hand_over = _hand_over(to, each, work)
                ending = core.consume(self._tree.path, self._opening, hand_over, self._report, work)
        finally:
            # After a signal or a failure too: what was done is done.
            if ending is not None or self._layers:
                self._tell(
                    "stopped" if ending is None else "finished", None if ending is None else ending.left
                )
        self._answer.close_with(f"consumed {text.number(len(self._layers), 'layer')}; the tree is gone")

    def _report(self, done: Consumed) -> None:
        self._layers.append(
            {
                "layer": done.layer,
                "outcome": self._word,
                "bytes": done.bytes,
                "bytes_freed": done.removed.bytes_freed,
                **named("file", done.file),
            }
        )
        where = [] if done.file is None else [str(done.file)]
        self._answer.record(self._word, str(done.layer), str(done.bytes), *where)

    def _tell(self, outcome: str, left: Sequence[int] | None) -> None:
        now = self._store.look(self._tree) or replace(self._tree, state=State.ABSENT, leases=Holders())
        freed = sum(int(str(layer["bytes_freed"])) for layer in self._layers)
        self._answer.result(
            {
                **artifact_fields(now),
                "outcome": outcome,
                "layers": self._layers,
                "left": None if left is None else list(left),
                "findings": [],
            }
        )
        self._answer.totals.update(layers=len(self._layers), bytes_freed=freed)


def _hand_over(to: Path | None, each: str | None, work: Work) -> HandOver:
    if to is not None:
        return core.dequantised(to.absolute(), work)
    if each is None:
        return core.discard
    try:
        words = shlex.split(each)
    except ValueError as exc:
        raise Usage(f"--each: {exc}") from exc
    if not words:
        raise Usage("--each needs a command")
    return core.run_for_each(words, _STDERR, work)
