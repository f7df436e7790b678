"""Opening a ready tree for consumption: the lock first, then everything is checked, then it is the caller's.

Owns the way from a path to a ``ConsumableTree``. The lock on the root is taken before anything is looked at,
so that of two consumers the second is turned away and never deletes the first one's layers. kt-kernel's own
consumer takes no lock and cannot be kept out.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from hwctl.errors import NotFound, Usage, from_os_error
from hwctl.fs.deadline import Deadline
from hwctl.fs.lock_table import Mode
from hwctl.stores.ktint8 import guard
from hwctl.stores.ktint8.consume import ConsumableTree
from hwctl.stores.ktint8.expect import Expectation
from hwctl.stores.ktint8.finished import judge_documents, require_sound
from hwctl.stores.ktint8.manifest import Manifest
from hwctl.stores.ktint8.manifest_text import Rewriter
from hwctl.stores.ktint8.root_lock import LockedRoot, open_root
from hwctl.stores.ktint8.roots import Kind, Root, named
from hwctl.stores.ktint8.tree import drop, judge_root, own_temporaries


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
    # Who only looks judges a tree against its owner, who consumes it has to be the owner.
    opened = open_root(
        path,
        Mode.EXCLUSIVE if opening.exclusive else Mode.SHARED,
        opening.wait,
        judge=lambda st: judge_root(st, os.geteuid() if opening.exclusive else st.st_uid),
        lease_fds=opening.lease_fds,
    )
    try:
        manifest, rewriter = _sound(opened, root, opening)
        return ConsumableTree(opened, manifest, rewriter)
    except BaseException:
        opened.close()
        raise


def _sound(opened: LockedRoot, root: Root, opening: Opening) -> tuple[Manifest, Rewriter]:
    try:
        found = judge_documents(opened.fd, root, half_consumed=opening.go_on, expected=opening.expected)
        leftovers = own_temporaries(opened.fd) if opening.go_on and opening.exclusive else frozenset()
        manifest = require_sound(opened.fd, opened.path, found, documents=leftovers)
        drop(opened.fd, leftovers)
    except OSError as exc:
        raise from_os_error(exc, "cannot open it", opened.path) from exc
    outline = found.read.parsed.outline
    assert outline is not None  # a manifest was read from it
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
