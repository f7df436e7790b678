"""The registry the case modules fill, and what several of them need."""

from __future__ import annotations

import os
from pathlib import Path

import hw_artifact
from hw_engine import Registry

registry = Registry()
case = registry.case

INVALID_CORRUPT = {
    "status": "invalid",
    "stage": "validation",
    "code": "manifest_corrupt",
    "retryable": False,
}
INVALID_CHECKSUM = {**INVALID_CORRUPT, "code": "checksum_mismatch"}


def tensor(manifest: dict, name: str) -> dict:
    return next(entry for entry in manifest["tensors"] if entry["name"] == name)


def refresh_content(manifest: dict) -> None:
    manifest["artifact_content_sha256"] = hw_artifact.content_digest(manifest["tensors"])


def flip(path: Path, offset: int, mask: int = 0x01) -> None:
    """Change one byte in place, keeping size, inode and mode."""
    mode = path.stat().st_mode & 0o7777
    path.chmod(0o600)
    with path.open("r+b") as handle:
        handle.seek(offset, os.SEEK_END if offset < 0 else os.SEEK_SET)
        position = handle.tell()
        byte = handle.read(1)[0]
        handle.seek(position)
        handle.write(bytes([byte ^ mask]))
    path.chmod(mode)
