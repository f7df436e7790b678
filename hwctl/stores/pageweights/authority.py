"""The authority: which source object a page was rebuilt from, presented with every access.

Read as the cache's own program reads it (it does not insist on five identity numbers), written strictly:
``unwritable`` names what must not be published. Nobody opens the source here; who derives an authority from
a source object does that in ``core``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeGuard

from hwctl.errors import Finding
from hwctl.fs.paths import identity
from hwctl.stores.pageweights.layout import is_digest
from hwctl.stores.pageweights.records import digest, parse_json, shown

CONTRACT_REVISION = 1
FIELDS = (
    "contractRevision",
    "pageId",
    "sourceObjectSha256",
    "sourceObjectBytes",
    "sourceFileIdentity",
    "sourceFormatRevision",
    "materializedDtype",
)
_IDENTITY_NUMBERS = 5
_SIZE_AT = 2
_INT64_MAX = 2**63 - 1
_ENCODABLE = range(-(2**63), 2**64)


@dataclass(frozen=True, slots=True)
class Authority:
    """A presented authority. ``dtype`` is torch's name without ``torch.``, sizes are in bytes.

    ``source_identity`` is (device, inode, size, mtime ns, ctime ns) of the source file, on trust.
    """

    page_id: int
    source_sha256: str
    source_bytes: int
    source_identity: tuple[int | float, ...]
    source_format_revision: int
    dtype: str

    @property
    def record(self) -> dict[str, object]:
        """The JSON object of exactly seven fields."""
        return {
            "contractRevision": CONTRACT_REVISION,
            "pageId": self.page_id,
            "sourceObjectSha256": self.source_sha256,
            "sourceObjectBytes": self.source_bytes,
            "sourceFileIdentity": list(self.source_identity),
            "sourceFormatRevision": self.source_format_revision,
            "materializedDtype": self.dtype,
        }

    @property
    def prefix(self) -> str:
        """What all names of this authority's page begin with: 64 hex characters."""
        return digest(self.record)

    @property
    def source(self) -> Source:
        return Source(self.source_sha256, self.source_bytes, self.source_identity)


@dataclass(frozen=True, slots=True)
class Source:
    """A source object as it lies on disk: the part of an authority that can be measured."""

    sha256: str
    bytes: int
    identity: tuple[int | float, ...]

    @classmethod
    def measured(cls, sha256: str, st: os.stat_result) -> Source:
        return cls(sha256, st.st_size, identity(st))


def content_key(authority: Authority, artifact_sha256: str, geometry_sha256: str) -> str:
    """The key that names a page's files: authority and content together."""
    parts = {"authority": authority.record, "artifactSha256": artifact_sha256}
    return digest({**parts, "geometrySha256": geometry_sha256})


def parse_authority(raw: bytes, name: str | None = None) -> Authority | tuple[Finding, ...]:
    """An authority file's bytes, or all that is wrong with them."""
    try:
        value = parse_json(raw)
    except ValueError as exc:
        return (Finding("source-authority", f"the authority cannot be parsed: {exc}", name),)
    return read_authority(value, name)


def read_authority(value: object, name: str | None = None) -> Authority | tuple[Finding, ...]:
    """A JSON value as an authority that the cache's own program would take, or all that is wrong."""
    if not isinstance(value, Mapping):
        return (Finding("source-authority", "the authority is no object", name),)
    findings = tuple(_judge(value, name))
    if findings:
        return findings
    return Authority(
        page_id=value["pageId"],
        source_sha256=value["sourceObjectSha256"],
        source_bytes=value["sourceObjectBytes"],
        source_identity=tuple(value["sourceFileIdentity"]),
        source_format_revision=value["sourceFormatRevision"],
        dtype=value["materializedDtype"],
    )


def _judge(value: Mapping[str, object], name: str | None) -> Iterator[Finding]:
    if set(value) != set(FIELDS):
        missing = [field for field in FIELDS if field not in value]
        further = sorted(field for field in value if field not in FIELDS)
        message = f"an authority has exactly seven fields; missing {missing}, further {further[:5]}"
        yield Finding("source-authority", message, name, list(FIELDS), sorted(value)[:32])
        return
    if not is_digest(value["sourceObjectSha256"]):
        message = "sourceObjectSha256 is not 64 lower-case hex characters"
        yield Finding("bad-digest", message, name, None, shown(value["sourceObjectSha256"]))
    least = (("contractRevision", 1), ("pageId", 0), ("sourceObjectBytes", 1), ("sourceFormatRevision", 1))
    for field, bound in least:
        number = value[field]
        if not _is_integer(number) or number < bound:
            message = f"{field} is not an integer of at least {bound}"
            yield Finding("source-authority", message, name, bound, shown(number))
    if value["contractRevision"] != CONTRACT_REVISION:
        message = "another contract revision"
        yield Finding("source-authority", message, name, CONTRACT_REVISION, shown(value["contractRevision"]))
    if not isinstance(value["materializedDtype"], str) or not value["materializedDtype"]:
        yield Finding("source-authority", "materializedDtype is no text", name)
    yield from _judge_identity(value["sourceFileIdentity"], value["sourceObjectBytes"], name)


def _judge_identity(numbers: object, size: object, name: str | None) -> Iterator[Finding]:
    if (
        not isinstance(numbers, list)
        or len(numbers) <= _SIZE_AT
        or not all(isinstance(number, int | float) and not isinstance(number, bool) for number in numbers)
    ):
        message = "sourceFileIdentity is not [device, inode, size, mtime ns, ctime ns]"
        yield Finding("source-authority", message, name)
    elif numbers[_SIZE_AT] != size:
        message = "the size in sourceFileIdentity differs from sourceObjectBytes"
        yield Finding("source-authority", message, name, shown(size), shown(numbers[_SIZE_AT]))


def _is_integer(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def unwritable(authority: Authority, name: str | None = None) -> tuple[Finding, ...]:
    """Why an authority must not be published under: what the format or its encoder cannot hold.

    The cache's own program finds this out half way, with the artifact already renamed.
    """
    findings = []
    if authority.page_id > _INT64_MAX:
        message = f"page {authority.page_id} does not fit in the int64 tensor that stores it"
        findings.append(Finding("source-authority", message, name, _INT64_MAX, authority.page_id))
    numbers = authority.source_identity
    if len(numbers) != _IDENTITY_NUMBERS or not all(_is_integer(number) for number in numbers):
        findings.append(Finding("source-authority", "sourceFileIdentity is not five integers", name))
    whole = (authority.page_id, authority.source_bytes, authority.source_format_revision, *numbers)
    if any(_is_integer(number) and number not in _ENCODABLE for number in whole):
        message = "an integer beyond 64 bits cannot be written into the cache's documents"
        findings.append(Finding("source-authority", message, name))
    return tuple(findings)
