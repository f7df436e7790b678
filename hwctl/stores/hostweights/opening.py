"""Opening a store to write in it, which creates what is missing.

Owns the order of the steps and what each refusal is called in upstream's words. What the documents mean
is in ``domain``.
"""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from hwctl.errors import Busy, Finding, HwctlError, IoFailed, Refused, Unsupported, from_os_error
from hwctl.fs.atomic import replace_document
from hwctl.fs.deadline import Deadline
from hwctl.fs.lock_table import Mode
from hwctl.fs.locks import acquire
from hwctl.fs.mounts import mount_of, storage_class
from hwctl.fs.paths import NotRegular, TooLarge, make_parents, opened_dir, read_document, real
from hwctl.stores.hostweights import canonical
from hwctl.stores.hostweights.domain import Capacity, Domain, new_domain, parse_domain, parse_policy
from hwctl.stores.hostweights.fields import UNSUPPORTED_SCHEMA, Problems
from hwctl.stores.hostweights.layout import (
    DIRECTORY_MODE,
    DOMAIN,
    FILE_MODE,
    INIT_LOCK,
    LOCK_MODE,
    LOCKS,
    METADATA_LIMIT,
    POLICY,
    SUBDIRECTORIES,
)
from hwctl.stores.hostweights.store_root import StoreRoot, folders, judge_folder, of_document
from hwctl.stores.hostweights.verdict import Code, Stage, coded

COORDINATION_SECONDS = 600.0

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What an opener asks of a store. None takes what the store records, or the default for a new one."""

    scope: str | None = None
    domain_id: str | None = None
    storage_class: str | None = None
    capacity: Capacity | None = None
    trusted: bool = True
    wait: Deadline = field(default_factory=lambda: Deadline.after(COORDINATION_SECONDS))


def open_root(path: Path, wanted: Wanted) -> StoreRoot:
    """Open a store for writing as upstream opens one, creating what is missing.

    Raises, with upstream's words in ``details``: Refused when the place or the recorded policy does not fit,
    Busy when another process holds the initialisation lock too long, IoFailed or NoRoom for the rest.
    """
    root = real(path)
    fs_type = _judge_class(root, wanted)
    try:
        _make_folders(root)
        if wanted.trusted:
            _judge_folders(root)
        with opened_dir(root / LOCKS) as locks, opened_dir(root) as fd:
            try:
                held = acquire(
                    INIT_LOCK, Mode.EXCLUSIVE, wanted.wait, dir_fd=locks, create=True, file_mode=LOCK_MODE
                )
            except Busy as exc:
                raise coded(exc, Stage.DOMAIN, Code.DOMAIN_UNAVAILABLE) from exc
            assert held is not None
            with held:
                domain = _settle_domain(fd, root, wanted, fs_type)
                capacity = _settle_policy(fd, root, wanted)
            return StoreRoot(root, os.fstat(fd).st_uid, domain, capacity, trusted=wanted.trusted)
    except OSError as exc:
        raise _unavailable(exc, root) from exc


def _judge_class(root: Path, wanted: Wanted) -> str:
    fs_type = mount_of(root).fs_type
    found = storage_class(fs_type)
    details: dict[str, object] = {"fs_type": fs_type, "storage_class": found}
    if found not in ("disk", "tmpfs"):
        why = "is remote" if found == "remote" else "is not known to be local"
        error = Refused(f"{root} lies on {fs_type}, which {why}", path=root, details=details)
        raise coded(error, Stage.CONFIGURATION, Code.DOMAIN_POLICY_MISMATCH)
    if wanted.storage_class not in (None, found):
        message = f"{root} lies on {fs_type}, of class {found}, not {wanted.storage_class}"
        raise coded(Refused(message, path=root, details=details), Stage.DOMAIN, Code.STORAGE_CLASS_MISMATCH)
    return fs_type


def _make_folders(root: Path) -> None:
    make_parents(root, DIRECTORY_MODE)
    for folder in (root, *(root / name for name in SUBDIRECTORIES)):
        try:
            os.mkdir(folder, DIRECTORY_MODE)
            os.chmod(folder, DIRECTORY_MODE)  # whatever the umask took away
        except FileExistsError:
            if not os.path.isdir(folder):
                raise NotADirectoryError(
                    errno.ENOTDIR, os.strerror(errno.ENOTDIR), os.fspath(folder)
                ) from None


def _judge_folders(root: Path) -> None:
    """The root and its five folders belong to the caller and to nobody else (LEA-04)."""
    for folder in folders(root):
        found = judge_folder(folder, os.geteuid())
        if isinstance(found, Finding):
            details: dict[str, object] = {"owner_uid": os.lstat(folder).st_uid}
            error = Refused(found.message, path=folder, details=details)
            raise coded(error, Stage.DOMAIN, Code.DOMAIN_UNAVAILABLE)
        if found is not None:
            raise coded(found, Stage.DOMAIN, Code.DOMAIN_UNAVAILABLE)


def _settle_domain(fd: int, root: Path, wanted: Wanted, fs_type: str) -> Domain:
    found = storage_class(fs_type)
    recorded = _recorded(fd, root, DOMAIN, parse_domain)
    if recorded is None:
        domain = new_domain(wanted.scope or "node", wanted.domain_id or "node", found, fs_type)
        _write(fd, DOMAIN, domain.document())
        return domain
    for name, wish in (
        ("scope", wanted.scope),
        ("domain_id", wanted.domain_id),
        ("storage_class", found),
        ("filesystem_type", fs_type),
    ):
        if wish is not None and getattr(recorded, name) != wish:
            raise _mismatch(root / DOMAIN, name, wish, getattr(recorded, name))
    return recorded


def _settle_policy(fd: int, root: Path, wanted: Wanted) -> Capacity:
    recorded = _recorded(fd, root, POLICY, parse_policy)
    if recorded is None:
        capacity = wanted.capacity or Capacity()
        _write(fd, POLICY, capacity.document())
        return capacity
    if wanted.capacity is not None and wanted.capacity != recorded:
        wish, found = wanted.capacity.document(), recorded.document()
        name = next(name for name in wish if wish[name] != found[name])
        raise _mismatch(root / POLICY, name, wish[name], found[name])
    return recorded


def _recorded(
    fd: int, root: Path, name: str, parse: Callable[[bytes, str], tuple[_T | None, Problems]]
) -> _T | None:
    """What a document records, None when there is none; Refused when it is damaged, Unsupported when it is of
    a later schema."""
    try:
        os.stat(name, dir_fd=fd, follow_symlinks=False)
    except FileNotFoundError:
        return None
    try:
        document = read_document(name, dir_fd=fd, limit=METADATA_LIMIT)
    except (NotRegular, TooLarge) as exc:
        found = of_document(exc, name)
        assert isinstance(found, Finding)
        raise _unusable(root / name, (found,)) from exc
    value, problems = parse(document.data, name)
    if document.stat.st_nlink != 1:
        problems.add("hard-linked", f"has {document.stat.st_nlink} links")
    if value is None or problems.found:
        raise _unusable(root / name, tuple(problems.found))
    return value


def _unusable(path: Path, findings: tuple[Finding, ...]) -> HwctlError:
    kind = Unsupported if findings[0].code == UNSUPPORTED_SCHEMA else Refused
    message = f"{path.parent}/{findings[0].message}"
    details: dict[str, object] = {"findings": [finding.message for finding in findings]}
    error = kind(message, path=path, details=details)
    return coded(error, Stage.CONFIGURATION, Code.DOMAIN_POLICY_MISMATCH)


def _mismatch(path: Path, name: str, wish: object, recorded: object) -> HwctlError:
    error = Refused(
        f"the store has {name} {recorded} ({path}) and not {wish}; it is set once, at creation",
        path=path,
        details={"field": name, "expected": wish, "actual": recorded},
    )
    return coded(error, Stage.CONFIGURATION, Code.DOMAIN_POLICY_MISMATCH)


def _write(fd: int, name: str, document: dict[str, object]) -> None:
    temporary = f".{name}.{uuid.uuid4().hex}.tmp"
    replace_document(fd, name, canonical.encode(document), mode=FILE_MODE, temporary=temporary)


def _unavailable(exc: OSError, root: Path) -> HwctlError:
    error = from_os_error(exc, f"cannot open the store {root}", exc.filename or root)
    if isinstance(error, IoFailed):
        return coded(error, Stage.DOMAIN, Code.DOMAIN_UNAVAILABLE)
    return error
