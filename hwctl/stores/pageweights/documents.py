"""Locator and receipt: their fields, judged in the order in which the cache's own program judges them.

Pure: bytes and expectations in, a typed document or findings out. The chain they form (authority, prefix,
locator, receipt, artifact, key) is walked in ``checks``; files are opened there, too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hwctl.errors import Finding
from hwctl.stores.pageweights import layout, records
from hwctl.stores.pageweights.authority import Authority, Source, read_authority
from hwctl.stores.pageweights.records import LOCATOR_SCHEMA, RECEIPT_SCHEMA, Record, shown

Expected = Authority | Source | None
"""What a page must belong to: a presented authority, a source object, or what its own locator says."""


@dataclass(frozen=True, slots=True)
class Locator:
    """Which key is current for an authority, and the digest of its receipt's bytes."""

    prefix: str
    authority: Authority
    key: str
    receipt_sha256: str


@dataclass(frozen=True, slots=True)
class Receipt:
    """What the artifact is: ``artifact_bytes`` in bytes, digests in lower-case hex."""

    artifact_sha256: str
    artifact_bytes: int
    geometry: Mapping[str, object]
    geometry_sha256: str


def locator_record(authority: Authority, key: str, receipt_sha256: str) -> dict[str, object]:
    """A locator as it is written, signed."""
    return records.signed(
        {
            "schema": LOCATOR_SCHEMA,
            "authority": authority.record,
            "authorityPrefix": authority.prefix,
            "cacheKey": key,
            "receiptSha256": receipt_sha256,
        }
    )


def receipt_record(
    authority: Authority, key: str, geometry: Mapping[str, object], sha256: str, size: int
) -> dict[str, object]:
    """A receipt as it is written, signed; ``sha256`` and ``size`` are those of the whole artifact."""
    prefix = authority.prefix
    return records.signed(
        {
            "schema": RECEIPT_SCHEMA,
            "authority": authority.record,
            "authorityPrefix": prefix,
            "cacheKey": key,
            "geometry": geometry,
            "geometrySha256": records.digest(geometry),
            "artifact": {"path": layout.artifact_name(prefix, key), "sha256": sha256, "bytes": size},
            "weightsOnly": True,
            "optimizerStateStored": False,
            "candidateStateStored": False,
            "acceptedSourceAuthorityRequiredOnEveryAccess": True,
        }
    )


def judge_locator(raw: bytes, prefix: str, expected: Expected) -> Locator | tuple[Finding, ...]:
    """Steps 1 and 2 of validation, from the bytes of ``<prefix>.locator.json``."""
    name = layout.locator_name(prefix)
    record = records.parse_record(raw, LOCATOR_SCHEMA, name)
    if isinstance(record, tuple):
        return record
    authority, findings = _locator_authority(record, prefix, expected, name)
    if record.get("authorityPrefix") != prefix:
        message = "its authorityPrefix is not the prefix in its name"
        actual = shown(record.get("authorityPrefix"))
        findings.append(Finding("locator-authority", message, name, prefix, actual))
    findings += _judge_digests(record, ("cacheKey", "receiptSha256"), name)
    if findings or authority is None:
        return tuple(findings)
    return Locator(prefix, authority, str(record["cacheKey"]), str(record["receiptSha256"]))


def _locator_authority(
    record: Record, prefix: str, expected: Expected, name: str
) -> tuple[Authority | None, list[Finding]]:
    """The authority to judge everything else by: the presented one, else the locator's own."""
    recorded = record.get("authority")
    if isinstance(expected, Authority):
        if recorded == expected.record:
            return expected, []
        return expected, [_other_authority(recorded, expected, name)]
    authority = read_authority(recorded, name)
    if not isinstance(authority, Authority):
        return None, [Finding("locator-authority", f.message, name, f.expected, f.actual) for f in authority]
    if authority.prefix != prefix:
        message = "the authority in it does not give the prefix in its name"
        return authority, [Finding("locator-authority", message, name, prefix, authority.prefix)]
    if isinstance(expected, Source) and authority.source != expected:
        message = "the page belongs to another source object, or the source was touched since"
        source = authority.source
        wanted = [expected.sha256, expected.bytes, list(expected.identity)]
        actual = [source.sha256, source.bytes, list(source.identity)]
        return authority, [Finding("locator-authority", message, name, wanted, actual)]
    return authority, []


def _other_authority(recorded: object, expected: Authority, name: str) -> Finding:
    """Says which fields differ: mostly it is the source's ctime, after a touch or chmod."""
    if not isinstance(recorded, Mapping):
        return Finding("locator-authority", "its authority is no object", name)
    wanted = expected.record
    differing = sorted(field for field in {*wanted, *recorded} if wanted.get(field) != recorded.get(field))
    message = f"its authority differs from the presented one in {', '.join(differing[:8])}"
    return Finding("locator-authority", message, name, expected.prefix, records.digest(recorded))


def evictable_key(raw: bytes, prefix: str) -> str | tuple[Finding, ...]:
    """The key of a page that may be evicted: no authority is presented then, so only the form is judged.

    Stricter than the cache's own program in one point: a copied locator, whose ``authorityPrefix`` is not
    that of its name, would leave its own artifact an orphan, so it is reported instead.
    """
    name = layout.locator_name(prefix)
    record = records.parse_record(raw, LOCATOR_SCHEMA, name)
    if isinstance(record, tuple):
        return record
    if record.get("authorityPrefix") != prefix:
        message = "its authorityPrefix is not the prefix in its name"
        return (Finding("locator-authority", message, name, prefix, shown(record.get("authorityPrefix"))),)
    return tuple(_judge_digests(record, ("cacheKey",), name)) or str(record["cacheKey"])


def judge_receipt(raw: bytes, locator: Locator) -> tuple[Receipt | None, tuple[Finding, ...]]:
    """Steps 4 to 7, from the receipt's bytes. A receipt comes back whenever it can judge the artifact."""
    prefix = locator.prefix
    name = layout.receipt_name(prefix, locator.key)
    findings: list[Finding] = []
    sha256 = hashlib.sha256(raw).hexdigest()
    if sha256 != locator.receipt_sha256:
        message = "its SHA-256 is not the one in the locator"
        findings.append(Finding("receipt-hash", message, name, locator.receipt_sha256, sha256))
    record = records.parse_record(raw, RECEIPT_SCHEMA, name)
    if isinstance(record, tuple):
        return None, (*findings, *record)
    findings += _judge_receipt_fields(record, locator, name)
    artifact, geometry = record.get("artifact"), record.get("geometry")
    if not isinstance(artifact, Mapping) or not isinstance(geometry, Mapping):
        return None, tuple(findings)
    bad = [
        *_judge_digests(artifact, ("sha256",), name),
        *_judge_digests(record, ("geometrySha256",), name),
    ]
    findings += bad
    size = artifact.get("bytes")
    if bad or not isinstance(size, int):
        return None, tuple(findings)
    receipt = Receipt(str(artifact["sha256"]), int(size), geometry, str(record["geometrySha256"]))
    return receipt, tuple(findings)


def _judge_receipt_fields(record: Record, locator: Locator, name: str) -> Iterator[Finding]:
    prefix = locator.prefix
    if record.get("authority") != locator.authority.record:
        yield Finding("receipt-authority", "its authority differs from the locator's", name)
    for field, wanted in (("authorityPrefix", prefix), ("cacheKey", locator.key)):
        if record.get(field) != wanted:
            message = f"its {field} differs"
            yield Finding("receipt-authority", message, name, wanted, shown(record.get(field)))
    flags = (("weightsOnly", True), ("optimizerStateStored", False), ("candidateStateStored", False))
    for flag, value in flags:
        if record.get(flag) is not value:  # neither 1, nor 0, nor absent
            message = f"{flag} is not {str(value).lower()}"
            yield Finding("receipt-authority", message, name, value, shown(record.get(flag)))
    artifact = record.get("artifact")
    if not isinstance(artifact, Mapping):
        yield Finding("receipt-authority", "artifact is no object", name, "object", shown(artifact))
    else:
        path = layout.artifact_name(prefix, locator.key)
        if artifact.get("path") != path:
            message = "artifact.path is not the name of the artifact beside it"
            yield Finding("receipt-authority", message, name, path, shown(artifact.get("path")))
        if not isinstance(artifact.get("bytes"), int):
            message = "artifact.bytes is no integer"
            yield Finding("receipt-authority", message, name, "integer", shown(artifact.get("bytes")))
    if not isinstance(record.get("geometry"), Mapping):
        yield Finding(
            "receipt-authority", "geometry is no object", name, "object", shown(record.get("geometry"))
        )


def _judge_digests(record: Record, fields: tuple[str, ...], name: str) -> list[Finding]:
    return [_bad_digest(field, record, name) for field in fields if not layout.is_digest(record.get(field))]


def _bad_digest(field: str, record: Record, name: str) -> Finding:
    message = f"{field} is not 64 lower-case hex characters"
    return Finding("bad-digest", message, name, None, shown(record.get(field)))
