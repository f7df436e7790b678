"""Artifacts of the same model under another identity: what who misses one may have meant (LEA-05)."""

from __future__ import annotations

from collections.abc import Mapping

from hwctl.stores.base import State, Store
from hwctl.stores.hostweights.glance import member
from hwctl.stores.hostweights.identity import Identity, first_difference

_COMPARED = 100


def kin_of(store: Store, wanted: Identity) -> str | None:
    """Which artifact of the same model is there instead, and in what it differs, in words."""
    document = wanted.document()
    ready = [artifact for artifact in store.scan() if artifact.state is State.READY]
    for artifact in ready[:_COMPARED]:
        found = member(artifact.path, "identity")
        if not isinstance(found, Mapping):
            continue
        source = found.get("source")
        if isinstance(source, Mapping) and source.get("model_id") == wanted.source.model_id:
            field = first_difference(document, found)
            return f"{artifact.key} is of the same model, but differs in {field}"
    return None
