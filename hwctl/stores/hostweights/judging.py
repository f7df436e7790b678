"""Judging an artifact: stat facts, names and documents in, findings out. No I/O.

Each function is one or more of the numbered checks of the format's lookup; ``checks`` reads what they need
and calls them in order. Finding codes become upstream's words in ``verdict``.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from os import stat_result
from pathlib import Path

from hwctl.errors import Finding, Unsupported
from hwctl.fs.paths import kind_of
from hwctl.stores.hostweights.fields import SCHEMA, UNSUPPORTED_SCHEMA, other_schema
from hwctl.stores.hostweights.identity import Identity, first_difference
from hwctl.stores.hostweights.layout import MANIFEST, READY, STICKY, WRITE_BITS
from hwctl.stores.hostweights.records import (
    INTEGRITY_MODE,
    FileEntry,
    Manifest,
    Ready,
    TensorEntry,
    content_digest,
    contiguous_stride,
)
from hwctl.stores.hostweights.tensors import torch_view
from hwctl.weights.safetensors_file import Header
from hwctl.weights.tensor_layout import TensorEntry as StoredTensor

_OTHER_FIELDS = frozenset({"bad-value", "missing-field", "unknown-field", "integrity-mode"})
"""What another schema may well have otherwise in its document."""
_OTHER_FILES = "undeclared-file"

# A damaged directory can hold as many names as it likes; so many are told apart.
_SHOWN = 50


@dataclass(frozen=True, slots=True)
class Trust:
    """Whom files have to belong to; a ``uid`` of None skips owners and write bits."""

    uid: int | None

    def judge(self, st: stat_result, file: str | None) -> list[Finding]:
        """Check 8, 9 and 17c: owner, then write bits."""
        if self.uid is None:
            return []
        label = file or "the directory"
        found: list[Finding] = []
        if st.st_uid != self.uid:
            message = f"{label} belongs to uid {st.st_uid}, the store to uid {self.uid}"
            found.append(Finding("foreign-owner", message, file, self.uid, st.st_uid))
        if st.st_mode & WRITE_BITS:
            mode = stat.S_IMODE(st.st_mode)
            found.append(Finding("writable", f"{label} can be written (mode {mode:04o})", file, None, mode))
        return found


def judge_directory(st: stat_result, trust: Trust, *, restoring: bool) -> list[Finding]:
    """Checks 7 and 8. An entry about to be restored may carry the mark that restoring takes away."""
    found: list[Finding] = []
    if st.st_mode & STICKY and not restoring:
        found.append(Finding("invalidated", "the directory is marked as invalid (sticky bit)"))
    return found + trust.judge(st, None)


def judge_regular(st: stat_result, file: str) -> list[Finding]:
    """Part of checks 9 and 17a: a regular file that has no second name."""
    if not stat.S_ISREG(st.st_mode):
        return [Finding("not-regular", f"{file} is a {kind_of(st.st_mode)}, not a regular file", file)]
    if st.st_nlink != 1:
        return [Finding("hard-linked", f"{file} has {st.st_nlink} links", file, 1, st.st_nlink)]
    return []


def judge_schemas(documents: Iterable[tuple[str, object]], ready: Ready | None) -> list[Finding]:
    """Check 11, of the documents as parsed: fields that are not known belong to a schema that is not, too."""
    found: list[Finding] = []
    for file, value in documents:
        version = other_schema(value)
        if version is not None:
            message = f"{file} has schema {version}, known is {SCHEMA}"
            found.append(Finding(UNSUPPORTED_SCHEMA, message, file, SCHEMA, version))
    if ready is not None and ready.integrity_mode != INTEGRITY_MODE:
        message = f"{READY} has the integrity mode {ready.integrity_mode[:80]!r}"
        found.append(Finding("integrity-mode", message, READY, INTEGRITY_MODE, ready.integrity_mode[:80]))
    return found


def require_known_schema(findings: Sequence[Finding], path: str | Path) -> None:
    """Raise Unsupported for what a later version made. What no version would leave behind stays damage: a
    denial, a seal that does not fit, anything wrong with a document whose schema is known."""
    later = [finding for finding in findings if finding.code == UNSUPPORTED_SCHEMA]
    files = {finding.file for finding in later}
    if later and all(
        finding.code in (UNSUPPORTED_SCHEMA, _OTHER_FILES)
        or (finding.code in _OTHER_FIELDS and finding.file in files)
        for finding in findings
    ):
        raise Unsupported(later[0].message, path=path)


def judge_names(names: Iterable[str], files: Sequence[FileEntry]) -> list[Finding]:
    """Check 12: the directory holds the two documents, the declared payloads, and nothing else."""
    declared = {READY, MANIFEST, *(entry.file_name for entry in files)}
    present = set(names)
    found = [
        Finding("missing-file", f"{name!r} is declared and not there", name)
        for name in sorted(declared - present)[:_SHOWN]
    ]
    extra = sorted(present - declared)
    found += [Finding("undeclared-file", f"{name!r} is not declared", name) for name in extra[:_SHOWN]]
    if len(extra) > _SHOWN:
        found.append(Finding("undeclared-file", f"{len(extra) - _SHOWN} more files are not declared"))
    return found


def judge_seal(ready: Ready, manifest: Manifest, manifest_sha256: str) -> list[Finding]:
    """Checks 13 and 14. ``manifest_sha256`` is of the canonical form, not of the file."""
    found: list[Finding] = []
    if ready.manifest_sha256 != manifest_sha256:
        message = f"{READY} seals another manifest"
        found.append(Finding("manifest-digest", message, MANIFEST, ready.manifest_sha256, manifest_sha256))
    if ready.artifact_content_sha256 != manifest.artifact_content_sha256:
        found.append(
            Finding(
                "content-digest",
                f"{READY} and {MANIFEST} state different content digests",
                MANIFEST,
                ready.artifact_content_sha256,
                manifest.artifact_content_sha256,
            )
        )
    return found


def judge_identity(manifest: Manifest, key: str, wanted: Identity | None) -> list[Finding]:
    """Checks 15 and 16: the artifact is the one its place says, and the one that was asked for."""
    found: list[Finding] = []
    if manifest.artifact_key != key:
        message = "the manifest is of another artifact"
        found.append(Finding("wrong-key", message, MANIFEST, key, manifest.artifact_key))
    if wanted is not None and manifest.identity.key != wanted.key:
        where = first_difference(wanted.document(), manifest.identity.document())
        message = f"the identity differs from the wanted one in {where}"
        found.append(Finding("wrong-identity", message, MANIFEST, wanted.key, manifest.identity.key))
    producer = manifest.identity.producer
    for code, stated, meant in (
        ("producer-schema", manifest.producer_schema, producer.manifest_schema),
        ("restorer-schema", manifest.restorer_schema, producer.restorer_schema),
    ):
        if stated != meant:
            found.append(Finding(code, f"{code} is not the identity's", MANIFEST, meant, stated))
    return found


def judge_size(st: stat_result, entry: FileEntry) -> list[Finding]:
    """Check 17b."""
    if st.st_size == entry.size:
        return []
    message = f"{entry.file_name} has {st.st_size} bytes, declared are {entry.size}"
    return [Finding("size-mismatch", message, entry.file_name, entry.size, st.st_size)]


def judge_digest(found: str, entry: FileEntry) -> list[Finding]:
    """Check 17d."""
    if found == entry.sha256:
        return []
    message = f"{entry.file_name}: the bytes have another SHA-256"
    return [Finding("digest-mismatch", message, entry.file_name, entry.sha256, found)]


def judge_tensors(file: str, header: Header, declared: Mapping[str, TensorEntry]) -> list[Finding]:
    """Checks 17f and 17g: the container holds the declared tensors as they are declared."""
    found: list[Finding] = []
    for key in sorted(declared.keys() - header.by_name.keys())[:_SHOWN]:
        found.append(Finding("tensor-missing", f"{file} lacks the tensor {key[:200]!r}", file))
    for key in sorted(header.by_name.keys() - declared.keys())[:_SHOWN]:
        found.append(Finding("tensor-undeclared", f"{file} holds the undeclared tensor {key[:200]!r}", file))
    strides: dict[tuple[int, ...], tuple[int, ...]] = {}
    for key, entry in declared.items():
        stored = header.by_name.get(key)
        if stored is not None and (problem := _judge_tensor(file, entry, stored, strides)) is not None:
            found.append(problem)
            if len(found) > 2 * _SHOWN:
                break
    return found


def _judge_tensor(
    file: str, entry: TensorEntry, stored: StoredTensor, strides: dict[tuple[int, ...], tuple[int, ...]]
) -> Finding | None:
    label = f"{file}: tensor {entry.name[:200]!r}"
    view = torch_view(stored)
    if view is None:
        return Finding("tensor-dtype", f"{label} is of {stored.dtype}, which torch cannot hold", file)
    dtype, shape = view
    if shape != entry.shape:
        return Finding("tensor-shape", f"{label} has another shape", file, entry.shape, shape)
    if dtype != entry.dtype:
        return Finding("tensor-dtype", f"{label} has another dtype", file, entry.dtype, dtype)
    # Layers share their shapes, so the strides are worked out once for each.
    stride = strides.get(shape)
    if stride is None:
        stride = strides[shape] = contiguous_stride(shape)
    if stride != entry.stride:
        return Finding("tensor-stride", f"{label} has other strides", file, entry.stride, stride)
    if stored.end - stored.begin != entry.nbytes:
        size = stored.end - stored.begin
        return Finding("tensor-size", f"{label} has another size", file, entry.nbytes, size)
    return None


def judge_content(manifest: Manifest) -> list[Finding]:
    """Not looked at upstream: the content digest follows from the entries."""
    actual = content_digest(manifest.tensors)
    if actual == manifest.artifact_content_sha256:
        return []
    message = "artifact_content_sha256 does not follow from the tensor entries"
    return [Finding("content-digest", message, MANIFEST, manifest.artifact_content_sha256, actual)]


def judge_ascii(ready: Ready, domain_uuid: str | None) -> list[Finding]:
    """Check 18: both ids become part of a fingerprint that is made of ASCII."""
    found: list[Finding] = []
    if not ready.publication_id.isascii():
        found.append(Finding("not-ascii", f"{READY}: publication_id is not ASCII", READY))
    return found + judge_uuid(domain_uuid)


def judge_uuid(domain_uuid: str | None) -> list[Finding]:
    """The store's part of check 18. It opens all the same, and then nothing in it is found."""
    if domain_uuid is None or domain_uuid.isascii():
        return []
    return [Finding("not-ascii", "the store's domain_uuid is not ASCII: every lookup fails")]
