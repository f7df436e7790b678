"""Reading manifest.json and READY.json from untrusted values: typed records, or every reason why not.

Pure: values in, records and findings out. Whether a file may be trusted at all (owner, links, modes) and
whether the payloads match is judged in ``checks``.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from hwctl.stores.hostweights.fields import SHA256_HEX, Problems, digest, integer, kind, section, text
from hwctl.stores.hostweights.identity_document import parse_identity
from hwctl.stores.hostweights.layout import is_safe_name
from hwctl.stores.hostweights.records import TENSOR_KINDS, FileEntry, Manifest, Ready, TensorEntry

_TOP = frozenset(
    {
        "schema_version",
        "artifact_key",
        "identity",
        "producer_schema",
        "restorer_schema",
        "tensors",
        "files",
        "artifact_content_sha256",
        "format_metadata",
    }
)
_READY = frozenset(
    {"schema_version", "publication_id", "manifest_sha256", "artifact_content_sha256", "integrity_mode"}
)
_FILE = frozenset(FileEntry._fields)
_TENSOR = frozenset(TensorEntry._fields)

# After so many findings in one document, more of the same kind tell nobody anything.
_ENOUGH = 50


def parse_ready(value: object, problems: Problems) -> Ready | None:
    """The marker a parsed document holds, or None with every reason noted."""
    before = len(problems.found)
    top = section(value, "", _READY, problems)
    if top is None:
        return None
    ready = Ready(
        publication_id=text(top, "publication_id", "", problems),
        manifest_sha256=digest(top, "manifest_sha256", "", problems),
        artifact_content_sha256=digest(top, "artifact_content_sha256", "", problems),
        schema_version=integer(top, "schema_version", "", problems, 1),
        integrity_mode=text(top, "integrity_mode", "", problems),
    )
    return ready if len(problems.found) == before else None


def parse_manifest(
    value: object, problems: Problems, entries: Sequence[TensorEntry] | None = None
) -> Manifest | None:
    """The manifest a parsed document holds, or None with every reason noted.

    ``entries`` are its tensors where they were read already (``manifest_text``); ``value`` is without them.
    """
    before = len(problems.found)
    top = section(value, "", _TOP if entries is None else _TOP - {"tensors"}, problems)
    if top is None:
        return None
    version = integer(top, "schema_version", "", problems, 1)
    key = digest(top, "artifact_key", "", problems)
    identity = parse_identity(top["identity"], problems)
    if identity is not None and key and identity.key != key:
        message = "artifact_key is not the key of the identity"
        problems.add("bad-value", message, expected=identity.key, actual=key)
    producer_schema = text(top, "producer_schema", "", problems)
    restorer_schema = text(top, "restorer_schema", "", problems)
    tensors = _tensors(top["tensors"], problems) if entries is None else entries
    _judge_order([entry.name for entry in tensors], "tensors", problems)
    files = _files(top["files"], problems)
    content = digest(top, "artifact_content_sha256", "", problems)
    if len(problems.found) == before:
        _judge_placement(tensors, files, problems)
    if len(problems.found) > before or identity is None:
        return None
    return Manifest(
        version,
        key,
        identity,
        producer_schema,
        restorer_schema,
        tuple(tensors),
        tuple(files),
        content,
        top["format_metadata"],
    )


def _files(value: object, problems: Problems) -> list[FileEntry]:
    out: list[FileEntry] = []
    for index, item in enumerate(_listed(value, "files", problems)):
        where = f"files[{index}]"
        fields = section(item, where, _FILE, problems)
        if fields is not None:
            name = text(fields, "file_name", where, problems)
            _judge_name(name, where, problems)
            size = integer(fields, "size", where, problems)
            out.append(FileEntry(name, size, digest(fields, "sha256", where, problems)))
        if _too_many(problems, index):
            return out
    _judge_order([entry.file_name for entry in out], "files", problems)
    return out


def _tensors(value: object, problems: Problems) -> list[TensorEntry]:
    out: list[TensorEntry] = []
    for index, item in enumerate(_listed(value, "tensors", problems)):
        if isinstance(item, dict) and _is_sound(item):
            sizes = {name: tuple(item[name]) for name in ("shape", "stride")}
            out.append(TensorEntry(**item | sizes))
        else:
            _explain_tensor(item, f"tensors[{index}]", problems)
            if _too_many(problems, index):
                return out
    return out


def _is_sound(item: dict[str, Any]) -> bool:
    """All rules about one tensor entry in one quick test; ``_explain_tensor`` names the one that failed."""
    if item.keys() != _TENSOR:
        return False
    texts = (item["name"], item["role"], item["storage_key"], item["dtype"])
    sha256, kind_of_tensor, file_name = item["sha256"], item["kind"], item["file_name"]
    return (
        all(texts)
        and {*map(type, texts), type(sha256), type(kind_of_tensor), type(file_name)} == {str}
        and kind_of_tensor in TENSOR_KINDS
        and is_safe_name(file_name)
        and _is_sizes(item["shape"])
        and _is_sizes(item["stride"])
        and len(item["stride"]) == len(item["shape"])
        and type(item["nbytes"]) is int
        and item["nbytes"] >= 0
        and SHA256_HEX.fullmatch(sha256) is not None
    )


def _is_sizes(value: object) -> bool:
    """A list of integers >= 0; True is no integer here."""
    return type(value) is list and (not value or ({*map(type, value)} == {int} and min(value) >= 0))


def _explain_tensor(item: object, where: str, problems: Problems) -> None:
    fields = section(item, where, _TENSOR, problems)
    if fields is None:
        return
    for name in ("name", "role", "storage_key", "dtype"):
        text(fields, name, where, problems)
    if fields["kind"] not in ("parameter", "buffer"):
        problems.add("bad-value", f"{where}.kind is {kind(fields['kind'])}", expected=sorted(TENSOR_KINDS))
    _judge_name(text(fields, "file_name", where, problems), where, problems)
    for name in ("shape", "stride"):
        if not _is_sizes(fields[name]):
            problems.add("bad-value", f"{where}.{name} must be a list of integers of at least 0")
    shape, stride = fields["shape"], fields["stride"]
    if isinstance(shape, list) and isinstance(stride, list) and len(shape) != len(stride):
        problems.add("bad-value", f"{where}.stride must be as long as its shape")
    integer(fields, "nbytes", where, problems)
    digest(fields, "sha256", where, problems)


def _judge_placement(tensors: Sequence[TensorEntry], files: Sequence[FileEntry], problems: Problems) -> None:
    """Every tensor lies in a declared file, and no two under one key of the same file."""
    declared = {entry.file_name for entry in files}
    places = {(entry.file_name, entry.storage_key) for entry in tensors}
    if len(places) == len(tensors) and {file_name for file_name, _ in places} <= declared:
        return
    taken: set[tuple[str, str]] = set()
    for index, entry in enumerate(tensors):
        if entry.file_name not in declared:
            problems.add("bad-value", f"tensors[{index}] lies in the undeclared file {entry.file_name!r}")
        place = (entry.file_name, entry.storage_key)
        if place in taken:
            problems.add("bad-value", f"tensors[{index}] shares its storage key with another")
        taken.add(place)
        if _too_many(problems, index):
            return


def _judge_name(name: str, where: str, problems: Problems) -> None:
    if name and not is_safe_name(name):
        problems.add("bad-value", f"{where}.file_name must be one path component, not {kind(name)}")


def _judge_order(names: Sequence[str], where: str, problems: Problems) -> None:
    """Sorted by code point, which is how Python compares text, and each name once."""
    for left, right in itertools.pairwise(names):
        if left == right:
            problems.add("bad-value", f"{where} lists {kind(left)} twice")
            return
        if left > right:
            problems.add("bad-value", f"{where} is not sorted: {kind(right)} comes after {kind(left)}")
            return


def _listed(value: object, name: str, problems: Problems) -> list[object]:
    if isinstance(value, list) and value:
        return value
    problems.add("bad-value", f"{name} must be a non-empty list", actual=kind(value))
    return []


def _too_many(problems: Problems, index: int) -> bool:
    if len(problems.found) < _ENOUGH:
        return False
    problems.add("bad-value", f"the entries after number {index} were not looked at")
    return True
