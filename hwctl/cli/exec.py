"""``hwctl exec``: verify, take the shared leases, then become the command."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hwctl.cli import environment, exits, params, units
from hwctl.cli.answer import Answer
from hwctl.errors import Status, Usage, from_os_error
from hwctl.fs.paths import real
from hwctl.stores.base import Level

if TYPE_CHECKING:
    from hwctl.core.exec import Holding

EXAMPLES = """
Environment of COMMAND:
  HWCTL_ARTIFACT_PATH    the first artifact
  HWCTL_ARTIFACT_PATHS   all of them in the order given, separated by colons
  HWCTL_LEASE_FDS        the descriptors that hold the leases, separated by commas; COMMAND keeps them open
                         for as long as it uses the artifacts, and hwctl consume takes them over

Examples:
  hwctl exec /store/artifacts/KEY -- python serve.py
  hwctl exec --level size --wait 5min /dev/shm/kt-int8-job-17 -- sh -c 'ls "$HWCTL_ARTIFACT_PATH"'
"""

_With = Annotated[
    list[Path] | None,
    typer.Option(
        "--with", metavar="PATH", parser=units.path, show_default=False, help="Another artifact; repeatable."
    ),
]
_Command = Annotated[
    list[str] | None,
    typer.Argument(metavar="-- COMMAND...", show_default=False, help="What to become, with its arguments."),
]

_NOT_RESTORED_BY_EXEC = (signal.SIGPIPE, signal.SIGXFSZ)


def register(app: typer.Typer) -> None:
    app.command("exec", epilog=EXAMPLES)(exec_)


def exec_(
    path: params.OnePath,
    command: _Command = None,
    more: _With = None,
    level: params.LevelOption = params.Level.FULL,
    jobs: params.Jobs = None,
    wait: params.Wait = None,
    json: params.Json = False,
    quiet: params.Quiet = False,
    verbose: params.Verbose = 0,
    color: params.Color = params.Colors.AUTO,
    family: params.FamilyOption = None,
) -> int:
    """Run COMMAND on artifacts that are verified first and cannot be removed while it runs.

    hwctl takes their shared leases and then becomes COMMAND, which keeps the pid and the leases. Nobody
    evicts or moves a leased artifact; the leases end with the last process that has their descriptors open. A
    lease taken in an init container therefore ends with it. Host weights and kt-int8 trees only: a held page
    would block the page cache's own program. --wait also waits for an artifact to become ready. When hwctl
    fails before the command runs the status is 125, and the error says why; 126 means that the command cannot
    be executed, 127 that it is not found, 2 that hwctl was called wrongly; after that the status is the
    command's own.
    """
    if not command:
        raise Usage("no COMMAND; write it after --")
    named = [path, *(more or [])]
    if more and any(":" in os.fspath(real(one.parent) / one.name) for one in named):
        raise Usage("a path with a colon cannot be told apart in HWCTL_ARTIFACT_PATHS")
    with Answer(
        "exec", json=json, quiet=quiet, verbose=verbose, color=color, failure_exit=exits.EXEC_FAILED
    ) as answer:
        from hwctl.cli.document import report_fields
        from hwctl.cli.outcomes import deadline_of
        from hwctl.cli.targets import Resolver
        from hwctl.core.exec import Unsound, holding
        from hwctl.stores.base import CheckOptions

        deadline = deadline_of(wait)
        targets = Resolver(answer, family, absent=True, wait=deadline).named(named)
        if answer.status is Status.OK:
            found = [target.artifact for target in targets if target.artifact is not None]
            total = sum(artifact.bytes for artifact in found) if level is Level.FULL else None
            with answer.progress("verify", total) as progress:
                options = CheckOptions(jobs=params.default_jobs(jobs), advance=progress.advance)
                try:
                    with holding(targets, level, options, deadline) as held:
                        progress.erase()  # what execs leaves no with-block
                        _become(answer, held, command)
                except Unsound as exc:
                    answer.fail(exc, row=report_fields(exc.report) | {"error": None})
    return answer.exit_status


def _become(answer: Answer, held: Holding, command: Sequence[str]) -> None:
    """Replace this process by the command; returns only when that cannot be done."""
    fds = [*_inherited(), *held.hand_over()]
    paths = [os.fspath(artifact.path) for artifact in held.artifacts]
    told = {
        "HWCTL_ARTIFACT_PATH": paths[0],
        "HWCTL_ARTIFACT_PATHS": ":".join(paths),
        "HWCTL_LEASE_FDS": ",".join(map(str, fds)),
    }
    answer.note(f"holding {', '.join(paths)}", verbosity=1)
    answer.output.flush()
    for signum in _NOT_RESTORED_BY_EXEC:
        # Python ignores these two, and what is ignored stays so in the command.
        signal.signal(signum, signal.SIG_DFL)
    try:
        if not command[0]:  # which execvpe takes for a mistake of its caller's
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        os.execvpe(command[0], list(command), os.environ | told)
    except OSError as exc:
        missing = exc.errno in (errno.ENOENT, errno.ENOTDIR)
        answer.failure_exit = exits.EXEC_NOT_FOUND if missing else exits.EXEC_NOT_EXECUTABLE
        answer.fail(from_os_error(exc, f"cannot run {command[0]}", command[0]))


def _inherited() -> list[int]:
    """Leases that an outer ``hwctl exec`` handed to this process, and that the command gets as well."""
    return [fd for fd in environment.lease_fds() if _passes_on(fd)]


def _passes_on(fd: int) -> bool:
    try:
        return os.get_inheritable(fd)
    except OSError:
        return False
