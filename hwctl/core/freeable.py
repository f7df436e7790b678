"""What removing an entry would give back at once.

Less than it takes where a file has another name outside the entry, or is open or mapped somewhere. Owns the
sum alone: what follows from it is for the verbs.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterator

from hwctl.fs.openfiles import OpenFiles
from hwctl.fs.paths import opened_dir
from hwctl.fs.walk import Inode, allocated, inode_of, walk_stats
from hwctl.stores.base import Artifact
from hwctl.stores.pageweights.layout import pair_of, parse_name


def freeable(artifact: Artifact, open_files: OpenFiles) -> int:
    """Bytes of the blocks that go with an entry; where it cannot be looked into, all that it takes."""
    freed = 0
    names: Counter[Inode] = Counter()
    try:
        for st in _stats(artifact):
            inode = inode_of(st)
            names[inode] += 1
            if stat.S_ISDIR(st.st_mode) or (names[inode] == st.st_nlink and not open_files.holds(inode)):
                freed += allocated(st)
    except OSError:
        return artifact.allocated
    return freed


def _stats(artifact: Artifact) -> Iterator[os.stat_result]:
    with opened_dir(artifact.path.parent) as folder:
        for name in names_of(artifact):
            yield from walk_stats(folder, name)


def names_of(artifact: Artifact) -> tuple[str, ...]:
    """What an entry consists of, as names beside each other: a page is three files, everything else is one
    file or folder."""
    name, key = artifact.path.name, artifact.detail.get("cache_key")
    prefix = parse_name(name).prefix
    if prefix is None or not isinstance(key, str):
        return (name,)
    pair = pair_of(prefix, key)
    return pair if name in pair else (name, *pair)
