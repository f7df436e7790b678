"""What an artifact that is there already means for a publication of the same key (PUB-12).

Owns telling the same content from other content. It is asked under a lease, or of a plan; replacing what is
not sound is the store's work.
"""

from __future__ import annotations

from collections.abc import Sequence

from hwctl.core.publish_material import FormatMetadata, Material, Work
from hwctl.errors import Finding, Refused
from hwctl.stores.base import CheckOptions, Level
from hwctl.stores.hostweights import canonical
from hwctl.stores.hostweights.checks import Examination
from hwctl.stores.hostweights.judging import require_known_schema
from hwctl.stores.hostweights.layout import ARTIFACTS
from hwctl.stores.hostweights.lookup import examine_key
from hwctl.stores.hostweights.records import Manifest
from hwctl.stores.hostweights.store_root import StoreRoot


def look_at(root: StoreRoot, material: Material, level: Level) -> Examination | None:
    """What stands under the key, sound or not; None when nothing does."""
    identity = material.publication.identity
    if not (root.path / ARTIFACTS).is_dir():
        return None
    return examine_key(root, identity.key, level, CheckOptions(), identity)


def require_known(root: StoreRoot, material: Material, seen: Examination | None) -> None:
    require_known_schema(root.problems, root.path)
    if seen is not None:
        require_known_schema(seen.findings, root.path / ARTIFACTS / material.publication.identity.key)


def what_is_wrong(findings: Sequence[Finding]) -> str | None:
    return findings[0].message if findings else None


def sound(seen: Examination | None) -> tuple[Manifest, str] | None:
    """Manifest of a sound artifact and the manifest's digest, None for any other."""
    if seen is None or seen.events or seen.manifest is None or seen.manifest_sha256 is None:
        return None
    return seen.manifest, seen.manifest_sha256


def require_same(root: StoreRoot, material: Material, metadata: FormatMetadata | None, work: Work) -> None:
    """Refuse when the artifact that is there holds other content than the source, or other ``metadata`` than
    was asked for (PUB-12)."""
    there = sound(look_at(root, material, Level.MARKER))
    if there is None:
        return  # denied since it was looked up; the next run replaces it
    if material.settled and metadata is None and _declares(there[0], material):
        return
    path = root.path / ARTIFACTS / material.publication.identity.key
    manifest, _digest = there
    existing, new = manifest.artifact_content_sha256, material.content(work)
    if existing != new:
        raise Refused(
            f"{path} holds other content under the same identity: {existing}, the source has {new}",
            path=path,
            details={
                "code": "identity-collision",
                "existing_content_sha256": existing,
                "new_content_sha256": new,
            },
        )
    recorded = manifest.format_metadata
    if metadata is not None and canonical.encode(metadata.value) != canonical.encode(recorded):
        raise Refused(
            f"{path} holds the same content with other format metadata",
            path=path,
            details={"code": "identity-collision", "existing_format_metadata": recorded},
        )


def _declares(manifest: Manifest, material: Material) -> bool:
    """Whether the tensors are the source's, as far as it shows without reading them. An identity that its
    publisher vouched for (--trust-identity) may stand over others."""
    theirs = {(entry.name, entry.dtype, tuple(entry.shape)) for entry in manifest.tensors}
    return theirs == {(spec.name, spec.dtype, spec.shape) for spec in material.publication.tensors}
