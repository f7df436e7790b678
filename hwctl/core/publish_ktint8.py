"""Publish a kt-int8 tree: from a checkpoint, from a staging tree, or as a persistent store from either.

Owns the order of a publication: stage, fill, check, publish; and what a dry run foresees. What it is made of
is ``ktint8_material``, where it goes ``ktint8_target``, how files are written and named ``stores.ktint8``.
Whatever ends it early, a signal too, its own staging is removed on the way out (PUB-07).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from hwctl.core.ktint8_filling import fill
from hwctl.core.ktint8_material import Material, require_torch
from hwctl.core.ktint8_target import existing, make_base
from hwctl.core.publishing import Publishing
from hwctl.errors import Refused
from hwctl.fs import space
from hwctl.fs.deadline import Deadline
from hwctl.fs.paths import opened_dir
from hwctl.stores.base import Advance, silent
from hwctl.stores.ktint8 import layout
from hwctl.stores.ktint8.adoption import Adoption, publish_staging
from hwctl.stores.ktint8.expect import Expectation
from hwctl.stores.ktint8.publish import Published, publish_staged
from hwctl.stores.ktint8.staging_root import begin
from hwctl.weights.amx import Geometry


@dataclass(frozen=True, slots=True)
class Work:
    """How to go about it. ``wait`` bounds waiting for another process at the same run; ``expect`` is told how
    many bytes ``advance`` will tell of, once that is known."""

    jobs: int = 1
    wait: Deadline = field(default_factory=Deadline.now)
    advance: Advance = silent
    expect: Advance = silent


@dataclass(frozen=True, slots=True)
class Publication:
    """What was published, or would be. ``kept`` counts the layers an interrupted conversion had finished."""

    outcome: Publishing
    path: Path
    geometry: Geometry
    layers: tuple[int, ...]
    manifest_sha256: str | None = None
    kept: int = 0

    @property
    def bytes(self) -> int:
        return self.geometry.layer_bytes * len(self.layers)

    @property
    def files(self) -> int:
        return self.geometry.layer_files * len(self.layers)


def publish(material: Material, work: Work) -> Publication:
    """Make the tree and publish it.

    Raises Busy, Refused (the name is taken by something else), NoRoom, IoFailed, and what using the
    material raises; nothing of ours is left then.
    """
    target, order = material.target, material.order
    work.expect(material.bytes)
    found = existing(target, order)
    if found is not None:
        return _publication(Publishing.ALREADY_PUBLISHED, material, found)
    make_base(target.base)
    staging = begin(target.base, order, work.wait, workers=material.jobs)
    if staging is None:
        joined = existing(target, order)
        if joined is None:
            raise Refused(f"{target.path} was published and consumed by others meanwhile", path=target.path)
        return _publication(Publishing.JOINED, material, joined)
    with staging:
        kept = len(staging.done)
        work.advance(order.geometry.layer_bytes * kept)
        fill(staging, material.make, jobs=material.jobs, advance=work.advance)
        if material.tree is not None:
            for layer, digests in staging.done.items():
                material.tree.require_digests(layer, digests)
        published = publish_staged(staging, target.schema)
    return _publication(Publishing.PUBLISHED, material, published, kept)


def foresee(material: Material) -> Publication:
    """What ``publish`` would do now, as far as it shows without making anything; it raises the same."""
    target = material.target
    found = existing(target, material.order)
    if found is not None:
        return _publication(Publishing.ALREADY_PUBLISHED, material, found)
    space.require(target.base, material.bytes, material.files, what=str(target.path))
    return _publication(Publishing.PLANNED, material, None)


def _publication(
    outcome: Publishing, material: Material, published: Published | None, kept: int = 0
) -> Publication:
    order, digest = material.order, None if published is None else published.manifest_sha256
    return Publication(outcome, material.target.path, order.geometry, order.layers, digest, kept)


def finish_staging(path: Path, run_id: str, expected: Expectation, work: Work) -> Publication:
    """Publish a staging tree that another converter, or a dead process, left.

    Raises Busy, Refused while its producer may live, Damaged with every finding; it is unchanged then.
    """
    work.expect(_size(path))
    return _adopted(path, run_id, Adoption(expected, True, work.jobs, work.wait, work.advance))


def foresee_staging(path: Path, run_id: str, expected: Expectation, wait: Deadline) -> Publication:
    """What ``finish_staging`` would do, as far as it shows without reading the weights."""
    return _adopted(path, run_id, Adoption(expected, True, wait=wait, dry_run=True))


def _adopted(path: Path, run_id: str, adoption: Adoption) -> Publication:
    require_torch()
    adopted = publish_staging(path, run_id, adoption)
    published = adopted.published
    return Publication(
        Publishing.PLANNED if published is None else Publishing.PUBLISHED,
        path.with_name(layout.ready_name(run_id)),
        adopted.geometry,
        adopted.layers,
        None if published is None else published.manifest_sha256,
    )


def _size(path: Path) -> int:
    """The bytes of a tree, about; 0 where nobody can tell, which is for publishing to say."""
    try:
        with opened_dir(path.parent) as base_fd:
            return space.usage(base_fd, path.name).bytes
    except OSError:
        return 0
