"""An artifact of another host weight store as the material of a publication: verified, and held meanwhile."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from hwctl.core.publish_material import FormatMetadata, Material, Work
from hwctl.core.tensor_stream import payload_name
from hwctl.errors import Damaged, NotFound, Usage
from hwctl.stores.base import CheckOptions, Level, Match
from hwctl.stores.hostweights import leases
from hwctl.stores.hostweights.judging import require_known_schema
from hwctl.stores.hostweights.layout import ARTIFACTS, PAYLOAD_SUFFIX, is_key
from hwctl.stores.hostweights.lookup import examine_key
from hwctl.stores.hostweights.publication import Publication
from hwctl.stores.hostweights.records import Manifest
from hwctl.stores.hostweights.store_root import look_at_root
from hwctl.stores.hostweights.tensors import TensorSpec
from hwctl.weights.checkpoint import Checkpoint
from hwctl.weights.shards import Shard, open_shard
from hwctl.weights.tensor_reader import TensorReader


@contextmanager
def from_artifact(match: Match, metadata: FormatMetadata | None, work: Work) -> Iterator[Material]:
    """An artifact of another store: verified in full under its shared lease, which is kept until the end."""
    key = match.key
    if key is None or not is_key(key) or match.path.parent != match.root / ARTIFACTS:
        raise Usage(f"{match.path} is no published artifact; name one below {ARTIFACTS}/", path=match.path)
    root = look_at_root(match.root)
    # No lock file is made in a store that is only read; what is then taken away under our hands is noticed.
    held = leases.shared(root, key, work.deadline(), create=False)
    try:
        options = CheckOptions(jobs=work.jobs, advance=work.advance)
        work.expect(_payload_bytes(match.path), "verifying", "writing")
        seen = examine_key(root, key, Level.FULL, options)
        if seen is None:
            raise NotFound("there is no such artifact", path=match.path)
        require_known_schema(seen.findings, match.path)
        if seen.unknown and not seen.findings:
            raise seen.unknown[0]
        if seen.findings or seen.manifest is None:
            message = f"{match.path}: {seen.findings[0].message}"
            raise Damaged(message, seen.findings, path=match.path)
        manifest = seen.manifest
        publication = Publication(
            manifest.identity,
            _specs(manifest),
            manifest.format_metadata if metadata is None else metadata.value,
            content_sha256=manifest.artifact_content_sha256,
        )
        with TensorReader(_as_checkpoint(match.path, manifest)) as reader:
            yield Material(publication, reader, False, manifest.artifact_content_sha256)
    finally:
        if held is not None:
            held.release()


def _payload_bytes(folder: Path) -> int:
    try:
        with os.scandir(folder) as entries:
            return sum(entry.stat(follow_symlinks=False).st_size for entry in entries)
    except OSError:
        return 0  # only a forecast; what is wrong is told by the check


def _specs(manifest: Manifest) -> tuple[TensorSpec, ...]:
    """The same tensors in the same files; a name that a reader takes and no writer makes is made anew."""
    names = {entry.file_name: entry.file_name for entry in manifest.files}
    if not all(name.endswith(PAYLOAD_SUFFIX) for name in names):
        names = {name: payload_name(number, len(names)) for number, name in enumerate(names, 1)}
    return tuple(
        TensorSpec(
            entry.name, entry.dtype, tuple(entry.shape), names[entry.file_name], entry.kind, entry.role
        )
        for entry in manifest.tensors
    )


def _as_checkpoint(folder: Path, manifest: Manifest) -> Checkpoint:
    """The payloads as shards whose tensors go by their names in the manifest rather than in the container."""
    by_file: dict[str, dict[str, str]] = {entry.file_name: {} for entry in manifest.files}
    for entry in manifest.tensors:
        by_file[entry.file_name][entry.name] = entry.storage_key
    shards = tuple(_renamed(folder, file_name, names) for file_name, names in by_file.items())
    weight_map = {entry.name: entry.file_name for entry in manifest.tensors}
    source = manifest.identity.source
    return Checkpoint(folder, shards, weight_map, source.model_id, source.revision, None)


def _renamed(folder: Path, file_name: str, names: Mapping[str, str]) -> Shard:
    shard = open_shard(folder, file_name, strict=False)
    if not isinstance(shard, Shard):  # it was sound a moment ago
        raise Damaged(f"{folder}: {shard[0].message}", shard, path=folder)
    by_name = {name: shard.header.by_name[key] for name, key in names.items()}
    return replace(shard, header=replace(shard.header, by_name=by_name))
