"""What is wrong with a page at a glance: its two files beside the locator, by their stat and their sizes.

For looking at and not for judging, which is ``checks``: of the receipt only the size that it gives the
artifact is read, and of the artifact nothing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from hwctl.errors import from_os_error
from hwctl.stores.pageweights import layout
from hwctl.stores.pageweights.place import Place, look_at_document
from hwctl.stores.pageweights.records import parse_json


def fault(place: Place, prefix: str, key: str) -> str | None:
    """Why a page whose files are all there is none after all, as far as it shows. None proves nothing.

    What has vanished since it was listed is no fault. Raises IoFailed for what cannot be looked at.
    """
    receipt, artifact = layout.pair_of(prefix, key)
    looked = look_at_document(place, receipt)
    if looked.absent:
        return None
    if looked.findings:
        return f"{looked.findings[0].code}: its receipt {looked.findings[0].message}"
    try:
        st = os.stat(artifact, dir_fd=place.dir_fd, follow_symlinks=False)
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise from_os_error(exc, f"cannot look at {artifact}", artifact) from exc
    findings = layout.judge_file(st, place.uid, artifact)
    if findings:
        return f"{findings[0].code}: its artifact {findings[0].message}"
    try:
        wanted = _size_in(looked.data or b"")
    except (ValueError, RecursionError):
        return "malformed-record: its receipt is no JSON"
    if wanted != st.st_size:
        return f"artifact-hash: its artifact is {st.st_size} bytes, the receipt says {wanted}"
    return None


def _size_in(receipt: bytes) -> object:
    record = parse_json(receipt)
    artifact = record.get("artifact") if isinstance(record, Mapping) else None
    return artifact.get("bytes") if isinstance(artifact, Mapping) else None
