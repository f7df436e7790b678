"""Hugging Face checkpoints: one file, a folder of shards, or a snapshot of the cache.

Owns what belongs to a checkpoint and whether it is whole. Everything that is wrong is found before anybody
writes a byte, and all of it is said (PUB-08, PUB-10). The single files are opened in shards, the index is
read in checkpoint_index, the bytes of tensors in tensor_reader.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hwctl.errors import Damaged, Finding, HwctlError, NotFound, from_os_error
from hwctl.fs.paths import NotRegular, TooLarge, read_document
from hwctl.weights.checkpoint_index import (
    CONFIG_LIMIT,
    INDEX_LIMIT,
    INDEX_SUFFIX,
    judge_index,
    judge_names,
    missing_numbers,
    parse_index,
    parse_object,
    series_of,
)
from hwctl.weights.shards import Shard, follow, open_shard

WEIGHTS_SUFFIX = ".safetensors"
STANDARD_INDEX = "model.safetensors.index.json"
LOCAL_REVISION = "local"
BLOBS = "blobs"
"""The folder of a repository in the cache that its snapshots link into."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint that is whole: every shard is there with a sound header, every tensor in one place.

    ``weight_map`` says in which shard (by name) each tensor lies. ``model_id`` and ``revision`` come from a
    snapshot's path, else they are the folder's name and ``local``. ``config`` is config.json, None without
    one. ``unused`` names weight files in the folder that the index leaves out. ``part_of`` is 1, or how many
    shards there are where one was named by itself: half a model looks whole to its loader (PUB-10).
    """

    path: Path
    shards: tuple[Shard, ...]
    weight_map: Mapping[str, str]
    model_id: str
    revision: str
    config: Mapping[str, object] | None
    unused: tuple[str, ...] = ()
    part_of: int = 1


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a checkpoint lies: the folder, the weight files in it that are meant, the index to go by."""

    folder: Path
    names: tuple[str, ...]
    index: str | None = None
    one_file: bool = False


def open_checkpoint(path: Path) -> Checkpoint:
    """Read everything about the checkpoint at ``path`` but its tensors.

    Raises NotFound when nothing is there, Damaged with every finding when it is not whole, IoFailed when it
    cannot be found out.
    """
    try:
        place = _locate(path)
        weight_map = None if place.index is None else _read_index(path, place.folder, place.index)
        config = _read_config(place.folder)
    except OSError as exc:
        raise from_os_error(exc, "cannot read the checkpoint", path) from exc
    wanted = place.names if weight_map is None else tuple(sorted(set(weight_map.values())))
    shards, findings = _open_shards(place.folder, wanted)
    absent: Sequence[str] = ()
    if weight_map is None or place.index is None:
        absent = () if place.one_file else missing_numbers(wanted)
        findings += _absent(absent) + judge_names(shards)
        weight_map = {tensor: shard.name for shard in shards for tensor in shard.header.by_name}
    else:
        findings += judge_index(weight_map, shards, place.index)
    if isinstance(config, Finding):
        findings.append(config)
        config = None
    if not findings and not weight_map:
        findings.append(Finding("no-weights", f"no tensor in {', '.join(wanted)}"))
    if findings:
        raise _damaged(path, findings, len(wanted) + len(absent))
    model_id, revision = _names_of(place.folder)
    unused = tuple(sorted(set(place.names) - set(wanted)))
    part_of = series_of(path.name) if place.one_file else 1
    return Checkpoint(path, tuple(shards), weight_map, model_id, revision, config, unused, part_of)


def is_checkpoint(path: Path) -> bool:
    """Whether a path looks like one, by names alone."""
    if path.name.endswith((WEIGHTS_SUFFIX, INDEX_SUFFIX)):
        return path.exists()
    try:
        names = os.listdir(path)
    except OSError:
        return False
    return "config.json" in names or any(name.endswith((WEIGHTS_SUFFIX, INDEX_SUFFIX)) for name in names)


def _open_shards(folder: Path, names: Sequence[str]) -> tuple[list[Shard], list[Finding]]:
    shards: list[Shard] = []
    findings: list[Finding] = []
    for name in names:
        opened = open_shard(folder, name)
        if isinstance(opened, Shard):
            shards.append(opened)
        else:
            findings += opened
    return shards, findings


def _absent(names: Sequence[str]) -> list[Finding]:
    return [Finding("missing-shard", f"{name} is missing", name) for name in names]


def _locate(path: Path) -> _Place:
    chain = follow(Path(os.path.abspath(path)))
    if isinstance(chain, Finding):
        if chain.code == "missing-shard":
            raise NotFound(_nothing_at(path), path=path)
        raise _damaged(path, (chain,))
    if chain[-1].is_dir():
        return _locate_in(path, Path(os.path.realpath(chain[-1])))
    # The folder is that of the name, not of the blob behind it: the snapshot's path names the model.
    folder = Path(os.path.realpath(chain[0].parent))
    if path.name.endswith(INDEX_SUFFIX):
        return _Place(folder, _weight_files(os.listdir(folder)), path.name)
    return _Place(folder, (path.name,), one_file=True)


def _nothing_at(path: Path) -> str:
    """Where not even the parent is there, the words may be a name on the Hugging Face Hub: ``org/name``."""
    hint = "" if path.parent.exists() else "; hwctl downloads nothing, so name a local folder"
    return f"there is no such file or folder{hint}"


def _locate_in(path: Path, folder: Path) -> _Place:
    if path.name.endswith(WEIGHTS_SUFFIX):
        raise _damaged(path, (Finding("not-a-file", f"{path.name} is a directory, not a file", path.name),))
    entries = sorted(name for name in os.listdir(folder) if not name.startswith("."))
    names = _weight_files(entries)
    indexes = [name for name in entries if name.endswith(INDEX_SUFFIX)]
    if STANDARD_INDEX in indexes:
        return _Place(folder, names, STANDARD_INDEX)
    if len(indexes) > 1:
        raise _damaged(path, (Finding("index-ambiguous", f"several indexes: {', '.join(indexes)}"),))
    if indexes or names:
        return _Place(folder, names, indexes[0] if indexes else None)
    raise _no_weights(path, entries)


def _weight_files(entries: Iterable[str]) -> tuple[str, ...]:
    return tuple(
        sorted(name for name in entries if name.endswith(WEIGHTS_SUFFIX) and not name.startswith("."))
    )


def _no_weights(path: Path, entries: Sequence[str]) -> HwctlError:
    if "snapshots" in entries:
        return NotFound("a cache repository; name one of the folders in its snapshots", path=path)
    others = [name for name in entries if name.endswith((".bin", ".pt", ".pth", ".gguf", ".ckpt"))]
    message = f"no {WEIGHTS_SUFFIX} file in the folder"
    if others:
        message += f"; {', '.join(others[:5])} would have to be converted first"
    return _damaged(path, (Finding("no-weights", message),))


def _read_index(path: Path, folder: Path, index: str) -> Mapping[str, str]:
    data = _read_small(folder, index, INDEX_LIMIT)
    parsed = (data,) if isinstance(data, Finding) else parse_index(data, index)
    if not isinstance(parsed, Mapping):
        raise _damaged(path, parsed)
    return parsed


def _read_config(folder: Path) -> Mapping[str, object] | Finding | None:
    data = _read_small(folder, "config.json", CONFIG_LIMIT)
    if isinstance(data, Finding):
        return None if data.code == "missing-shard" else data
    return parse_object(data, "config.json", "config-malformed")


def _read_small(folder: Path, name: str, limit: int) -> bytes | Finding:
    chain = follow(folder / name)
    if isinstance(chain, Finding):
        return chain
    try:
        return read_document(chain[-1], limit=limit).data
    except NotRegular as exc:
        return Finding("not-a-file", f"{name} is a {exc.kind}, not a file", name, actual=exc.kind)
    except TooLarge as exc:
        return Finding("document-too-large", f"{name} {exc.strerror}", name, expected=limit, actual=exc.size)


def _names_of(folder: Path) -> tuple[str, str]:
    """(model id, revision): ``models--org--name/snapshots/<commit>`` says both, and so do the folders in it,
    one for each component of a pipeline."""
    for commit in (folder, *folder.parents):
        repository = commit.parent.parent.name
        if commit.parent.name == "snapshots" and repository.startswith("models--"):
            return repository.removeprefix("models--").replace("--", "/"), commit.name
    return folder.name or "checkpoint", LOCAL_REVISION


def _damaged(path: Path, findings: Sequence[Finding], wanted: int = 0) -> Damaged:
    """One line that lists every missing shard and dangling link, whatever else there is to say."""
    clauses: list[str] = []
    missing = [finding.file or "" for finding in findings if finding.code == "missing-shard"]
    if missing:
        of = f" of {wanted} shards" if wanted else " shards"
        clauses.append(f"{len(missing)}{of} missing: {', '.join(missing)}")
    dangling = [
        f"{finding.file} -> {finding.actual}" for finding in findings if finding.code == "dangling-link"
    ]
    if dangling:
        noun = "link" if len(dangling) == 1 else "links"
        clauses.append(f"{len(dangling)} dangling {noun}: {', '.join(dangling)}")
    others = [finding for finding in findings if finding.code not in ("missing-shard", "dangling-link")]
    if others:
        more = f" (and {len(others) - 1} more findings)" if len(others) > 1 else ""
        where = others[0].file
        said = (
            others[0].message
            if where is None or where in others[0].message
            else f"{where}: {others[0].message}"
        )
        clauses.append(said + more)
    return Damaged("; ".join(clauses), findings, path=path)
