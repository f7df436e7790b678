"""What a publication is made of: read and judged in full before the store is touched.

Two kinds of source look the same afterwards: a checkpoint, whose identity is derived or given, and an
artifact of another host weight store, which brings its own. Writing and joining is publish_hostweights' work.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from hwctl.core.source_digests import digest_sources
from hwctl.core.tensor_digests import content_of, digest_tensors
from hwctl.core.tensor_stream import payload_name, specs_of
from hwctl.errors import Damaged, NotFound, Refused, Usage
from hwctl.fs.deadline import Deadline
from hwctl.stores.base import Advance, CheckOptions, Level, Match, silent
from hwctl.stores.hostweights import leases
from hwctl.stores.hostweights.derived import (
    PRODUCER,
    SourceFile,
    derive_identity,
    promised_contract,
    tensor_contract,
)
from hwctl.stores.hostweights.identity import Identity
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


@dataclass(frozen=True, slots=True)
class Naming:
    """How a checkpoint is to be named: an identity as it is, or parts of a derived one. All may be None."""

    identity: Identity | None = None
    trust_identity: bool = False
    model_id: str | None = None
    revision: str | None = None


@dataclass(frozen=True, slots=True)
class FormatMetadata:
    """Any JSON value of plain types, given by the caller; wrapped, since null is one of them."""

    value: object


class Expect(Protocol):
    """Told how many bytes ``advance`` will hear of, once for each pass that is named, before the first."""

    def __call__(self, total: int, /, *passes: str) -> None: ...


def _expects_nothing(_total: int, /, *_passes: str) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Work:
    """How to go about it.

    ``wait`` (seconds, None without end) bounds each wait for a lock, not the reading between them.
    """

    jobs: int = 1
    wait: float | None = None
    advance: Advance = silent
    expect: Expect = _expects_nothing

    def deadline(self) -> Deadline:
        """The end of a wait that begins now."""
        return Deadline.never() if self.wait is None else Deadline.after(self.wait)


@dataclass(frozen=True, slots=True)
class Material:
    """A publication and where its bytes come from.

    ``content_sha256`` is the content digest where it is known without reading. ``settled`` says that the key
    follows from the bytes themselves, so that an artifact of that key cannot hold others.
    """

    publication: Publication
    reader: TensorReader
    settled: bool
    content_sha256: str | None = None
    unused: tuple[str, ...] = ()
    part_of: int = 1

    @property
    def bytes(self) -> int:
        """Size of all tensors."""
        return sum(spec.nbytes for spec in self.publication.tensors)

    def content(self, work: Work) -> str:
        """The content digest of the source; a checkpoint is read through for it."""
        if self.content_sha256 is not None:
            return self.content_sha256
        work.expect(self.bytes, "comparing")
        specs = self.publication.tensors
        return content_of(specs, digest_tensors(self.reader, specs, jobs=work.jobs, advance=work.advance))


@contextmanager
def from_checkpoint(
    checkpoint: Checkpoint, naming: Naming, metadata: FormatMetadata | None, work: Work
) -> Iterator[Material]:
    """A checkpoint that was opened. Raises Damaged when a file is not what its name promises, Refused when
    the identity that was given is not the tensors'."""
    specs = specs_of(checkpoint)
    given = naming.identity
    # hwctl's own identities follow from the files, and so have to fit them.
    settled = given is None or (_is_own(given) and not naming.trust_identity)
    if given is not None and not settled:
        _require_contract(given, specs, trust=naming.trust_identity)
    total = sum(shard.size for shard in checkpoint.shards)
    hashing = settled or any(shard.blob_digest is not None for shard in checkpoint.shards)
    work.expect(total, *(("hashing", "writing") if hashing else ()))
    files = digest_sources(checkpoint, jobs=work.jobs, advance=work.advance) if hashing else ()
    identity = _derived(checkpoint, naming, files, specs) if given is None or settled else given
    publication = Publication(identity, specs, {} if metadata is None else metadata.value)
    with TensorReader(checkpoint) as reader:
        yield Material(publication, reader, settled, None, checkpoint.unused, checkpoint.part_of)


def _is_own(identity: Identity) -> bool:
    return identity.producer.producer_id == PRODUCER.producer_id


def _derived(
    checkpoint: Checkpoint, naming: Naming, files: Sequence[SourceFile], specs: Sequence[TensorSpec]
) -> Identity:
    """The identity that follows from these very files; one that was given has to be it."""
    given = naming.identity
    names = (
        naming if given is None else Naming(model_id=given.source.model_id, revision=given.source.revision)
    )
    derived = derive_identity(
        names.model_id or checkpoint.model_id,
        names.revision or checkpoint.revision,
        files,
        (spec.dtype for spec in specs),
    )
    if given is not None and given.key != derived.key:
        raise Refused(
            f"the identity is of another checkpoint: its key is {given.key}, these files have {derived.key}; "
            "--trust-identity takes it all the same",
            details={"code": "other-checkpoint", "expected": given.key, "actual": derived.key},
        )
    return derived


def _require_contract(identity: Identity, specs: Sequence[TensorSpec], *, trust: bool) -> None:
    """Another producer's identity makes claims about the tensors; a checkpoint has to bear them out."""
    if trust:
        return
    promised, actual = promised_contract(identity), tensor_contract(specs)
    if promised == actual:
        return
    stated = "states no tensor_contract_sha256" if promised is None else "states other tensors"
    raise Refused(
        f"the identity is of the producer {identity.producer.producer_id!r} and {stated}; "
        "--trust-identity takes it all the same",
        details={"code": "tensor-contract", "expected": promised, "actual": actual},
    )


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
        if seen.unknown:
            raise seen.unknown[0]
        require_known_schema(seen.findings, match.path)
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
