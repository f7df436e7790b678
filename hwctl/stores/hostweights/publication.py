"""Publishing one artifact: from declared tensors to a committed directory, or to nothing at all.

Owns the order of the steps and what an error in each is called. The build lock of the key is the caller's,
and there is no valid artifact of that key; who may build is settled in ``build``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from hwctl.errors import Damaged, Finding, HwctlError, NoRoom, Unsupported, from_os_error
from hwctl.fs import space
from hwctl.fs.deadline import Deadline
from hwctl.fs.probe import probe
from hwctl.stores.base import Advance, silent
from hwctl.stores.hostweights import canonical
from hwctl.stores.hostweights.capacity import admission
from hwctl.stores.hostweights.commit import Published, commit
from hwctl.stores.hostweights.identity import Identity
from hwctl.stores.hostweights.layout import MANIFEST, METADATA_LIMIT, TMP
from hwctl.stores.hostweights.records import FileEntry, Sealed, contiguous_stride, seal
from hwctl.stores.hostweights.staging import Staging
from hwctl.stores.hostweights.store_root import StoreRoot
from hwctl.stores.hostweights.tensors import PayloadPlan, TensorSpec, plan_payloads, refusal
from hwctl.stores.hostweights.verdict import Code, Stage, coded
from hwctl.stores.hostweights.writer import ArtifactWriter, Producer, entry_of

_OTHER_INODES = 3
"""The staging directory and the two documents."""

_COMMIT_SECONDS = 30.0

_TENSOR_BYTES = 260
"""What a tensor's entry takes in the manifest beyond names and shapes, and then some: only who could come
near the limit is measured."""


@dataclass(frozen=True, slots=True)
class Publication:
    """What is to be published: an identity, the tensors a producer promises, and free-form metadata.

    ``format_metadata`` is any JSON value of plain types (``canonical.validated``). ``content_sha256`` is the
    content digest the artifact must turn out to have, where that is known: of a copy.
    """

    identity: Identity
    tensors: tuple[TensorSpec, ...]
    format_metadata: object = field(default_factory=dict)
    content_sha256: str | None = None


def publish(
    root: StoreRoot,
    publication: Publication,
    produce: Producer,
    deadline: Deadline,
    *,
    jobs: int = 1,
    advance: Advance = silent,
) -> Published:
    """Write and commit one artifact; on any failure nothing of it stays but what a collision set aside.

    ``deadline`` bounds the waits for locks, not the producer; ``jobs`` is the writer's. Raises Usage for
    tensors that cannot be published or were not written as declared, Unsupported for too many of them,
    NoRoom, IoFailed, Busy and Refused, with upstream's words in ``details``; Damaged when the content is not
    the one expected. Other exceptions of the producer pass through.
    """
    plans = plan_payloads(publication.tensors)
    _require_readable(publication, plans)
    total = sum(plan.size for plan in plans)
    try:
        with root.folder(TMP) as tmp:
            return _publish(root, tmp, publication, plans, produce, deadline, jobs, advance)
    except _ProducerError as failed:
        raise _failure(root, failed.cause, total, Stage.PRODUCTION, Code.PRODUCER_FAILED) from failed.cause
    except OSError as exc:
        raise _failure(root, exc, total, Stage.DOMAIN, Code.DOMAIN_UNAVAILABLE) from exc


class _ProducerError(Exception):
    """An OSError met while the producer was writing, on its way out past the removal of staging."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(str(cause))
        self.cause = cause


def _publish(
    root: StoreRoot,
    tmp: int,
    publication: Publication,
    plans: Sequence[PayloadPlan],
    produce: Producer,
    deadline: Deadline,
    jobs: int,
    advance: Advance,
) -> Published:
    with ExitStack() as undo:
        with admission(root, deadline) as admitted:
            size = sum(plan.size for plan in plans)
            admitted.whole(size)
            admitted.room(size, len(plans) + _OTHER_INODES)
            staging = Staging(root, tmp, publication.identity.key)
            undo.callback(staging.close)
            undo.callback(staging.discard)
            probe(staging.fd)
            writer = ArtifactWriter(staging.fd, plans, admitted.free, jobs=jobs, advance=advance)
            undo.callback(writer.close)
            writer.reserve()
        try:
            produce(writer)
            tensors, files = writer.finish()
        except OSError as exc:
            raise _ProducerError(exc) from exc
        sealed = seal(publication.identity, tensors, files, publication.format_metadata)
        _require_content(publication, sealed)
        staging.seal(sealed)
        admitted.whole(staging.size())
        staging.mark()
        # The deadline may have passed while the producer worked. A reader that looks at this very moment is
        # waited for all the same: its lock is gone in an instant, the work of an hour would be lost.
        return commit(root, staging, sealed, deadline.at_least(_COMMIT_SECONDS))


def _require_readable(publication: Publication, plans: Sequence[PayloadPlan]) -> None:
    """Before a byte is written: no reader takes a manifest over 64 MiB, which is near 200,000 tensors, nor
    one that is nested too deeply for it."""
    try:
        metadata = canonical.encode(canonical.validated(publication.format_metadata))
    except (TypeError, ValueError) as exc:
        raise refusal(f"the format metadata cannot be written: {exc}") from exc
    specs = publication.tensors
    shapes = {spec.shape: len(f"{spec.shape}{contiguous_stride(spec.shape)}") for spec in specs}
    at_most = sum(
        _TENSOR_BYTES + 2 * len(json.dumps(spec.name)) + shapes[spec.shape] + len(spec.file_name)
        for spec in specs
    )
    if at_most < METADATA_LIMIT - len(canonical.encode(publication.identity.document())) - len(metadata):
        return
    digest = "0" * 64
    files = [FileEntry(plan.file_name, plan.size, digest) for plan in plans]
    tensors = [entry_of(extent, digest) for plan in plans for extent in plan.extents.values()]
    size = len(seal(publication.identity, tensors, files, publication.format_metadata).manifest_bytes)
    if size > METADATA_LIMIT:
        raise Unsupported(
            f"{len(specs)} tensors make a manifest of {size} bytes; readers take {METADATA_LIMIT}",
            details={"manifest_bytes": size, "limit": METADATA_LIMIT},
        )


def _require_content(publication: Publication, sealed: Sealed) -> None:
    """A copy has to be one. Nobody checks the digests of single tensors upstream, so a source can lie."""
    expected, actual = publication.content_sha256, sealed.manifest.artifact_content_sha256
    if expected is None or expected == actual:
        return
    message = "the tensors that were copied have another content digest than their artifact states"
    raise Damaged(message, [Finding("content-digest", message, MANIFEST, expected, actual)])


def _failure(root: StoreRoot, exc: OSError, total: int, stage: Stage, code: Code) -> HwctlError:
    """An OSError as what it means. Asked for after staging is gone, so that the room is what there was."""
    error = from_os_error(exc, f"cannot write the artifact of {total} bytes in {root.path}", root.path)
    if not isinstance(error, NoRoom):
        return coded(error, stage, code)
    what = f"the artifact (at {exc.filename})" if exc.filename else "the artifact"
    return coded(space.ran_out(root.path, total, exc, what=what), Stage.CAPACITY, Code.ENOSPC)
