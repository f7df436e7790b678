"""How ``hwctl publish hostweights`` goes about it: from options to a request, from its result to words.

The options and their help are ``publish_hostweights``'s. What a request needs is loaded with the first one.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from hwctl.cli import text
from hwctl.cli.answer import Answer
from hwctl.cli.document import artifact_fields
from hwctl.cli.output import Whole
from hwctl.errors import Usage
from hwctl.stores.base import Family, State

if TYPE_CHECKING:
    from hwctl.core.publish_hostweights import PublishResult
    from hwctl.core.publish_material import FormatMetadata, Naming
    from hwctl.stores.base import Artifact
    from hwctl.stores.hostweights.opening import Wanted

_FORMAT_METADATA_LIMIT = 16 << 20


class Scope(StrEnum):
    """What a store serves, as its domain document spells it."""

    NODE = "node"
    NUMA = "numa"


def naming(identity: Path | None, trust: bool, model_id: str | None, revision: str | None) -> Naming:
    from hwctl.core.expected import read_identity_file
    from hwctl.core.publish_material import Naming

    found = None if identity is None else read_identity_file(identity)
    return Naming(found, trust, model_id, revision)


def metadata(path: Path | None) -> FormatMetadata | None:
    from hwctl.core.publish_material import FormatMetadata
    from hwctl.fs.paths import read_document
    from hwctl.stores.hostweights import canonical

    if path is None:
        return None
    try:
        found = canonical.parse(read_document(path, limit=_FORMAT_METADATA_LIMIT).data)
        return FormatMetadata(canonical.validated(found.value))
    except OSError as exc:
        raise Usage(f"cannot read {path}: {exc.strerror or exc}", path=path) from exc
    except ValueError as exc:  # no JSON document, or one that not every reader can follow
        raise Usage(f"{path} {exc}", path=path) from exc


def wanted(
    scope: Scope | None,
    domain_id: str | None,
    max_artifact: int | None,
    max_store: int | None,
    min_free: int | None,
) -> Wanted:
    """What is asked of the store. Limits that were not named are not asked for at all, so that an existing
    store keeps its own."""
    from hwctl.stores.hostweights.domain import Capacity
    from hwctl.stores.hostweights.opening import Wanted

    named_any = any(limit is not None for limit in (max_artifact, max_store, min_free))
    return Wanted(
        scope=None if scope is None else scope.value,
        domain_id=domain_id,
        capacity=Capacity(max_artifact, max_store, min_free or 0) if named_any else None,
    )


def tell(answer: Answer, result: PublishResult) -> None:
    for name in result.unused:
        answer.warn(f"{name} lies beside the index and is not named by it; it was left out")
    if result.part_of > 1:
        answer.warn(f"the source is one of {result.part_of} shards; the others are not in the artifact")
    if result.unsound is not None:
        became = "will be set aside" if result.set_aside is None else f"was set aside: {result.set_aside}"
        answer.warn(f"the artifact that was there was not sound ({result.unsound}) and {became}")
    artifact = _artifact(result)
    answer.result(
        {
            **artifact_fields(artifact),
            "outcome": result.outcome.value,
            "manifest_sha256": result.manifest_sha256,
            "tensors": result.tensors,
            "findings": [],
        }
    )
    answer.totals.update(bytes=result.bytes, files=result.files, tensors=result.tensors)
    answer.line(Whole(result.path))
    answer.note(f"{text.looked_up(result.outcome.value)}: {_measure(result, artifact)}")


def _measure(result: PublishResult, artifact: Artifact) -> str:
    """The size as inspect counts it, the two documents too; of a plan it is known of the tensors alone."""
    size, tensors = text.size(artifact.bytes), text.number(result.tensors, "tensor")
    if artifact.state is State.ABSENT:
        return f"{tensors} of {size} in {text.number(result.files, 'payload')}"
    return f"{tensors}, {size} in {text.number(artifact.files, 'file')}"


def _artifact(result: PublishResult) -> Artifact:
    """The artifact as a scan sees it, or what it would be."""
    from hwctl.stores.base import Artifact
    from hwctl.stores.hostweights.store import open_store

    planned = Artifact(
        Family.HOSTWEIGHTS,
        result.store,
        result.key,
        result.path,
        State.ABSENT,
        result.bytes,
        files=result.files,
    )
    if result.manifest_sha256 is None:
        return planned
    return open_store(result.store).look(planned) or planned
