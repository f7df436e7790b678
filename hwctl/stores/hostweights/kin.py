"""Artifacts of the same model under another identity: what who misses one may have meant (LEA-05)."""

from __future__ import annotations

from collections.abc import Mapping

from hwctl.stores.base import State, Store
from hwctl.stores.hostweights import canonical
from hwctl.stores.hostweights.identity import Identity, first_difference
from hwctl.stores.hostweights.layout import MANIFEST

_COMPARED = 100
_LARGEST = 4 << 20


def kin_of(store: Store, wanted: Identity) -> str | None:
    """Which artifact of the same model is there instead, and in what it differs, in words."""
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
    if len(manifest) > _LARGEST:
        return {}
    try:
        parsed = canonical.parse(manifest).value
    except canonical.BadDocument:
        return {}
    identity = parsed.get("identity") if isinstance(parsed, dict) else None
    return identity if isinstance(identity, dict) else {}
