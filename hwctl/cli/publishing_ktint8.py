"""How ``hwctl publish ktint8`` goes about it: what ``--from`` is, what follows from it, how it is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hwctl.cli import text
from hwctl.cli.answer import Answer
from hwctl.cli.document import finding_fields, named
from hwctl.cli.outcomes import deadline_of
from hwctl.cli.units import Spans
from hwctl.core import publish_ktint8 as core
from hwctl.core.publish_ktint8 import Outcome, Publication, Target, Work
from hwctl.errors import Damaged, NotFound, Status, Usage
from hwctl.stores.base import Family
from hwctl.stores.ktint8 import layout, roots
from hwctl.stores.ktint8.expect import Expectation
from hwctl.stores.ktint8.roots import Kind, Root
from hwctl.stores.locate import settle

_WORDS = {
    Outcome.PUBLISHED: "published",
    Outcome.ALREADY: "is published already, from the same source",
    Outcome.JOINED: "was published by another process meanwhile, from the same source",
    Outcome.PLANNED: "would be published",
}


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
    """Carry it out and tell; a checkpoint or tree that is damaged is told with every finding."""
    with answer.progress("publish") as progress:
        work = Work(jobs, deadline_of(wait), progress.advance, answer.dry_run)
        try:
            published = _publish(wanted, work, progress.expect)
        except Damaged as exc:
            _tell_damage(answer, wanted, exc)
            raise
    _tell(answer, wanted, published)


def _publish(wanted: Wanted, work: Work, expect: Callable[[int | None], None]) -> Publication:
    source = settle(wanted.source)
    root = _tree(source)
    if root is None:
        target = _target(wanted)
        plan = core.plan_checkpoint(source, wanted.numa or 1, wanted.layers)
        expect(plan.geometry.layer_bytes * len(plan.layers))
        return core.from_checkpoint(plan, target, work)
    if root.kind is Kind.STAGING:
        return _finish_staging(wanted, source, root, work)
    if wanted.persistent is None:
        raise Usage(f"{source} is published already; --persistent makes a store of it", path=source)
    if wanted.layers is not None:
        raise Usage("--layers needs a checkpoint: a tree is copied whole", path=source)
    return core.from_tree(source, _target(wanted), wanted.numa, work)


def _tree(source: Path) -> Root | None:
    """The kt-int8 tree that a path means, None for everything else, which then has to be a checkpoint."""
    found = roots.locate(source)
    root = None if found is None else found[1]
    return None if root is None or root.kind in (Kind.FOREIGN, Kind.QUARANTINED) else root


def _finish_staging(wanted: Wanted, source: Path, root: Root, work: Work) -> Publication:
    if wanted.persistent is not None:
        raise Usage("a staging tree is published as it is; --persistent takes a checkpoint or a ready tree")
    if wanted.run_id not in (None, root.key):
        raise Usage(f"{source.name} is the staging tree of run {root.key}, not of {wanted.run_id}")
    if wanted.base is not None and settle(wanted.base) != source.parent:
        raise Usage(f"{source} does not lie in {wanted.base}; a tree is published where it lies")
    layers = None if wanted.layers is None else wanted.layers.numbers()
    return core.from_staging(source, root.key, Expectation(layers=layers, parts=wanted.numa), work)


def _target(wanted: Wanted) -> Target:
    if wanted.persistent is not None:
        path = settle(wanted.persistent)
        if layout.parse_root_name(path.name) is not None:
            raise Usage(f"{path.name} is the name of a run's tree; a store needs another", path=path)
        return Target.persistent(path)
    if wanted.run_id is None:
        raise Usage("a tree needs the name of its run: --run-id ID")
    return Target.ephemeral(roots.SHARED_MEMORY if wanted.base is None else _base(wanted.base), wanted.run_id)


def _base(path: Path) -> Path:
    """The base, resolved where it is there, as written where it is still to be made."""
    try:
        return path.resolve(strict=True)
    except FileNotFoundError:
        return path.absolute()
    except OSError as exc:
        raise NotFound(f"cannot look at {path}: {exc.strerror}", path=path) from exc


def _tell(answer: Answer, wanted: Wanted, published: Publication) -> None:
    geometry = published.geometry
    answer.result(
        {
            "family": Family.KTINT8.value,
            **named("store", published.path.parent),
            **named("key", published.path.name if wanted.persistent else _key(published.path)),
            **named("path", published.path),
            "outcome": published.outcome.value,
            "manifest_sha256": published.manifest_sha256,
            "bytes": published.bytes,
            "files": published.files,
            "layers": list(published.layers),
            "parts": geometry.parts,
            "experts": geometry.experts,
            "hidden": geometry.hidden,
            "intermediate": geometry.intermediate,
            "kept_layers": published.kept,
            "findings": [],
        }
    )
    answer.totals.update(published=int(published.outcome is Outcome.PUBLISHED), bytes=published.bytes)
    answer.record(str(published.path))
    if published.kept:
        answer.note(f"went on with an interrupted conversion: {text.number(published.kept, 'layer')} kept")
    answer.note(
        f"{published.path} {_WORDS[published.outcome]}: {text.number(len(published.layers), 'layer')},"
        f" {text.number(published.files, 'file')}, {text.size(published.bytes)}",
        verbosity=1 if published.outcome is Outcome.PUBLISHED else 0,
    )


def _key(path: Path) -> str:
    root = layout.parse_root_name(path.name)
    return path.name if root is None else root.run_id


def _tell_damage(answer: Answer, wanted: Wanted, exc: Damaged) -> None:
    answer.result(
        {
            "family": Family.KTINT8.value,
            **named("path", wanted.source),
            "outcome": "failed",
            "manifest_sha256": None,
            "findings": [finding_fields(finding) for finding in exc.findings],
        },
        Status.DAMAGED,
    )
    for finding in exc.findings:
        answer.line(f"{wanted.source}: ", *text.finding(finding), problem=True)
