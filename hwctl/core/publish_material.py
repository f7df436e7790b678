"""What a publication is made of, as values: read and judged in full before the store is touched.

Two kinds of source look the same afterwards: a checkpoint (checkpoint_material), whose identity is derived or
given, and an artifact of another host weight store (artifact_material), which brings its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from hwctl.core.tensor_digests import content_of, digest_tensors
from hwctl.fs.deadline import Deadline
from hwctl.stores.base import Advance, silent
from hwctl.stores.hostweights.identity import Identity
from hwctl.stores.hostweights.publication import Publication
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
