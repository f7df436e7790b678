"""Where a kt-int8 tree is to lie, and what stands there already.

Owns the names that a publication stages and publishes under, and telling the very same tree from another
one, which is never replaced.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hwctl.errors import Damaged, Finding, Refused, from_os_error
from hwctl.fs.paths import make_parents, opened_dir
from hwctl.stores.ktint8 import layout
from hwctl.stores.ktint8.finished import judge_documents, plan_of
from hwctl.stores.ktint8.manifest import Manifest, Schema
from hwctl.stores.ktint8.publish import Published
from hwctl.stores.ktint8.roots import Kind, Root
from hwctl.stores.ktint8.staging import Order
from hwctl.stores.ktint8.tree import judge_tree
from hwctl.weights.amx import Geometry


@dataclass(frozen=True, slots=True)
class Target:
    """Where a tree is to lie: ``final`` below ``base``, staged under ``run_id``."""

    base: Path
    run_id: str
    final: str
    schema: Schema

    @classmethod
    def ephemeral(cls, base: Path, run_id: str) -> Target:
        return cls(base, layout.require_run_id(run_id), layout.ready_name(run_id), Schema.EPHEMERAL)

    @classmethod
    def persistent(cls, path: Path) -> Target:
        """A store at ``path``. Its staging lies beside it under the name of a run, which the name of the
        store gives: so that two at once meet, one that was killed is gone on with, and reclaim knows it."""
        digest = hashlib.sha256(os.fsencode(path.name)).hexdigest()
        return cls(path.parent, f"persistent-{digest[:32]}", path.name, Schema.PERSISTENT)

    def order(self, geometry: Geometry, layers: tuple[int, ...], source: str) -> Order:
        """What is to be staged; ``source`` names what it is made from."""
        shared = self.schema is Schema.PERSISTENT
        return Order(self.run_id, self.final, geometry, layers, source, shared)

    @property
    def path(self) -> Path:
        return self.base / self.final

    @property
    def root(self) -> Root:
        """What is to stand there."""
        if self.schema is Schema.PERSISTENT:
            return Root(Kind.PERSISTENT, self.final, self.final)
        return Root(Kind.EPHEMERAL, self.final, self.run_id)


def existing(target: Target, order: Order) -> Published | None:
    """What stands under the final name already, if it is the very same and nothing in it is missing or of
    another size; Damaged if something is, Refused if it is something else."""
    if not os.path.lexists(target.path):
        return None
    try:
        with opened_dir(target.path) as root_fd:
            found = judge_documents(root_fd, target.root)
            manifest = found.manifest
            if manifest is not None and not found.findings and _is_of(manifest, order):
                findings = tuple(judge_tree(root_fd, plan_of(manifest)))
                if not findings:
                    return Published(target.path, found.read.sha256)
                if judge_documents(root_fd, target.root).read.sha256 == found.read.sha256:
                    raise _damaged(target.path, findings)
                # Files go, and the manifest says so first: somebody has begun to consume it.
    except NotADirectoryError:
        pass  # a file or a link has the name
    except OSError as exc:
        raise from_os_error(exc, "cannot look at what has the name already", target.path) from exc
    words = f"{target.path} exists already and was not made from this source; nothing was published"
    raise Refused(words, path=target.path)


def _is_of(manifest: Manifest, order: Order) -> bool:
    found = (manifest.source, manifest.geometry, manifest.indices)
    return found == (order.source, order.geometry, order.layers)


def _damaged(path: Path, findings: Sequence[Finding]) -> Damaged:
    first = findings[0]
    message = f"{path} is there already and damaged ({first.file}: {first.message}); quarantine it to publish"
    return Damaged(message, findings, path=path)


def make_base(base: Path) -> None:
    """The folder that a tree is to lie in, where it is missing."""
    try:
        if os.path.lexists(base):
            os.stat(os.path.join(base, "."))  # a file or a circle of links is named, which mkdir would not do
        make_parents(base, 0o700)
        base.mkdir(mode=0o700, exist_ok=True)
    except OSError as exc:
        raise from_os_error(exc, "cannot make the folder", base) from exc
