"""Why an entry is not there: being built, given up, set aside, or there under another identity (LEA-05).

A pre-launch check that only says "no" sends an operator searching; what the rest of the store tells is said
here. Nothing is ever decided by it but whether to come back later.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from hwctl.errors import Busy, HwctlError, NotFound
from hwctl.stores.base import Artifact, Death, StalePolicy, State, Store
from hwctl.stores.hostweights.identity import Identity, first_difference
from hwctl.stores.hostweights.layout import MANIFEST

_COMPARED = 100
_LARGEST = 4 << 20


def explain(store: Store, artifact: Artifact, expected: object) -> HwctlError:
    """The failure that the absence of an entry is: Busy while somebody builds it, else NotFound."""
    kin = [entry for entry in store.scan() if entry.key == artifact.key and entry.path != artifact.path]
    for entry in kin:
        if entry.state is State.STAGING:
            return of_staging(store, entry, artifact)
    for entry in kin:
        if entry.state is State.QUARANTINED:
            why = f" ({entry.reason})" if entry.reason else ""
            return NotFound(f"is absent: it was set aside as {entry.path}{why}", path=artifact.path)
    if isinstance(expected, Identity) and (words := _other_identity(store, expected)) is not None:
        return NotFound(f"is absent: {words}", path=artifact.path)
    return NotFound("is absent", path=artifact.path)


def of_staging(store: Store, staging: Artifact, wanted: Artifact) -> HwctlError:
    """What staging in the place of an artifact means, by whether its producer lives."""
    staleness = store.stale(staging, StalePolicy())
    evidence = "; ".join(staleness.evidence)
    if staleness.death is Death.PROVEN:
        return NotFound(
            f"is absent: {staging.path} was never finished, its producer is dead ({evidence})",
            path=wanted.path,
        )
    details = {"staging": str(staging.path), "evidence": list(staleness.evidence)}
    return Busy(
        f"is not ready: it is being built in {staging.path} ({evidence})", path=wanted.path, details=details
    )


def _other_identity(store: Store, wanted: Identity) -> str | None:
    """Which artifact of the same model is there instead, and in what it differs."""
    document = wanted.document()
    ready = [artifact for artifact in store.scan() if artifact.state is State.READY]
    for artifact in ready[:_COMPARED]:
        found = _identity_in(store.documents(artifact).get(MANIFEST, b""))
        source = found.get("source")
        if isinstance(source, Mapping) and source.get("model_id") == wanted.source.model_id:
            field = first_difference(document, found)
            return f"{artifact.key} is of the same model, but differs in {field}"
    return None


def _identity_in(manifest: bytes) -> Mapping[str, object]:
    """The identity in a manifest, unjudged; empty where there is none to be seen."""
    if not 0 < len(manifest) <= _LARGEST:
        return {}
    try:
        parsed = json.loads(manifest)
    except (ValueError, RecursionError):
        return {}
    identity = parsed.get("identity") if isinstance(parsed, dict) else None
    return identity if isinstance(identity, dict) else {}
