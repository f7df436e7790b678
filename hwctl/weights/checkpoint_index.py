"""The index of a sharded checkpoint: which tensor lies in which file.

Pure: bytes in, a map or findings out. Holding the map against the shards themselves is done here too, both
ways: a tensor the index promises and no shard holds loads as rubbish elsewhere, silently (PUB-10).
"""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from hwctl.errors import Finding
from hwctl.weights.shards import Shard
from hwctl.weights.sniff import sniff
from hwctl.weights.tensor_layout import quoted

INDEX_SUFFIX = ".safetensors.index.json"
INDEX_LIMIT = 128 << 20
CONFIG_LIMIT = 16 << 20

_SHOWN = 20
_LONGEST_NAME = 255
_NUMBERED = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.safetensors")


class _Repeated(ValueError):
    """A key that stands twice."""


def parse_index(data: bytes, name: str) -> Mapping[str, str] | tuple[Finding, ...]:
    """Tensor -> shard name, or what is wrong with the index called ``name``."""
    document = parse_object(data, name, "index-malformed")
    if isinstance(document, Finding):
        return (document,)
    weight_map = document.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        return (Finding("index-malformed", f"{name}: weight_map is no object with entries", name),)
    bad = [key for key, value in weight_map.items() if not _is_plain_name(value)]
    if bad:
        message = f"{name}: {_named(bad, 'tensors')} not mapped to the plain name of a file"
        return (Finding("index-malformed", message, name, actual=bad[:_SHOWN]),)
    return weight_map


def parse_object(data: bytes, name: str, code: str) -> dict[str, object] | Finding:
    """A JSON object from a file of a checkpoint, or a finding of this code. NaN is let through: Python
    writes such files."""
    try:
        value = json.loads(data, object_pairs_hook=_once)
    except _Repeated as exc:
        return Finding(code, f"{name}: the key {quoted(str(exc))} stands twice", name)
    except RecursionError:
        return Finding(code, f"{name}: nested too deeply", name)
    except ValueError as exc:
        known = sniff(data[:4096], len(data))
        if known is not None and known.code not in ("json-page", "text-file"):
            return Finding(
                known.code, f"{name}: {known.message.replace('not safetensors', 'not JSON')}", name
            )
        return Finding(code, f"{name}: not JSON ({exc})", name)
    if not isinstance(value, dict):
        return Finding(code, f"{name}: not a JSON object", name)
    return value


def judge_index(weight_map: Mapping[str, str], shards: Sequence[Shard], index: str) -> list[Finding]:
    """The index held against the shards that could be read: what either has and the other has not."""
    promised: dict[str, list[str]] = defaultdict(list)
    for tensor, shard_name in weight_map.items():
        promised[shard_name].append(tensor)
    findings: list[Finding] = []
    for shard in shards:
        held = shard.header.by_name
        lacking = [tensor for tensor in promised[shard.name] if tensor not in held]
        if lacking:
            message = f"{shard.name} lacks {_named(lacking, 'tensors')} that {index} places there"
            findings.append(
                Finding("index-tensor-missing", message, shard.name, actual=sorted(lacking)[:_SHOWN])
            )
        unlisted = [tensor for tensor in held if weight_map.get(tensor) != shard.name]
        if unlisted:
            message = f"{shard.name} holds {_named(unlisted, 'tensors')} that {index} does not place there"
            findings.append(
                Finding("index-tensor-unlisted", message, shard.name, actual=sorted(unlisted)[:_SHOWN])
            )
    return findings


def judge_names(shards: Sequence[Shard]) -> list[Finding]:
    """Without an index: a name in two files, of which a loader would take either."""
    place: dict[str, str] = {}
    twice: dict[tuple[str, str], list[str]] = defaultdict(list)
    for shard in shards:
        for tensor in shard.header.by_name:
            other = place.setdefault(tensor, shard.name)
            if other != shard.name:
                twice[other, shard.name].append(tensor)
    return [
        Finding(
            "tensor-in-two-shards",
            f"{first} and {second} both hold {_named(tensors, 'tensors')}",
            second,
            actual=sorted(tensors)[:_SHOWN],
        )
        for (first, second), tensors in twice.items()
    ]


def missing_numbers(names: Iterable[str]) -> list[str]:
    """The files that ``model-00001-of-00003`` promises and that are not among ``names``."""
    present = set(names)
    series = {
        (match["stem"], match["count"])
        for name in present
        if (match := _NUMBERED.fullmatch(name)) is not None
    }
    return [
        wanted
        for stem, count in sorted(series)
        for number in range(1, int(count) + 1)
        if (wanted := f"{stem}-{number:05d}-of-{count}.safetensors") not in present
    ]


def series_of(name: str) -> int:
    """Of how many files a name like ``model-00001-of-00003.safetensors`` is one; 1 for any other."""
    match = _NUMBERED.fullmatch(name)
    return 1 if match is None else int(match["count"])


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    out = dict(pairs)
    if len(out) < len(pairs):
        seen: set[str] = set()
        for key, _value in pairs:
            if key in seen:
                raise _Repeated(key)
            seen.add(key)
    return out


def _is_plain_name(value: object) -> bool:
    """One path component: an index from a download must not lead out of its folder."""
    if not isinstance(value, str) or value in ("", ".", "..") or "/" in value or "\0" in value:
        return False
    try:
        return len(os.fsencode(value)) <= _LONGEST_NAME
    except UnicodeEncodeError:
        return False


def _named(names: Sequence[str], what: str) -> str:
    """``3 tensors ('a', 'b', 'c')``, cut after a few."""
    shown = ", ".join(quoted(name) for name in sorted(names)[:_SHOWN])
    more = ", …" if len(names) > _SHOWN else ""
    return f"{len(names)} {what if len(names) != 1 else what[:-1]} ({shown}{more})"
