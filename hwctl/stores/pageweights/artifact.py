"""Judging an artifact: steps 8 to 14 of validation, from its descriptor, its receipt and one reading.

Owns the order of these findings. The bytes are read in ``reading``, the tensors' rules are in ``geometry``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from hwctl.errors import Finding, from_os_error
from hwctl.fs.paths import identity, open_regular
from hwctl.stores.base import Level
from hwctl.stores.pageweights import geometry, layout, records
from hwctl.stores.pageweights.authority import content_key
from hwctl.stores.pageweights.documents import Locator, Receipt
from hwctl.stores.pageweights.place import Place, not_opened
from hwctl.stores.pageweights.reading import Pace, ReadEnd, Reading, read_structure, read_whole
from hwctl.weights.safetensors_file import Header


@dataclass(frozen=True, slots=True)
class ArtifactLook:
    """What one look at an artifact found; ``absent`` when it went since its name was seen."""

    findings: tuple[Finding, ...] = ()
    reading: Reading | None = None
    absent: bool = False


def look_at_artifact(
    place: Place, locator: Locator, receipt: Receipt | None, level: Level, pace: Pace, *, keep: bool = False
) -> ArtifactLook:
    """Judge the artifact that a locator names, by its receipt where that could be read.

    ``level`` SIZE reads the header only; FULL reads everything, unless the size alone shows that the bytes
    are others. Raises IoFailed for what cannot be read.
    """
    name = layout.artifact_name(locator.prefix, locator.key)
    try:
        fd, before = open_regular(name, dir_fd=place.dir_fd)
    except OSError as exc:
        looked = not_opened(place, name, exc)
        return ArtifactLook(looked.findings, absent=looked.absent)
    try:
        findings = [*layout.judge_file(before, place.uid, name), *_judge_size(receipt, before.st_size, name)]
        whole = level is Level.FULL and (receipt is None or receipt.artifact_bytes == before.st_size)
        try:
            reading = (
                read_whole(fd, before.st_size, pace, keep=keep)
                if whole
                else read_structure(fd, before.st_size)
            )
        except ReadEnd as exc:
            changed = Finding("changed", f"changed while it was read: {exc}", name)
            return ArtifactLook((*findings, changed))
        except OSError as exc:
            raise from_os_error(exc, f"cannot read {name}", name) from exc
        changed_meanwhile = identity(before) != identity(os.fstat(fd))
    finally:
        os.close(fd)
    findings += _judge_reading(reading, locator, receipt, name, changed=changed_meanwhile)
    if level is Level.FULL and receipt is not None:
        findings += _judge_key(locator, receipt, name)
    return ArtifactLook(tuple(findings), reading)


def _judge_size(receipt: Receipt | None, size: int, name: str) -> Iterator[Finding]:
    if receipt is not None and size != receipt.artifact_bytes:
        message = f"is {size} bytes, the receipt says {receipt.artifact_bytes}"
        yield Finding("artifact-hash", message, name, receipt.artifact_bytes, size)


def _judge_reading(
    reading: Reading, locator: Locator, receipt: Receipt | None, name: str, *, changed: bool
) -> Iterator[Finding]:
    if reading.sha256 is not None and receipt is not None and reading.sha256 != receipt.artifact_sha256:
        message = "its SHA-256 is not the one in the receipt"
        yield Finding("artifact-hash", message, name, receipt.artifact_sha256, reading.sha256)
    header = reading.header
    if isinstance(header, Header):
        yield from geometry.judge_set([entry.name for entry in header.tensors], name)
    else:
        yield from (_malformed(finding, name) for finding in header)
    if changed:
        yield Finding("changed", "changed while it was read", name)
    if isinstance(header, Header):
        yield from _judge_tensors(header, reading, locator, name)
        if receipt is not None:
            yield from _judge_geometry(header, receipt, name)


def _malformed(finding: Finding, name: str) -> Finding:
    """The container's own finding, under the one word that the cache's steps have for all of them."""
    message = f"{finding.code}: {finding.message}"
    return Finding("malformed-artifact", message, name, finding.expected, finding.actual)


def _judge_tensors(header: Header, reading: Reading, locator: Locator, name: str) -> Iterator[Finding]:
    yield from geometry.judge_tensors(geometry.shapes_of(header), locator.authority, name)
    if reading.page_id is not None:
        yield from geometry.judge_page_id(reading.page_id, locator.authority, name)
    for tensor in reading.nonfinite:
        yield Finding("nonfinite", f"{tensor} holds a NaN or an infinity", name)


def _judge_geometry(header: Header, receipt: Receipt, name: str) -> Iterator[Finding]:
    rebuilt, recorded = geometry.geometry_of(geometry.shapes_of(header)), receipt.geometry
    if rebuilt != recorded:
        differing = [
            tensor for tensor in {**rebuilt, **recorded} if rebuilt.get(tensor) != recorded.get(tensor)
        ]
        message = f"the receipt's geometry is not that of the tensors: {', '.join(sorted(differing)[:5])}"
        yield Finding("geometry", message, name)
    sha256 = records.digest(rebuilt)
    if sha256 != receipt.geometry_sha256:
        message = "geometrySha256 is not the digest of the tensors' geometry"
        yield Finding("geometry", message, name, receipt.geometry_sha256, sha256)


def _judge_key(locator: Locator, receipt: Receipt, name: str) -> Iterator[Finding]:
    key = content_key(locator.authority, receipt.artifact_sha256, receipt.geometry_sha256)
    if key != locator.key:
        message = "the key in its name is not the one that authority and content give"
        yield Finding("content-key", message, name, key, locator.key)
