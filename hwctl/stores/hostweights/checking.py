"""A check of any entry of a store as a report: under which lease, and what its place alone says.

Owns turning an examination into findings, warnings and "could not find out". The checks themselves are in
``checks`` and ``lookup``.
"""

from __future__ import annotations

from dataclasses import replace

from hwctl.errors import Finding, IoFailed, NotFound, Unsupported
from hwctl.fs.locks import Held
from hwctl.stores.base import Artifact, CheckOptions, Level, Report, State
from hwctl.stores.hostweights import leases
from hwctl.stores.hostweights.checks import Examination, Subject, examine
from hwctl.stores.hostweights.identity import Identity
from hwctl.stores.hostweights.judging import Trust, require_known_schema
from hwctl.stores.hostweights.layout import QUARANTINE, Place
from hwctl.stores.hostweights.lookup import examine_key
from hwctl.stores.hostweights.places import Spot
from hwctl.stores.hostweights.store_root import StoreRoot


def check(root: StoreRoot, spot: Spot, artifact: Artifact, level: Level, options: CheckOptions) -> Report:
    """Judge one entry. Raises NotFound when it is gone, Busy, IoFailed, and Unsupported for a wrong wish.

    The store's own documents come first: where they are damaged, no reader opens the store at all.
    """
    wanted = options.expected
    if wanted is not None and not isinstance(wanted, Identity):
        raise Unsupported(f"a host weight artifact cannot be held to a {type(wanted).__name__}")
    if artifact.state is State.UNREADABLE and spot.place is Place.ROOT:
        raise IoFailed(artifact.reason or "cannot be looked into", path=artifact.path)
    if spot.key is None or spot.place not in (Place.ARTIFACT, Place.QUARANTINE):
        return Report(artifact, level, (_misplaced(artifact),))
    held, warnings = _shared(root, spot.key, options)
    warnings += tuple(f"{name} is missing; the next writer makes it again" for name in root.missing)
    try:
        seen = _examine(root, spot, artifact, level, options, wanted)
    finally:
        if held is not None:
            held.release()
    return _report(root, artifact, level, seen, warnings)


def _misplaced(artifact: Artifact) -> Finding:
    """Entries that no check can make an artifact of."""
    code = {State.STAGING: "not-published", State.ORPHAN: "orphan-marker"}.get(
        artifact.state, "foreign-entry"
    )
    return Finding(code, f"its state is {artifact.state}: {artifact.reason or 'it is no artifact'}")


def _shared(root: StoreRoot, key: str, options: CheckOptions) -> tuple[Held | None, tuple[str, ...]]:
    """The shared lease on an existing lock file; a reader never makes one."""
    held = leases.shared(root, key, options.wait, create=False)
    return held, () if held is not None else ("unleased: the artifact has no lock file",)


def _examine(
    root: StoreRoot,
    spot: Spot,
    artifact: Artifact,
    level: Level,
    options: CheckOptions,
    wanted: Identity | None,
) -> Examination:
    assert spot.key is not None
    if spot.place is Place.ARTIFACT:
        seen = examine_key(root, spot.key, level, options, wanted)
        if seen is None:
            raise NotFound("is gone", path=artifact.path)
        return seen
    with root.folder(QUARANTINE) as folder:
        subject = Subject(
            parent_fd=folder,
            name=spot.name,
            key=spot.key,
            path=str(artifact.path),
            trust=Trust(root.trusted_uid),
            wanted=wanted,
            domain_uuid=None if root.domain is None else root.domain.domain_uuid,
            restoring=options.restoring,
        )
        seen = examine(subject, level, options)
    if not options.restoring:
        seen.events.insert(0, Finding("quarantined", f"it was set aside: {artifact.reason}"))
    return seen


def _report(
    root: StoreRoot,
    artifact: Artifact,
    level: Level,
    seen: Examination,
    warnings: tuple[str, ...],
) -> Report:
    """Damage is told even when something else could not be read; without any, not knowing is no answer."""
    findings = (*root.problems, *seen.findings)
    require_known_schema(findings, artifact.path)
    unknown = (*root.unknown, *seen.unknown)
    if unknown and not findings:
        raise unknown[0]
    if findings and artifact.state is State.READY:
        artifact = replace(artifact, state=State.DAMAGED, reason=findings[0].message)
    warnings += tuple(f"could not be checked: {error.message}" for error in unknown)
    return Report(artifact, level, findings, seen.checked_bytes, warnings=warnings)
