"""Acting on another user's entry: root becomes the owner, in a child, for one piece of work.

The child makes and removes files as the owner does, so nothing in the store ever belongs to root. It
keeps root as its saved uid only to judge: whether a process has a file open can be seen by root alone.
Everybody else is refused, with the command that would run the work as the owner.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, NoReturn

from hwctl.errors import (
    Busy,
    Damaged,
    Finding,
    HwctlError,
    IoFailed,
    NoRoom,
    NotFound,
    Refused,
    Status,
    Unsupported,
    Usage,
)
from hwctl.fs import atomic

Record = Mapping[str, object]
"""A report of what was brought about, as JSON: the other user's process is not trusted with pickles."""


_RAISED = "raised"


def command_as(uid: int, words: Sequence[str]) -> str:
    """The shell command that runs hwctl with ``words`` as the user ``uid``."""
    who = "root" if uid == 0 else f"'#{uid}'"
    return f"sudo -u {who} {shlex.join(['hwctl', *words])}"


def refusal(uid: int, path: str | os.PathLike[str], words: Sequence[str]) -> Refused:
    """Why the caller may not change what ``uid`` owns, and how it can be done."""
    command = command_as(uid, words)
    return Refused(
        f"belongs to uid {uid}, and only that user changes it: {command}",
        path=path,
        details={"owner_uid": uid, "caller_uid": os.geteuid(), "command": command},
    )


@contextmanager
def eyes_of_root() -> Iterator[None]:
    """Look with root's rights inside ``as_owner``'s child; everywhere else this changes nothing."""
    effective, saved = os.getresuid()[1:]
    if effective == 0 or saved != 0:
        yield
        return
    os.seteuid(0)
    try:
        yield
    finally:
        os.seteuid(effective)


def as_owner(uid: int, gid: int, work: Callable[[], Iterable[Record]]) -> Iterator[dict[str, Any]]:
    """Run ``work`` in a child that has become ``uid``, and yield what it reports while it reports it.

    Only root can. Raises IoFailed when the child does not end well; it ends with this process.
    """
    atomic.load()
    reader, writer = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        _child(uid, gid, work, writer)
    os.close(writer)
    code, cut = 0, False
    try:
        with open(reader, "rb") as reports:
            for line in reports:
                if not line.endswith(b"\n"):
                    cut = True  # the child ended in the midst of it
                    break
                report = json.loads(line)
                if _RAISED in report:
                    raise error_of(report[_RAISED])
                yield report
    except BaseException:
        # Interrupted, or nobody wants the rest: the child unwinds as this process does.
        os.kill(pid, signal.SIGTERM)
        raise
    finally:
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code != 0 or cut:
        raise IoFailed(f"the process that acted as uid {uid} ended with {code} before its work was done")


def _child(uid: int, gid: int, work: Callable[[], Iterable[Record]], writer: int) -> NoReturn:
    """Become the owner, work, report; never returns into the parent's code."""
    code = 1
    try:
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, 0)
        with open(writer, "wb") as reports:
            try:
                for record in work():
                    reports.write(_line(record))
                    reports.flush()
            except Exception as exc:  # it has no other way to the parent, who raises it there
                if not isinstance(exc, HwctlError):
                    exc = IoFailed(f"acting as uid {uid}: {type(exc).__name__}: {exc}")
                reports.write(_line({_RAISED: error_record(exc)}))
        code = 0
    finally:
        os._exit(code)


_ERRORS: Mapping[int, type[HwctlError]] = {
    kind.status: kind for kind in (Usage, NotFound, Refused, Unsupported, NoRoom, IoFailed, HwctlError)
}


def error_record(error: HwctlError) -> Record:
    """An error as JSON, for ``error_of``."""
    return {
        "status": int(error.status),
        "message": error.message,
        "path": error.path,
        "retryable": error.retryable,
        "details": error.details,
        "findings": [asdict(finding) for finding in error.findings] if isinstance(error, Damaged) else [],
    }


def error_of(record: Mapping[str, Any]) -> HwctlError:
    """The error that ``error_record`` wrote down."""
    status, message, path, details = (record[name] for name in ("status", "message", "path", "details"))
    if status == Status.BUSY:
        return Busy(message, path=path, details=details)
    if status == Status.DAMAGED:
        damaged = Damaged(message, [Finding(**finding) for finding in record["findings"]], path=path)
        damaged.details.update(details)
        return damaged
    return _ERRORS[status](message, path=path, retryable=record["retryable"], details=details)


def _line(record: Record) -> bytes:
    return json.dumps(record, default=str).encode() + b"\n"
