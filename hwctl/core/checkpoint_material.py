"""A checkpoint as the material of a publication: its tensors, and the identity that they have or are given.

Owns whether an identity may stand for these files. What belongs to a checkpoint is ``weights.checkpoint``'s
business, how an identity follows from its files the store's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from hwctl.core.publish_material import FormatMetadata, Material, Naming, Work
from hwctl.core.source_digests import digest_sources
from hwctl.core.tensor_stream import specs_of
from hwctl.errors import Refused
from hwctl.stores.hostweights.derived import (
    PRODUCER,
    SourceFile,
    derive_identity,
    promised_contract,
    tensor_contract,
)
from hwctl.stores.hostweights.identity import Identity
from hwctl.stores.hostweights.publication import Publication
from hwctl.stores.hostweights.tensors import TensorSpec
from hwctl.weights.checkpoint import Checkpoint
from hwctl.weights.tensor_reader import TensorReader


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
