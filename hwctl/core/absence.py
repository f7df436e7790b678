"""Why an entry is not there: being built, given up, set aside, or there under another identity (LEA-05).

A pre-launch check that only says "no" sends an operator searching; what the rest of the store tells is said
here. Nothing is ever decided by it but whether to come back later.
"""

from __future__ import annotations

from hwctl.errors import Busy, HwctlError, NotFound
from hwctl.stores.base import Artifact, Death, StalePolicy, State, Store
from hwctl.stores.hostweights.identity import Identity
from hwctl.stores.hostweights.kin import kin_of


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
    if isinstance(expected, Identity) and (words := kin_of(store, expected)) is not None:
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
