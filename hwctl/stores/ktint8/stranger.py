"""What lies in a finished tree that its manifest does not list: it stays, and the folders above it with it.

Owns looking for it before anything is deleted, so that nobody is told of a tree that it is gone while it is
not. How an entry is judged is ``tree``.
"""

from __future__ import annotations

import os

from hwctl.stores.ktint8 import layout
from hwctl.stores.ktint8.documents import ReadManifest
from hwctl.stores.ktint8.tree import Plan, judge_tree

_STAYS = frozenset({"extra-entry", "entry-type", "layer-unfinished", "leftover-temporary"})


def obstacle(root_fd: int, read: ReadManifest) -> str | None:
    """Why the tree cannot be removed whole, as a clause; None when nothing is in the way, as far as its
    manifest is sound enough to say what is its own. Raises OSError."""
    manifest = read.parsed.manifest
    if manifest is None:
        return None
    temporaries = {name for name in os.listdir(root_fd) if layout.temporary_pid(name) is not None}
    documents = frozenset(temporaries | {read.schema.document})
    plan = Plan(manifest.geometry, (), manifest.indices, documents, private=False)
    for finding in judge_tree(root_fd, plan):
        if finding.code in _STAYS:
            return f"{finding.file} {finding.message}: only what the manifest lists is removed"
    return None
