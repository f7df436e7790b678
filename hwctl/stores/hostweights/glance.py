"""What an artifact tells at a glance: its model, and whether it looks as a publisher leaves one.

For looking at and not for judging, which is ``checks``. A manifest may list 20,000 tensors, and a store hold
10,000 manifests. In the canonical form files and identity stand before the tensors, so only as much of the
beginning is read as it takes to come to their end.
"""

from __future__ import annotations

import codecs
import hashlib
import json
import os
import re
from pathlib import Path

from hwctl.fs.paths import open_regular, opened_dir, read_document
from hwctl.stores.hostweights import canonical
from hwctl.stores.hostweights.fields import Problems
from hwctl.stores.hostweights.judging import Trust, judge_ascii, judge_regular
from hwctl.stores.hostweights.layout import MANIFEST, METADATA_LIMIT, READY
from hwctl.stores.hostweights.manifest import parse_ready
from hwctl.stores.hostweights.records import INTEGRITY_MODE

_READS = (1 << 14, 1 << 18, 1 << 22)
"""Bytes to read, then to have read, then to give up at. Parsed, hostile JSON takes thirty times as much."""

_BLANK = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()


def model_of(artifact: Path) -> str | None:
    """``model_id@revision``; None where there is no manifest, or none that says so."""
    identity = member(artifact, "identity")
    return _name(identity.get("source")) if isinstance(identity, dict) else None


def looks_sound(artifact: Path, trust: Trust) -> bool:
    """Whether nothing is wrong as far as it shows without parsing a long manifest or opening a payload.

    The marker seals the manifest's very bytes, so that they are what a publisher wrote, and every file that
    the manifest declares is there, of its size, and nothing else is. Of what looks otherwise ``checks`` says
    what it is; it may turn out to be sound.
    """
    try:
        with opened_dir(artifact) as folder:
            return _is_plain(folder, artifact.name, trust)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False


def _is_plain(folder: int, key: str, trust: Trust) -> bool:
    ready = read_document(READY, dir_fd=folder, limit=METADATA_LIMIT)
    manifest = read_document(MANIFEST, dir_fd=folder, limit=METADATA_LIMIT)
    marker = parse_ready(canonical.parse(ready.data).value, problems := Problems(READY))
    if (
        marker is None
        or problems.found
        or judge_ascii(marker, None)
        or marker.integrity_mode != INTEGRITY_MODE
    ):
        return False
    head = _text(manifest.data[: _READS[-1]])
    sealed = (hashlib.sha256(manifest.data).hexdigest(), _value(head, "artifact_content_sha256"))
    if sealed != (marker.manifest_sha256, marker.artifact_content_sha256):
        return False
    files = _value(head, "files")
    if not isinstance(files, list) or _value(head, "artifact_key") != key:
        return False
    declared = {file["file_name"]: file["size"] for file in files if isinstance(file, dict)}
    if not all(isinstance(name, str) for name in declared):
        return False
    stats = {READY: ready.stat, MANIFEST: manifest.stat}
    stats |= {name: os.stat(name, dir_fd=folder, follow_symlinks=False) for name in declared}
    return (
        stats.keys() == set(os.listdir(folder))
        and all(stats[name].st_size == size for name, size in declared.items())
        and not any(judge_regular(st, name) or trust.judge(st, name) for name, st in stats.items())
    )


def member(artifact: Path, wanted: str) -> object:
    """The value of one key of an artifact's manifest, None where there is none to be had."""
    try:
        with opened_dir(artifact) as folder:
            fd, st = open_regular(MANIFEST, dir_fd=folder)
    except OSError:
        return None
    try:
        return _read_until(fd, st.st_size, wanted)
    except OSError:
        return None
    finally:
        os.close(fd)


def _read_until(fd: int, size: int, wanted: str) -> object:
    data = b""
    for limit in _READS:
        data += os.pread(fd, limit - len(data), len(data))
        try:
            value = _value(_text(data), wanted)
        except (ValueError, RecursionError):
            value = None  # damaged, or it merely does not end here
        if value is not None or len(data) < limit or len(data) >= size:
            return value
    return None


def _text(data: bytes) -> str:
    """As text, without the first bytes of a character that the end of the reading cut."""
    return codecs.getincrementaldecoder("utf-8")().decode(data)


def _value(text: str, wanted: str) -> object:
    """The value of one key of the object that a text begins with; what follows it is not looked at.

    Raises ValueError when the text ends before.
    """
    at, mark = _after(text, 0)
    if mark != "{":
        return None
    while mark in ("{", ","):
        name, at = _DECODER.raw_decode(text, _skipped(text, at))
        at, colon = _after(text, at)
        if colon != ":":
            return None
        value, at = _DECODER.raw_decode(text, _skipped(text, at))
        if name == wanted:
            return value
        at, mark = _after(text, at)
    return None


def _after(text: str, at: int) -> tuple[int, str]:
    """The next character that is no blank, and where the one behind it stands."""
    at = _skipped(text, at)
    return at + 1, text[at : at + 1]


def _skipped(text: str, at: int) -> int:
    found = _BLANK.match(text, at)
    return at if found is None else found.end()


def _name(source: object) -> str | None:
    if not isinstance(source, dict):
        return None
    model, revision = source.get("model_id"), source.get("revision")
    if not isinstance(model, str) or not model:
        return None
    return f"{model}@{revision}" if isinstance(revision, str) and revision else model
