"""Opening a ready tree for consumption: the lock first, then everything is checked, then it is the caller's.

Owns the way from a path to a ``ConsumableTree``. The lock on the root is taken before anything is looked at,
so that of two consumers the second is turned away and never deletes the first one's layers. kt-kernel's own
consumer takes no lock and cannot be kept out.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from hwctl.errors import Finding, NotFound, Refused, Usage, from_os_error
from hwctl.fs import locks
from hwctl.fs.locks import Deadline, Held, Mode
from hwctl.fs.paths import open_dir
from hwctl.fs.walk import inode_of
from hwctl.stores.ktint8 import expect, guard
from hwctl.stores.ktint8.checks import plan_of, require_known_schema, unsound
from hwctl.stores.ktint8.consume import ConsumableTree
from hwctl.stores.ktint8.documents import read_manifest
from hwctl.stores.ktint8.expect import Expectation
from hwctl.stores.ktint8.manifest import Manifest
from hwctl.stores.ktint8.manifest_text import Rewriter
from hwctl.stores.ktint8.roots import Kind, Root, named
from hwctl.stores.ktint8.survey import matching
from hwctl.stores.ktint8.tree import drop, judge_root, judge_tree, own_temporaries


@dataclass(frozen=True, slots=True)
class Opening:
    """How a tree is opened. ``go_on`` takes a half-consumed tree too, which upstream never does.
    ``lease_fds`` are descriptors with a lock that came from ``hwctl exec``: the tree's own is converted.
    Without ``exclusive`` the tree can only be looked at."""

    expected: Expectation = field(default_factory=Expectation)
    go_on: bool = False
    wait: Deadline = field(default_factory=Deadline.now)
    lease_fds: Sequence[int] = ()
    exclusive: bool = True


def open_tree(path: Path, opening: Opening) -> ConsumableTree:
    """Lock a ready root and check all of it but the bytes.

    Raises Busy when somebody else has it, NotFound, Refused, Unsupported, and Damaged with every finding.
    """
    if not path.is_absolute():
        raise Usage("the root must be named by its absolute path", path=path)
    root = named(path.name)
    if root is None or root.kind is not Kind.EPHEMERAL:
        raise NotFound(f"{path} is no kt-int8 tree: a ready root is named kt-int8-RUN", path=path)
    base_fd = root_fd = -1
    lock: Held | None = None
    try:
        base_fd = open_dir(path.parent)
        st = os.stat(path.name, dir_fd=base_fd, follow_symlinks=False)
        # Who only looks judges a tree against its owner, who consumes it has to be the owner.
        faults = judge_root(st, os.geteuid() if opening.exclusive else st.st_uid)
        if faults:
            raise Refused(faults[0].message, path=path)
        root_fd = open_dir(path.name, dir_fd=base_fd)
        lock = _lock(root_fd, opening)
        if inode_of(os.stat(path.name, dir_fd=base_fd, follow_symlinks=False)) != lock.inode:
            raise NotFound("was consumed or removed meanwhile", path=path)
        manifest, rewriter = _sound(path, root, root_fd, opening)
        return ConsumableTree(path, base_fd, root_fd, lock, manifest, rewriter)
    except BaseException as exc:
        if lock is not None:
            lock.release()
        for fd in (root_fd, base_fd):
            if fd >= 0:
                os.close(fd)
        if isinstance(exc, FileNotFoundError):
            raise NotFound("is absent", path=path) from exc
        if isinstance(exc, OSError):
            raise from_os_error(exc, "cannot open it", path) from exc
        raise


def _lock(root_fd: int, opening: Opening) -> Held:
    """The lock on the root, converted from an inherited lease where there is one."""
    inode = inode_of(os.fstat(root_fd))
    mode = Mode.EXCLUSIVE if opening.exclusive else Mode.SHARED
    for fd in opening.lease_fds:
        try:
            st = os.fstat(fd)
        except OSError:
            continue
        if inode_of(st) == inode:
            held = locks.adopt(fd)
            if opening.exclusive:
                held.convert(mode, opening.wait)
            return held
    return locks.acquire_dir(root_fd, mode, opening.wait)


def _sound(path: Path, root: Root, root_fd: int, opening: Opening) -> tuple[Manifest, Rewriter]:
    read = read_manifest(root_fd, ephemeral=True)
    require_known_schema(read)
    manifest, outline = read.parsed.manifest, read.parsed.outline
    findings = list(read.parsed.findings)
    if manifest is not None:
        findings += matching(manifest, root, os.fstat(root_fd).st_uid)
        findings += expect.judge(opening.expected, manifest.geometry, manifest.indices)
        if not opening.go_on:
            findings += [
                Finding("half-consumed", f"layer {layer.index} is {layer.state}", manifest.schema.document)
                for layer in manifest.layers
                if not layer.ready
            ]
    leftovers = own_temporaries(root_fd) if opening.go_on and opening.exclusive else frozenset()
    if manifest is not None and not findings:
        # What the tree holds can only be judged by a manifest that is sound itself.
        plan = plan_of(manifest)
        findings += judge_tree(root_fd, replace(plan, documents=plan.documents | leftovers))
    if findings or manifest is None or outline is None:
        raise unsound(path, findings)
    drop(root_fd, leftovers)
    return manifest, Rewriter(outline, [layer.index for layer in manifest.layers])


@contextmanager
def consuming(path: Path, opening: Opening) -> Iterator[ConsumableTree]:
    """A tree for a loader, as kt-kernel's own store behaves: however the block or the process ends before
    ``finish``, by an error or by INT, TERM or HUP, what is left of the tree is deleted."""
    with open_tree(path, opening) as tree, guard.guarded(tree):
        try:
            yield tree
        finally:
            tree.cleanup()
