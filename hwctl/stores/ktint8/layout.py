"""Names of the kt-int8 trees: which root, folder and file stands for what, spelled in exactly one way.

Owns the grammar and nothing else: no I/O, no judgement of modes, sizes or content. The shape of the
matrices and what their bytes mean is ``weights.amx``. Everything here is exact on purpose: in a shared
``/dev/shm`` a pattern that is a little too wide deletes a stranger's tree (REC-07), and kt-kernel's C++
loader builds the file names itself, so that another spelling of the same number is a missing file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from hwctl.errors import Usage
from hwctl.weights.amx import ROW_BLOCK, Geometry, Kind, Projection

ROOT_PREFIX = "kt-int8-"
STAGING_SUFFIX = ".staging"
PARTIAL_SUFFIX = ".partial"
EPHEMERAL_MANIFEST = "kt-ephemeral-manifest.json"
PERSISTENT_MANIFEST = "kt-weight-manifest.json"
MANIFESTS = (EPHEMERAL_MANIFEST, PERSISTENT_MANIFEST)
LEASE = "kt-ephemeral-staging-lease.json"
QUARANTINE = ".hwctl-quarantine"

INDEX_LIMIT = 2**31
"""Layer, part and expert numbers and all counts lie below it."""

_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{5,127}")
_NUMBER = r"(0|[1-9][0-9]{0,9})"
_LAYER = re.compile(rf"_layer_{_NUMBER}")
_PART = re.compile(rf"_numa_{_NUMBER}")
_FILE = re.compile(rf"INT8_(gate|up|down)_{_NUMBER}_([1-9][0-9]{{0,18}})Byte_(quant|scale)_\.kt")
_TEMPORARY = re.compile(
    rf"\.(?:{re.escape(EPHEMERAL_MANIFEST)}|{re.escape(PERSISTENT_MANIFEST)}|{re.escape(LEASE)})"
    r"\.([1-9][0-9]{0,9})\.([0-9a-f]{32}\.)?tmp"
)
_QUARANTINED = re.compile(r"(.+)\.([0-9a-f]{32})", re.DOTALL)


@dataclass(frozen=True, slots=True)
class RootName:
    """What the name of an ephemeral root says."""

    run_id: str
    staging: bool


@dataclass(frozen=True, slots=True)
class FileName:
    """What the name of a ``.kt`` file says; ``size`` is the size in bytes it promises."""

    projection: Projection
    expert: int
    kind: Kind
    size: int


@dataclass(frozen=True, slots=True)
class PartFile:
    """One file that every part folder of a tree holds: its name, its size, and which matrix it is of."""

    name: str
    size: int
    projection: Projection
    expert: int
    kind: Kind


def shape_fault(geometry: Geometry) -> str | None:
    """Why the kernels cannot hold matrices of this shape, None if they can.

    ``amx.require_shape`` says more, which part counts would do, and takes as long as it takes to list them;
    a document's numbers may be anything.
    """
    if geometry.hidden % ROW_BLOCK:
        return f"hidden_size {geometry.hidden} is not a multiple of {ROW_BLOCK}"
    if geometry.intermediate % geometry.parts or geometry.part_intermediate % ROW_BLOCK:
        return (
            f"intermediate_size {geometry.intermediate} cannot be cut into {geometry.parts} parts"
            f" that are multiples of {ROW_BLOCK}"
        )
    return None


def is_run_id(text: str) -> bool:
    """Whether a text may name a run. One ending in ``.staging`` may not: the ready root of ``x.staging``
    would be the staging root of ``x``."""
    return _RUN_ID.fullmatch(text) is not None and not text.endswith(STAGING_SUFFIX)


def require_run_id(text: str) -> str:
    """The text itself, or Usage saying what a run id looks like."""
    if not is_run_id(text):
        raise Usage(
            f"{text!r} is no run id: 6 to 128 letters, digits, '.', '_' or '-', the first a letter or digit,"
            f" not ending in {STAGING_SUFFIX!r}"
        )
    return text


def ready_name(run_id: str) -> str:
    return f"{ROOT_PREFIX}{run_id}"


def staging_name(run_id: str) -> str:
    return f"{ROOT_PREFIX}{run_id}{STAGING_SUFFIX}"


def parse_root_name(name: str) -> RootName | None:
    """What an ephemeral root's name says, None for every other name."""
    if not name.startswith(ROOT_PREFIX):
        return None
    run_id = name[len(ROOT_PREFIX) :]
    staging = run_id.endswith(STAGING_SUFFIX)
    if staging:
        run_id = run_id[: -len(STAGING_SUFFIX)]
    return RootName(run_id, staging) if is_run_id(run_id) else None


def parse_quarantine_name(name: str) -> str | None:
    """The root name that a quarantine entry was made from, None if the name is none of ours."""
    match = _QUARANTINED.fullmatch(name)
    return match[1] if match else None


def temporary_pid(name: str) -> int | None:
    """The pid in the name of a document's temporary, upstream's spelling or ours; None for other names."""
    match = _TEMPORARY.fullmatch(name)
    return int(match[1]) if match else None


def is_own_temporary(name: str) -> bool:
    """Whether hwctl made this temporary. It writes them under the lock on the root only, so that whoever
    holds that lock may take every one of them for the leftover of a process that was killed."""
    match = _TEMPORARY.fullmatch(name)
    return match is not None and match[2] is not None


def layer_dir(layer: int) -> str:
    return f"_layer_{layer}"


def partial_layer_dir(layer: int) -> str:
    """Where a layer grows in a staging tree; renamed to ``layer_dir`` once whole, so that nobody can take
    reserved files full of zeros for weights."""
    return f"_layer_{layer}{PARTIAL_SUFFIX}"


def part_dir(part: int) -> str:
    return f"_numa_{part}"


def parse_layer_dir(name: str) -> int | None:
    return _index(_LAYER, name)


def parse_partial_layer_dir(name: str) -> int | None:
    """The layer of an unfinished layer folder, None for every other name."""
    return _index(_LAYER, name[: -len(PARTIAL_SUFFIX)]) if name.endswith(PARTIAL_SUFFIX) else None


def parse_part_dir(name: str) -> int | None:
    return _index(_PART, name)


def _index(pattern: re.Pattern[str], name: str) -> int | None:
    match = pattern.fullmatch(name)
    if match is None or int(match[1]) >= INDEX_LIMIT:
        return None
    return int(match[1])


def file_name(projection: Projection, expert: int, kind: Kind, size: int) -> str:
    return f"INT8_{projection}_{expert}_{size}Byte_{kind}_.kt"


def parse_file_name(name: str) -> FileName | None:
    """What a ``.kt`` file's name says, None unless it is spelled as kt-kernel's loader spells it."""
    match = _FILE.fullmatch(name)
    if match is None or int(match[2]) >= INDEX_LIMIT:
        return None
    return FileName(Projection(match[1]), int(match[2]), Kind(match[4]), int(match[3]))


@lru_cache(maxsize=8)
def part_files(geometry: Geometry) -> Mapping[str, PartFile]:
    """The files of every part folder by name, in the order expert, projection, kind.

    One table serves all layers and parts, since the names do not depend on them: this is what keeps the
    cost per file of a large tree down to its directory entry.
    """
    files = (
        PartFile(file_name(projection, expert, kind, size), size, projection, expert, kind)
        for expert in range(geometry.experts)
        for projection in Projection
        for kind in Kind
        for size in (geometry.file_bytes(projection, kind),)
    )
    return {file.name: file for file in files}


def layer_paths(geometry: Geometry, layer: int) -> Iterator[str]:
    """Every path of a layer relative to the root, part by part, in the order of ``part_files``."""
    for part in range(geometry.parts):
        folder = f"{layer_dir(layer)}/{part_dir(part)}"
        for name in part_files(geometry):
            yield f"{folder}/{name}"
