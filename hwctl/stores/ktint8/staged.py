"""A staging root as a reader sees it: its lease, its finished layers, and the shape they imply.

Owns inferring a tree's geometry from its names and sizes, since upstream's converter writes no manifest.
What is inferred is then judged like any other plan, so that one odd file stands out against the rest.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from hwctl.errors import Finding
from hwctl.fs.paths import opened_dir
from hwctl.stores.ktint8 import expect, layout
from hwctl.stores.ktint8.documents import read_lease
from hwctl.stores.ktint8.expect import Expectation
from hwctl.stores.ktint8.tree import Plan, list_dir
from hwctl.weights.amx import SCALE_BYTES, Geometry, Kind, Projection


def judge_lease(root_fd: int, run_id: str) -> Iterator[Finding]:
    """What is wrong with the lease of a staging root; a missing one too, since nothing speaks for it then."""
    read = read_lease(root_fd, run_id)
    if not read.present:
        yield Finding("no-lease", "the staging root has no lease")
    yield from read.findings


def plan_of(root_fd: int, expected: Expectation) -> tuple[Plan | None, list[Finding]]:
    """What the root should hold, from what is there and what was asked for; None if nothing can be told."""
    entries = list_dir(root_fd)
    layers = tuple(sorted(n for name in entries if (n := layout.parse_layer_dir(name)) is not None))
    if not layers:
        return None, [Finding("no-layers", "the staging root holds no finished layer")]
    geometry = _geometry(root_fd, layers)
    if geometry is None:
        words = "no geometry fits the names and sizes of its files"
        return None, [Finding("no-geometry", words, layout.layer_dir(layers[0]))]
    if fault := layout.shape_fault(geometry):
        return None, [Finding("shape-rule", fault)]
    plan = Plan(geometry, expected.layers or layers, documents=frozenset({layout.LEASE}))
    return plan, expect.judge(expected, geometry, layers)


def _geometry(root_fd: int, layers: tuple[int, ...]) -> Geometry | None:
    """The shape that the first layer with readable names implies."""
    for layer in layers:
        try:
            with opened_dir(layout.layer_dir(layer), dir_fd=root_fd) as layer_fd:
                inferred = _of_layer(layer_fd)
        except (FileNotFoundError, NotADirectoryError):
            continue
        if inferred is not None:
            return inferred
    return None


def _of_layer(layer_fd: int) -> Geometry | None:
    parts = sum(layout.parse_part_dir(name) is not None for name in os.listdir(layer_fd))
    with opened_dir(layout.part_dir(0), dir_fd=layer_fd) as part_fd:
        files = [
            file
            for name, st in list_dir(part_fd).items()
            if stat.S_ISREG(st.st_mode) and (file := layout.parse_file_name(name)) is not None
        ]
    return infer(files, parts)


def infer(files: list[layout.FileName], parts: int) -> Geometry | None:
    """The geometry whose file sizes these names promise, by the most frequent size of each scale file.

    None where there are more experts or parts than files: a name is no reason to look for millions.
    """
    rows = {}
    for projection in (Projection.GATE, Projection.DOWN):
        sizes = [f.size for f in files if f.projection is projection and f.kind is Kind.SCALE]
        if not sizes:
            return None
        rows[projection], rest = divmod(max(set(sizes), key=sizes.count), SCALE_BYTES)
        if rest:
            return None
    experts = max(file.expert for file in files) + 1
    if not parts > 0 or experts > len(files):
        return None
    return Geometry(
        hidden=rows[Projection.DOWN],
        intermediate=rows[Projection.GATE] * parts,
        experts=experts,
        parts=parts,
    )
