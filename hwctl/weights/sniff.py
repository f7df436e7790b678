"""What a file that is no safetensors container really is (VER-01).

Pure: looks at the first and last bytes only. People meet pointers of Git LFS, login pages and pickles under
the name ``model.safetensors`` far more often than damage, and have to be told them apart.
"""

from __future__ import annotations

import codecs
import re

from hwctl.errors import Finding

HEAD_BYTES = 4096
TAIL_BYTES = 4096

_LFS = re.compile(
    rb"\Aversion https://git-lfs\.github\.com/spec/v1\n"
    rb"(?:.*\n)*?oid (sha256:[0-9a-f]{64})\n(?:.*\n)*?size ([0-9]{1,20})"
)
_TEXT_BYTES = 256
_TEXT_SHOWN = 30
_LFS_START = b"version https://git-lfs.github.com/spec/"
_MAGIC = (
    (b"GGUF", "gguf-file", "a GGUF file"),
    (b"PK\x05\x06", "zip-file", "an empty ZIP archive"),
    (b"\x1f\x8b", "gzip-file", "a gzip file"),
    (b"\x28\xb5\x2f\xfd", "zstd-file", "a Zstandard file"),
    (b"\x89HDF\r\n\x1a\n", "hdf5-file", "an HDF5 file"),
    (b"\x93NUMPY", "npy-file", "a NumPy array file"),
)


def sniff(head: bytes, file_size: int, *, tail: bytes = b"") -> Finding | None:
    """Name the file that begins with ``head`` and ends with ``tail``, or None when it is nothing known.

    Only to be asked about a file whose header cannot be read: no sound header begins like any of these.
    """
    if file_size == 0:
        return Finding("file-empty", "the file is empty", expected="a safetensors file", actual=0)
    return (
        _pointer(head)
        or _by_magic(head)
        or _pickle(head)
        or _page(head)
        or _plain_text(head)
        or _zeros(head, tail, file_size)
    )


def _pointer(head: bytes) -> Finding | None:
    if not head.startswith(_LFS_START):
        return None
    match = _LFS.match(head)
    if match is None:
        return Finding(
            "lfs-pointer", "a Git LFS pointer, not the file it stands for (oid and size unreadable)"
        )
    oid, size = match[1].decode(), int(match[2])
    return Finding(
        "lfs-pointer",
        f"a Git LFS pointer, not the file it stands for (oid {oid}, size {size}): fetch it with git lfs pull",
        expected=size,
        actual={"oid": oid, "size": size},
    )


def _by_magic(head: bytes) -> Finding | None:
    for magic, code, name in _MAGIC:
        if head.startswith(magic):
            return Finding(code, f"{name}, not safetensors")
    if head.startswith(b"PK\x03\x04"):
        if b"data.pkl" in head[:256] or b"/version" in head[:256] or b"byteorder" in head[:256]:
            return Finding("pickle-file", "a PyTorch checkpoint (pickle in a ZIP archive), not safetensors")
        return Finding("zip-file", "a ZIP archive, not safetensors")
    return None


def _pickle(head: bytes) -> Finding | None:
    """Protocol 2 to 5; the opcode that must follow the protocol keeps a random byte 0x80 out."""
    if len(head) > 2 and head[0] == 0x80 and 2 <= head[1] <= 5 and head[2:3] in b"\x8a\x95}](cq\x8c\x80XK":
        return Finding("pickle-file", "a Python pickle, not safetensors")
    return None


def _page(head: bytes) -> Finding | None:
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    if text.startswith((b"<!doctype html", b"<html", b"<head", b"<body")):
        return Finding("html-page", "an HTML page, such as a login or error page, not safetensors")
    if text.startswith((b"<?xml", b"<error")):
        if b"<html" in text:
            return Finding("html-page", "an HTML page, such as a login or error page, not safetensors")
        return Finding("xml-page", "an XML document, such as an object store's error answer, not safetensors")
    if text.startswith((b'{"', b"{\n", b"{ ", b"{\r", b"[{", b"[\n", b'["')) or text in (b"{}", b"[]"):
        return Finding("json-page", "a JSON document, such as an error answer, not safetensors")
    return None


def _plain_text(head: bytes) -> Finding | None:
    """No header begins so: eight characters read as its length are more than 10^17 bytes."""
    try:
        # Incremental, since a character may be cut at the end of what is looked at.
        start = codecs.getincrementaldecoder("utf-8")().decode(head[:_TEXT_BYTES]).strip()
    except UnicodeDecodeError:
        return None
    if len(head) < 8 or not start or not all(char.isprintable() or char in "\n\r\t" for char in start):
        return None
    line = start.splitlines()[0]
    return Finding("text-file", f"a text file, not safetensors (it begins with {line[:_TEXT_SHOWN]!r})")


def _zeros(head: bytes, tail: bytes, file_size: int) -> Finding | None:
    if not head or any(head) or any(tail):
        return None
    if len(head) >= file_size:
        return Finding("all-zeros", f"all {file_size} bytes are zero")
    return Finding(
        "all-zeros", f"the file of {file_size} bytes begins and ends with zeros: its data was never written"
    )
