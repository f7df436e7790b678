"""Words shared by every room: statuses, findings, and the exceptions that refuse.

A *finding* says what is wrong with something that was read: it is a result, never raised on its own.
An *exception* says "refused" or "could not find out". Both stand below all rooms, since the header
reader, the stores and the verbs all speak in them. How a status becomes the process's exit is the
business of ``cli``.
"""

from __future__ import annotations

import enum
import errno
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar


class Status(enum.IntEnum):
    """What a script has to know; the number is the exit status, and a larger one is more serious."""

    OK = 0
    USAGE = 2
    NOT_FOUND = 10
    BUSY = 11
    REFUSED = 12
    UNSUPPORTED = 13
    NO_ROOM = 14
    IO = 15
    DAMAGED = 65
    INTERNAL = 70

    @property
    def word(self) -> str:
        """The status as documents spell it: ``no-room`` for NO_ROOM."""
        return self.name.lower().replace("_", "-")


def worst(statuses: Iterable[Status]) -> Status:
    """The most serious status of several, OK for none: damage is never hidden by something milder."""
    return max(statuses, default=Status.OK)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong with what was read.

    ``code`` is kebab-case and documented in hwctl-verify(1). ``file`` is relative to the artifact (or
    absolute where there is none), decoded with surrogateescape; None when it concerns the whole.
    """

    code: str
    message: str
    file: str | None = None
    expected: object = None
    actual: object = None


def in_short(findings: Sequence[Finding]) -> str:
    """The first of the findings, at least one, and how many there are beside it."""
    more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
    return findings[0].message + more


class HwctlError(Exception):
    """Base of all deliberate failures: one line of words, a status, and what a script may want to read."""

    status: ClassVar[Status] = Status.INTERNAL

    def __init__(
        self,
        message: str,
        *,
        path: str | os.PathLike[str] | None = None,
        retryable: bool = False,
        details: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.path = None if path is None else os.fspath(path)
        self.retryable = retryable
        self.details: dict[str, object] = dict(details or {})


class Usage(HwctlError):
    """The caller asked for something that makes no sense; nothing was touched."""

    status = Status.USAGE


class NotFound(HwctlError):
    """PATH does not exist, or is no store or artifact of any family."""

    status = Status.NOT_FOUND


class Busy(HwctlError):
    """Somebody else holds the lock and the wait ran out; details carry ``holders`` where visible."""

    status = Status.BUSY

    def __init__(
        self,
        message: str,
        *,
        path: str | os.PathLike[str] | None = None,
        details: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(message, path=path, retryable=True, details=details)


class Refused(HwctlError):
    """Unsafe: owner, mode, link, remote file system, death not provable, collision."""

    status = Status.REFUSED


class Unsupported(HwctlError):
    """A schema, a model family or a missing library that this version cannot serve."""

    status = Status.UNSUPPORTED


class NoRoom(HwctlError):
    """ENOSPC, EDQUOT, inodes, a cgroup limit or a capacity policy stands in the way."""

    status = Status.NO_ROOM


class IoFailed(HwctlError):
    """Could not find out: EIO, EACCES, ESTALE and their like. Never taken for damage."""

    status = Status.IO


class Damaged(HwctlError):
    """A source or artifact that had to be sound is not; ``findings`` say why."""

    status = Status.DAMAGED

    def __init__(
        self, message: str, findings: Iterable[Finding], *, path: str | os.PathLike[str] | None = None
    ) -> None:
        super().__init__(message, path=path)
        self.findings = tuple(findings)


_NO_ROOM_WORDS = {
    errno.ENOSPC: "no space left on the file system",
    errno.EDQUOT: "the disk quota is used up",
}


def from_os_error(exc: OSError, doing: str, path: str | os.PathLike[str] | None = None) -> HwctlError:
    """Turn an OSError met while ``doing`` something into the failure it stands for.

    ENOSPC and EDQUOT are one class (NoRoom), everything else could not be found out (IoFailed).
    """
    where = path if path is not None else exc.filename
    details: dict[str, object] = {"errno": errno.errorcode.get(exc.errno or 0)}
    if exc.errno in _NO_ROOM_WORDS:
        message = f"{doing}: {_NO_ROOM_WORDS[exc.errno]}"
        return NoRoom(message, path=where, retryable=True, details=details)
    reason = exc.strerror or str(exc)
    return IoFailed(f"{doing}: {reason}", path=where, retryable=True, details=details)
