"""SHA-256 of a checkpoint's weight files, computed from the bytes and held against what their names promise.

The first of a publication's two passes over its sources: the key of a derived identity needs the digests
before the first byte is written. That the second pass reads the same files is checked by tensor_reader.
"""

from __future__ import annotations

import os

from hwctl.errors import Damaged, Finding, from_os_error
from hwctl.fs.digest import ShortRead, sha256_files
from hwctl.fs.paths import identity
from hwctl.stores.base import Advance, silent
from hwctl.stores.hostweights.derived import SourceFile
from hwctl.weights.checkpoint import Checkpoint
from hwctl.weights.shards import Shard
from hwctl.weights.tensor_reader import changed, open_unchanged


def digest_sources(checkpoint: Checkpoint, *, jobs: int, advance: Advance = silent) -> tuple[SourceFile, ...]:
    """Name, size and digest of every shard, in the checkpoint's order.

    Raises Damaged when a file is not what the name of its blob says, Refused when one changed since its
    header was read.
    """
    files: list[SourceFile] = []
    findings: list[Finding] = []
    hashed = sha256_files(
        checkpoint.shards,
        _opened,
        workers=jobs,
        size_of=lambda shard: shard.size,
        advance=advance,
    )
    for shard, digest in hashed:
        if isinstance(digest, ShortRead):
            raise changed(shard)
        if isinstance(digest, OSError):
            raise from_os_error(digest, f"cannot read {shard.name}", shard.path) from digest
        _require_unchanged(shard)
        files.append(SourceFile(shard.name, shard.size, digest))
        if shard.blob_digest is not None and shard.blob_digest != digest:
            findings.append(_broken_promise(shard, shard.blob_digest, digest))
    if findings:
        raise Damaged("; ".join(finding.message for finding in findings), findings, path=checkpoint.path)
    return tuple(files)


def _opened(shard: Shard) -> tuple[int, int]:
    return open_unchanged(shard), shard.size


def _require_unchanged(shard: Shard) -> None:
    try:
        now = os.stat(shard.path)
    except OSError:
        raise changed(shard) from None
    if identity(now) != shard.identity:
        raise changed(shard)


def _broken_promise(shard: Shard, promised: str, digest: str) -> Finding:
    message = f"{shard.name} has the digest {digest}, its blob is named {promised}: the download is damaged"
    return Finding("blob-digest", message, shard.name, expected=promised, actual=digest)
