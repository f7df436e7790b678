"""A finished tree, ready, half consumed or persistent: the questions that all who use one ask of it.

Owns their order: what the manifest says, whether it is this root's, whether all of it is left, what was
expected, and only then the exact tree. Each rule lives with its subject (``manifest``, ``expect``, ``tree``).
The caller holds the lock on the root.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hwctl.errors import Damaged, Finding, NotFound, Unsupported, from_os_error, in_short
from hwctl.stores.ktint8 import expect
from hwctl.stores.ktint8.documents import ReadManifest, read_manifest
from hwctl.stores.ktint8.expect import Expectation
from hwctl.stores.ktint8.layers import LayerState
from hwctl.stores.ktint8.manifest import SCHEMA_UNKNOWN, Manifest, Schema, matching
from hwctl.stores.ktint8.root_lock import GONE
from hwctl.stores.ktint8.roots import Kind, Root
from hwctl.stores.ktint8.tree import Plan, judge_tree


@dataclass(frozen=True, slots=True)
class Finished:
    """A tree by its documents; sound as far as they tell when there are no ``findings``."""

    read: ReadManifest
    findings: tuple[Finding, ...]

    @property
    def manifest(self) -> Manifest | None:
        return self.read.parsed.manifest


def judge_documents(
    root_fd: int, root: Root, *, half_consumed: bool = False, expected: Expectation | None = None
) -> Finished:
    """Judge a root by its manifest. ``half_consumed`` takes a tree of which layers are gone, too."""
    ephemeral = root.kind is Kind.EPHEMERAL
    read = read_manifest(root_fd, ephemeral=ephemeral)
    manifest, findings = read.parsed.manifest, list(read.parsed.findings)
    if manifest is not None:
        if ephemeral:
            findings += matching(manifest, root.key, os.fstat(root_fd).st_uid)
        if manifest.half_consumed and not half_consumed:
            findings.append(_half_consumed(manifest))
        if expected is not None:
            findings += expect.judge(expected, manifest.geometry, manifest.indices)
    return Finished(read, tuple(findings))


def require_sound(
    root_fd: int,
    path: Path,
    found: Finished,
    before: Sequence[Finding] = (),
    documents: frozenset[str] = frozenset(),
) -> Manifest:
    """The manifest of a tree that is sound in all but its bytes, or Damaged with every finding.

    ``before`` is what was found before its documents were judged, ``documents`` what may lie beside the
    manifest. Raises Unsupported, and NotFound when somebody who takes no lock has begun to consume it.
    """
    require_known_schema(found.read)
    findings = [*before, *found.findings]
    if found.manifest is not None and not findings:
        # What the tree holds can only be judged by a manifest that is sound itself.
        plan = plan_of(found.manifest)
        try:
            findings += judge_tree(root_fd, replace(plan, documents=plan.documents | documents))
        except FileNotFoundError as exc:
            raise NotFound(GONE, path=path) from exc
        except OSError as exc:
            raise from_os_error(exc, "cannot look into it", path) from exc
    if found.manifest is None or findings:
        raise unsound(path, findings)
    return found.manifest


def require_known_schema(read: ReadManifest) -> None:
    """Raise Unsupported for a schema that another version may know: that is no damage."""
    for finding in read.parsed.findings:
        if finding.code == SCHEMA_UNKNOWN:
            raise Unsupported(f"{finding.file}: {finding.message}")


def plan_of(manifest: Manifest) -> Plan:
    """What a root with this manifest should hold, as far as its layers have not been consumed."""
    by_state = {
        state: tuple(sorted(layer.index for layer in manifest.layers if layer.state is state))
        for state in LayerState
    }
    return Plan(
        manifest.geometry,
        whole=by_state[LayerState.READY],
        partial=by_state[LayerState.CONSUMING],
        documents=frozenset({manifest.schema.document}),
        private=manifest.schema is Schema.EPHEMERAL,
    )


def _half_consumed(manifest: Manifest) -> Finding:
    left = sum(layer.ready for layer in manifest.layers)
    words = f"is half consumed: {left} of {len(manifest.layers)} layers are left; only hwctl goes on with it"
    return Finding("half-consumed", words, manifest.schema.document)


def unsound(path: Path, findings: Sequence[Finding]) -> Damaged:
    """A tree that cannot be used for what was asked, with all that is wrong with it."""
    where = f"{findings[0].file}: " if findings[0].file else ""
    return Damaged(f"{path}: {where}{in_short(findings)}", findings, path=path)
