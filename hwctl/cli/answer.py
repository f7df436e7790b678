"""One run's answer: collected as JSON or said as text, with one status, whatever happens.

Every command body stands in ``with Answer("verb", …) as answer:`` and ends with
``return answer.exit_status``. Deliberate failures, I/O errors and bugs raised inside become the status,
the error object and the words for it; only usage errors and signals pass through, to ``__main__``.
"""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from hwctl import __version__
from hwctl.cli import environment, exits
from hwctl.cli.document import dumps, finding_fields, missing_fields, pieces, time_text
from hwctl.cli.escape import escape
from hwctl.cli.output import Colors, Output, Piece, Whole
from hwctl.cli.progress import Progress
from hwctl.cli.signals import Interrupted
from hwctl.cli.text import finding as finding_line
from hwctl.errors import Damaged, HwctlError, IoFailed, Refused, Status, Usage, worst
from hwctl.stores.base import State

if TYPE_CHECKING:
    from hwctl.cli.metrics import Gauge


class Answer:
    """Results, totals, warnings and failures of one run.

    ``reads_only`` decides what becomes of the status when nobody reads stdout: a verb that only reads has
    then not delivered its answer; one that writes has done its work all the same (CLI-04).
    ``failure_exit`` is what the process exits with in place of any failure's own number: the command that
    ``exec`` becomes may use all the others.
    """

    def __init__(
        self,
        verb: str,
        *,
        json: bool = False,
        quiet: bool = False,
        verbose: int = 0,
        color: Colors = Colors.AUTO,
        reads_only: bool = False,
        dry_run: bool = False,
        metrics: Path | None = None,
        failure_exit: int | None = None,
    ) -> None:
        if quiet and verbose:
            raise Usage("--quiet and --verbose contradict each other")
        self.verb = verb
        self.output = Output(json=json, quiet=quiet, verbose=verbose, color=color)
        self.reads_only = reads_only
        self.dry_run = dry_run
        self.results: list[Mapping[str, object]] = []
        self.totals: dict[str, object] = {}
        self.warnings: list[str] = []
        self.errors: list[HwctlError] = []
        self.verdict: str | None = None
        self.gauges: list[Gauge] = []
        self._progress: Progress | None = None
        self.failure_exit = failure_exit
        self._metrics = metrics
        self._status = Status.OK
        self._signum: int | None = None
        self._started_ns = time.time_ns()
        self._clock = time.monotonic()

    # What verbs call.

    def result(self, fields: Mapping[str, object], status: Status = Status.OK) -> None:
        """Add one result to the document; the worst status of all results is the run's."""
        self._status = worst((self._status, status))
        if self.output.json:
            self.results.append(fields)

    def line(self, *words: Piece, problem: bool = False) -> None:
        """Say one line of the answer on stdout. Under -q only problems are said, under --json nothing."""
        if self._says(problem):
            self.output.out.line(*words)

    def record(self, *fields: Piece, problem: bool = False) -> None:
        """Say one record of the answer on stdout, its fields separated by tabs."""
        if self._says(problem):
            self.output.out.record(*fields)

    def block(self, safe: str) -> None:
        """Say lines of the answer that were laid out, escaped and coloured elsewhere (tables)."""
        if self._says(False):
            self.output.out.raw(safe.encode("utf-8"))

    def _says(self, problem: bool) -> bool:
        if self.output.json or (self.output.quiet and not problem):
            return False
        self._clear()
        return True

    def _clear(self) -> None:
        """Make way for words: a progress line may stand where they go."""
        if self._progress is not None:
            self._progress.erase()

    def close_with(self, verdict: str, status: Status = Status.OK) -> None:
        """Set the last line of the answer; it is a problem, and so said under -q, unless the status is OK."""
        self.verdict = verdict
        self._status = worst((self._status, status))

    def note(self, message: str, *, verbosity: int = 0) -> None:
        """Say something about the work on stderr."""
        output = self.output
        if not (output.json or output.quiet) and output.verbose >= verbosity:
            self._clear()
            output.err.line(message)

    def warn(self, message: str) -> None:
        """Something the caller should know that does not change the status."""
        self.warnings.append(message)
        if not self.output.json:
            self._clear()
            self.output.err.line(f"hwctl {self.verb}: warning: {message}")

    def fail(self, error: HwctlError, row: Mapping[str, object] | None = None) -> None:
        """Record a failure that does not end the run, such as one PATH of several.

        What is damaged is a result: ``row``, where it is an artifact that was looked at.
        """
        self.errors.append(error)
        self._status = worst((self._status, error.status))
        if not self.output.json:
            self._clear()
            where = f"{error.path}: " if error.path and error.path not in error.message else ""
            self.output.err.line(f"hwctl {self.verb}: ", Whole(where), error.message)
        if isinstance(error, Damaged):
            self._tell_findings(error, row)

    def _tell_findings(self, error: Damaged, row: Mapping[str, object] | None) -> None:
        """Without a row it was no artifact of a report: a checkpoint, or what was to be restored."""
        path = None if error.path is None else Path(error.path)
        findings = [finding_fields(finding) for finding in error.findings]
        fields = {**missing_fields(path, State.DAMAGED), "findings": findings} if row is None else row
        self.result(fields, error.status)
        if not self.output.json and len(findings) > 1:  # one finding is what the message says already
            for finding in error.findings:
                self.output.err.line("  ", *finding_line(finding))

    def progress(self, label: str, total: int | None = None) -> Progress:
        """Progress to be shown while a with-block lasts; it paints only where that is wanted."""
        self._progress = Progress(self.output.err if self.output.painting else None, label, total)
        return self._progress

    def confirm(self, question: str, *, yes: bool, plan: Sequence[str] = ()) -> None:
        """Go on, or raise Refused. Asks only where a person can answer; never waits for a pipe (CLI-06).

        ``plan`` is a part of the question: nobody can say yes to what they were not shown, -q or not.
        """
        if yes or self.dry_run:
            return
        if self.output.json:
            raise Refused("--json asks nobody; --yes says it in advance")
        asking = os.isatty(0) and os.isatty(2)
        say = self.output.err.line if asking else self.note
        for line in plan:
            say(line)
        if not asking:
            raise Refused(
                "nobody can be asked here (stdin or stderr is no terminal); --yes says it in advance"
            )
        self.output.err.raw(f"{escape(question)} [y/N] ".encode())
        self.output.flush()
        if _read_line(sys.stdin).strip().lower() not in ("y", "yes"):
            raise Refused("not confirmed; nothing was changed")

    @property
    def status(self) -> Status:
        return self._status

    @property
    def exit_status(self) -> int:
        """What the process exits with; complete only after the with-block."""
        if self._lost() is not None:
            return int(worst((self._status, Status.IO)))
        left = self.reads_only and self.output.out.broken == exits.EPIPE
        return exits.BROKEN_PIPE if left and self._number() == Status.OK else self._number()

    def _lost(self) -> int | None:
        """The errno for which an answer that somebody wants was not written: not that of a reader who left,
        nor, where work was done, that of a stdout which was closed to begin with."""
        broken = self.output.out.broken
        if broken in (None, exits.EPIPE) or self._signum is not None or self.failure_exit is not None:
            return None
        return None if broken == errno.EBADF and not (self.reads_only or self.dry_run) else broken

    def _number(self) -> int:
        """The exit status as this run has it, whatever became of stdout."""
        if self._signum is not None:
            return 128 + self._signum
        if self.failure_exit is not None and self._status is not Status.OK:
            return self.failure_exit
        return int(self._status)

    # The end of a run.

    def __enter__(self) -> Answer:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, exc: BaseException | None, _trace: TracebackType | None
    ) -> bool:
        if isinstance(exc, Usage):
            return False
        if isinstance(exc, Exception):
            failure = exits.as_failure(exc, "could not go on")
            if environment.debug() and "traceback" in failure.details and not self.output.json:
                self.output.err.raw(str(failure.details["traceback"]).encode("utf-8", "backslashreplace"))
            self.fail(failure)
        elif isinstance(exc, Interrupted):
            self._signum = exc.signum
        if self._metrics is None:
            self._finish()
            return isinstance(exc, Exception)
        # Before the answer, which has to tell when this fails; and again when the answer could not be told.
        try:
            self._write_metrics(self._metrics)
        except HwctlError as failed:
            self.fail(failed)
        told = self._number()
        self._finish()
        if self.exit_status != told:
            with suppress(HwctlError):
                self._write_metrics(self._metrics)
        return isinstance(exc, Exception)

    def _write_metrics(self, path: Path) -> None:
        """Also when the run failed; that this failed as well is one more failure of the run."""
        from hwctl.cli.metrics import of_run, write

        own = of_run(self.verb, self.exit_status, time.monotonic() - self._clock)
        write(path, [*own, *self.gauges])

    def _finish(self) -> None:
        output = self.output
        if output.json:
            for piece in pieces(self._envelope()):
                output.out.raw(piece)
            output.out.raw(b"\n")
            output.out.flush()
            if self._signum is not None:
                output.err.raw(dumps(exits.signal_object(self._signum)))
            elif self._status is not Status.OK or self._lost() is not None:
                told = exits.error_object(self._worst_error(), debug=environment.debug())
                output.err.raw(dumps(told | {"exit_status": self.exit_status}))
        elif self._signum is not None:
            name = exits.signal_name(self._signum)
            output.err.line(f"hwctl {self.verb}: ended by {name}")
        elif self.verdict is not None and (not output.quiet or self._status is not Status.OK):
            output.out.line(self.verdict)
        output.out.flush()
        lost = self._lost()
        if lost is not None and not output.json:
            output.err.line(f"hwctl {self.verb}: {_undelivered(lost).message}")
        output.flush()

    def _envelope(self) -> dict[str, object]:
        return {
            "schema": f"hwctl.{self.verb.replace(' ', '-')}/1",
            "hwctl": __version__,
            "host": os.uname().nodename,
            "started": time_text(self._started_ns),
            "seconds": round(time.monotonic() - self._clock, 3),
            "status": "signal" if self._signum is not None else self._status.word,
            "exit_status": self._number(),
            "dry_run": self.dry_run,
            "results": iter(self.results),
            "totals": self.totals,
            "warnings": self.warnings,
        }

    def _worst_error(self) -> HwctlError:
        """The first of the most serious failures; a verdict that is no failure of the run gets one made."""
        lost = self._lost()
        if lost is not None and self._status < Status.IO:
            return _undelivered(lost)
        for error in self.errors:
            if error.status is self._status:
                return error
        return exits.Verdict(self._status, self.verdict or self._status.word)


def _undelivered(code: int) -> HwctlError:
    return IoFailed(f"stdout cannot be written: {os.strerror(code)}")


def _read_line(stream: TextIO | None) -> str:
    return "" if stream is None else stream.readline()
