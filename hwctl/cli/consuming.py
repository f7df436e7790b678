"""How ``hwctl consume`` goes about it and tells: a record a layer as it is done, then the verdict."""

from __future__ import annotations

import shlex
from pathlib import Path

from hwctl.cli import environment, text
from hwctl.cli.answer import Answer
from hwctl.cli.document import finding_fields, named
from hwctl.cli.outcomes import deadline_of
from hwctl.cli.units import Spans
from hwctl.core import consume as core
from hwctl.core.consume import Consumed, Ending, HandOver, Work
from hwctl.errors import Damaged, Status, Usage
from hwctl.stores.base import Family
from hwctl.stores.ktint8.expect import ranges
from hwctl.stores.ktint8.layout import parse_root_name
from hwctl.stores.ktint8.opening import Opening
from hwctl.stores.locate import settle

_STDERR = 2


class Run:
    """One run over one tree; its layers are told as they are done, so that a signal loses none."""

    def __init__(self, answer: Answer, path: Path, jobs: int, wait: float | None) -> None:
        self._answer = answer
        self._path = settle(path)
        self._jobs = jobs
        self._opening = Opening(go_on=True, wait=deadline_of(wait), lease_fds=environment.lease_fds())
        self._layers: list[dict[str, object]] = []
        self._word = "checked"

    def check(self, layers: Spans | None) -> None:
        """Read the layers, change nothing."""
        with self._answer.progress("check") as progress:
            work = Work(self._jobs, progress.advance)
            try:
                ending = core.check(self._path, self._opening, layers, self._report, work)
            except Damaged as exc:
                self._tell_damage(exc)
                raise
        self._tell(ending, "checked")
        what = f"checked {text.number(len(self._layers), 'layer')}, all sound"
        if ending.half_consumed:
            what += "; the tree is half consumed, only hwctl goes on with it"
        self._answer.close_with(what)

    def consume(self, to: Path | None, each: str | None) -> None:
        """Consume what is left; with neither ``to`` nor ``each`` the layers are deleted as they are."""
        self._word = "consumed"
        with self._answer.progress("consume") as progress:
            work = Work(self._jobs, progress.advance)
            hand_over = _hand_over(to, each, work)
            ending: Ending | None = None
            try:
                ending = core.consume(self._path, self._opening, hand_over, self._report, work)
            except Damaged as exc:
                self._tell_damage(exc)
                raise
            finally:
                if ending is None and self._layers and not self._answer.results:
                    self._tell(None, "stopped")
        self._tell(ending, "finished")
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

    def _tell(self, ending: Ending | None, outcome: str) -> None:
        freed = sum(int(str(layer["bytes_freed"])) for layer in self._layers)
        self._answer.result(
            {
                **self._fields(),
                "outcome": outcome,
                "layers": self._layers,
                "left": None if ending is None else list(ending.left),
                "findings": [],
            }
        )
        self._answer.totals.update(layers=len(self._layers), bytes_freed=freed)
        if ending is not None and ending.left and outcome != "checked":
            self._answer.note(f"layers {ranges(ending.left)} are left")

    def _tell_damage(self, exc: Damaged) -> None:
        findings = [finding_fields(finding) for finding in exc.findings]
        self._answer.result(
            {
                **self._fields(),
                "outcome": "failed",
                "layers": self._layers,
                "left": None,
                "findings": findings,
            },
            Status.DAMAGED,
        )
        for finding in exc.findings:
            self._answer.line(f"{self._path}: ", *text.finding(finding), problem=True)

    def _fields(self) -> dict[str, object]:
        root = parse_root_name(self._path.name)
        return {
            "family": Family.KTINT8.value,
            **named("store", self._path.parent),
            **named("key", self._path.name if root is None else root.run_id),
            **named("path", self._path),
        }


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
