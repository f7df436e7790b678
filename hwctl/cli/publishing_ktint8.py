"""How ``hwctl publish ktint8`` goes about it: what ``--from`` is, what follows from it, how it is told."""

from __future__ import annotations

import os
import sys
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from hwctl.cli import text
from hwctl.cli.answer import Answer
from hwctl.cli.document import artifact_fields
from hwctl.cli.outcomes import deadline_of
from hwctl.cli.output import Whole
from hwctl.cli.units import Spans
from hwctl.core import publish_ktint8 as core
from hwctl.core.ktint8_material import Material, from_checkpoint, from_tree, plan_checkpoint
from hwctl.core.ktint8_target import Target
from hwctl.core.other_users import refusal
from hwctl.core.publish_ktint8 import Publication, Work
from hwctl.errors import Usage
from hwctl.fs.paths import real
from hwctl.stores.base import Artifact, Family, State
from hwctl.stores.ktint8 import layout, roots
from hwctl.stores.ktint8.expect import Expectation
from hwctl.stores.ktint8.roots import Kind, Root
from hwctl.stores.ktint8.store import open_store
from hwctl.stores.locate import settle


@dataclass(frozen=True, slots=True)
class Wanted:
    """The options, as given."""

    source: Path
    run_id: str | None
    numa: int | None
    layers: Spans | None
    persistent: Path | None
    base: Path | None


def publish(answer: Answer, wanted: Wanted, jobs: int, wait: float) -> None:
    """Carry it out and tell."""
    with answer.progress("publish") as progress:
        work = Work(jobs, deadline_of(wait), progress.advance, progress.expect)
        published = _publish(wanted, work, answer.dry_run)
    _tell(answer, published)


def _publish(wanted: Wanted, work: Work, dry_run: bool) -> Publication:
    source = settle(wanted.source)
    root = _tree(source)
    if root is not None and root.kind is Kind.STAGING:
        return _finish_staging(wanted, source, root, work, dry_run)
    with _opened(wanted, source, root, work) as material:
        return core.foresee(material) if dry_run else core.publish(material, work)


def _opened(wanted: Wanted, source: Path, tree: Root | None, work: Work) -> AbstractContextManager[Material]:
    if tree is None:
        target = _target(wanted)
        plan = plan_checkpoint(source, wanted.numa or 1, wanted.layers)
        return from_checkpoint(plan, target, work.jobs)
    if wanted.persistent is None:
        raise Usage(f"{source} is published already; --persistent makes a store of it", path=source)
    if wanted.layers is not None:
        raise Usage("--layers needs a checkpoint: a tree is copied whole", path=source)
    return from_tree(source, _target(wanted), wanted.numa, work.jobs, work.wait)


def _tree(source: Path) -> Root | None:
    """The kt-int8 tree that a path means, None for everything else, which then has to be a checkpoint."""
    found = roots.locate(source)
    root = None if found is None else found[1]
    return None if root is None or root.kind in (Kind.FOREIGN, Kind.QUARANTINED) else root


def _finish_staging(wanted: Wanted, source: Path, root: Root, work: Work, dry_run: bool) -> Publication:
    if wanted.persistent is not None:
        raise Usage("a staging tree is published as it is; --persistent takes a checkpoint or a ready tree")
    if wanted.run_id not in (None, root.key):
        raise Usage(f"{source.name} is the staging tree of run {root.key}, not of {wanted.run_id}")
    if wanted.base is not None and real(wanted.base) != source.parent:
        raise Usage(f"{source} does not lie in {wanted.base}; a tree is published where it lies")
    owner = os.lstat(source).st_uid if os.path.lexists(source) else os.geteuid()
    if owner != os.geteuid():
        raise refusal(owner, source, sys.argv[1:])
    layers = None if wanted.layers is None else wanted.layers.numbers()
    expected = Expectation(layers=layers, parts=wanted.numa)
    if dry_run:
        return core.foresee_staging(source, root.key, expected, work.wait)
    return core.finish_staging(source, root.key, expected, work)


def _target(wanted: Wanted) -> Target:
    if wanted.persistent is not None:
        path = settle(wanted.persistent)
        if layout.parse_root_name(path.name) is not None:
            raise Usage(f"{path.name} is the name of a run's tree; a store needs another", path=path)
        return Target.persistent(path)
    if wanted.run_id is None:
        raise Usage("a tree needs the name of its run: --run-id ID")
    return Target.ephemeral(roots.SHARED_MEMORY if wanted.base is None else real(wanted.base), wanted.run_id)


def _tell(answer: Answer, published: Publication) -> None:
    artifact = _artifact(published)
    answer.result(
        {
            **artifact_fields(artifact),
            "outcome": published.outcome.value,
            "manifest_sha256": published.manifest_sha256,
            "kept_layers": published.kept,
            "findings": [],
        }
    )
    answer.totals.update(bytes=published.bytes, files=published.files, layers=len(published.layers))
    answer.line(Whole(published.path))
    if published.kept:
        answer.note(f"went on with an interrupted conversion: {text.number(published.kept, 'layer')} kept")
    answer.note(
        f"{text.looked_up(published.outcome.value)}: {text.number(len(published.layers), 'layer')},"
        f" {text.size(artifact.bytes)} in {text.number(artifact.files, 'file')}"
    )


def _artifact(published: Publication) -> Artifact:
    """The tree as a scan sees it, or what it would be."""
    found = roots.locate(published.path)
    root = None if found is None else found[1]
    base, geometry = published.path.parent, published.geometry
    planned = Artifact(
        Family.KTINT8,
        base,
        published.path.name if root is None else root.key,
        published.path,
        State.ABSENT,
        published.bytes,
        files=published.files,
        detail={
            "layers": {"indices": list(published.layers)},
            "parts": geometry.parts,
            "experts": geometry.experts,
            "hidden": geometry.hidden,
            "intermediate": geometry.intermediate,
        },
    )
    if published.manifest_sha256 is None:
        return planned
    return open_store(base).look(planned) or planned
