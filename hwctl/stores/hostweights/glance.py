"""What a manifest tells at a glance: the model, and whether a payload file is of another size than declared.

For looking at and not for judging, which is ``checks``. A manifest may list 20,000 tensors, and a store hold
10,000 manifests. In the canonical form files and identity stand before the tensors, so only as much of the
beginning is read as it takes to come to their end.
"""

from __future__ import annotations

import codecs
import json
import os
import re
from pathlib import Path

from hwctl.fs.paths import open_regular, opened_dir
from hwctl.stores.hostweights.layout import MANIFEST, READY, is_safe_name

_READS = (1 << 14, 1 << 18, 1 << 22)
"""Bytes to read, then to have read, then to give up at. Parsed, hostile JSON takes thirty times as much."""

_BLANK = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()


def model_of(artifact: Path) -> str | None:
    """``model_id@revision``; None where there is no manifest, or none that says so."""
    identity = _member(artifact, "identity")
    return _name(identity.get("source")) if isinstance(identity, dict) else None


def fault_of(artifact: Path) -> str | None:
    """What a stat of the payload files shows to be wrong; None also where the manifest does not tell."""
    files = _member(artifact, "files")
    for file in files if isinstance(files, list) else ():
        name, size = (file.get("file_name"), file.get("size")) if isinstance(file, dict) else (None, None)
        if not isinstance(name, str) or not is_safe_name(name) or type(size) is not int:
            return None
        try:
            there = os.lstat(artifact / name).st_size
        except FileNotFoundError:
            # Unless the whole artifact was moved away just now.
            return f"{name} is missing" if os.path.lexists(artifact / READY) else None
        except (OSError, ValueError):
            return None
        if there != size:
            return f"{name} has {there} bytes, declared are {size}"
    return None


def _member(artifact: Path, wanted: str) -> object:
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
