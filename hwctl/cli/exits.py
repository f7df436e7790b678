"""How failures become exit statuses and error objects. The numbers themselves stand in ``hwctl.errors``."""

from __future__ import annotations

import errno
import signal
import traceback
from pathlib import Path

from hwctl.errors import Damaged, HwctlError, Status, from_os_error

BROKEN_PIPE = 141
"""What a verb that only reads exits with when its reader went away and all was well."""

EPIPE = errno.EPIPE

EXEC_FAILED = 125
EXEC_NOT_EXECUTABLE = 126
EXEC_NOT_FOUND = 127


def delivered(broken: int | None) -> int:
    """The status of what only had to be printed, given the errno that silenced stdout."""
    if broken is None:
        return int(Status.OK)
    return BROKEN_PIPE if broken == EPIPE else int(Status.IO)


class Internal(HwctlError):
    """A bug in hwctl: anything that nobody expected to be raised."""

    status = Status.INTERNAL


def as_failure(exc: Exception, doing: str) -> HwctlError:
    """The deliberate failure that ``exc`` is, or stands for."""
    if isinstance(exc, HwctlError):
        return exc
    if isinstance(exc, OSError):
        return from_os_error(exc, doing)
    if isinstance(exc, ModuleNotFoundError) and not (exc.name or "hwctl").startswith("hwctl"):
        return MissingModule(exc)
    words = f"{type(exc).__name__}: {exc}" if str(exc) else type(exc).__name__
    trace = "".join(traceback.format_exception(exc))
    hint = "HWCTL_DEBUG=1 shows where; please report it"
    return Internal(f"internal error, {words} ({hint})", details={"traceback": trace})


class MissingModule(HwctlError):
    """A library that the work needs is not installed (the slim install has no torch, DEP-02)."""

    status = Status.UNSUPPORTED

    def __init__(self, exc: ModuleNotFoundError) -> None:
        name = (exc.name or str(exc)).partition(".")[0]
        super().__init__(
            f"this needs the Python package {name}, which is not installed: pip install {name}",
            details={"module": name},
        )


def error_object(error: HwctlError, *, debug: bool = False) -> dict[str, object]:
    """The ``hwctl.error/1`` object of a failure, ready for ``document.dumps``."""
    from hwctl.cli.document import finding_fields, named

    details = {key: value for key, value in error.details.items() if debug or key != "traceback"}
    if isinstance(error, Damaged):
        details["findings"] = [finding_fields(finding) for finding in error.findings]
    path = None if error.path is None else Path(error.path)
    return {
        "schema": "hwctl.error/1",
        "code": error.status.word,
        "exit_status": int(error.status),
        "retryable": error.retryable,
        **named("path", path),
        "message": error.message,
        "details": details,
    }


class Verdict(HwctlError):
    """The answer is no, though nothing failed on the way: a damaged artifact, a target out of reach."""

    def __init__(self, status: Status, message: str, path: Path | None = None) -> None:
        super().__init__(message, path=path, retryable=status in (Status.BUSY, Status.NO_ROOM, Status.IO))
        self.status = status  # type: ignore[misc]  # a class constant everywhere else


def signal_name(signum: int) -> str:
    return signal.Signals(signum).name


def signal_object(signum: int) -> dict[str, object]:
    """The ``hwctl.error/1`` object of a run that a signal ended: the next one may go better."""
    name = signal_name(signum)
    return {
        "schema": "hwctl.error/1",
        "code": "signal",
        "exit_status": 128 + signum,
        "retryable": True,
        "path": None,
        "message": f"ended by {name}",
        "details": {"signal": name},
    }
