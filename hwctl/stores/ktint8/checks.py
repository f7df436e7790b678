"""Is this tree sound? The three levels of verify for staging, ready, half-consumed and persistent trees.

Owns the levels: root and documents, then the exact tree, then every byte. Each rule lives with its subject
(``finished``, ``tree``, ``content``). The lock on the root is held shared meanwhile; nothing is written.
Damage is in the report, exceptions mean that it could not be found out.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from hwctl.errors import Finding, IoFailed, NotFound, from_os_error
from hwctl.fs.lock_table import Mode
from hwctl.fs.pace import Pacer
from hwctl.stores.base import Artifact, CheckOptions, Content, Level, Report
from hwctl.stores.ktint8 import content, layout, roots, staged
from hwctl.stores.ktint8.expect import Expectation
from hwctl.stores.ktint8.finished import judge_documents, plan_of, require_known_schema
from hwctl.stores.ktint8.manifest import Manifest
from hwctl.stores.ktint8.root_lock import open_root
from hwctl.stores.ktint8.roots import Kind, Root
from hwctl.stores.ktint8.tree import Plan, judge_root, judge_tree
from hwctl.weights.torch_here import torch_loads


def check(artifact: Artifact, level: Level, options: CheckOptions) -> Report:
    """Judge one entry of a base under its shared lock; Busy while a producer or consumer has it."""
    root = _place(artifact.path)
    path = artifact.path
    aside = root.kind is Kind.QUARANTINED
    if aside:
        path, root = _inside(path)
    try:
        opened = open_root(path, Mode.SHARED, options.wait)
    except IoFailed as exc:
        if exc.details.get("errno") not in ("ELOOP", "ENOTDIR"):
            raise
        words = "the root is no directory, or a symbolic link to one"
        return Report(artifact, level, (Finding("root-type", words),))
    with opened:
        try:
            judged = _Check(opened.fd, root, level, options)
            findings = list(judged.findings())
        except OSError as exc:
            raise from_os_error(exc, "cannot check it", path) from exc
    if aside and not options.restoring:
        findings.insert(
            0, Finding("quarantined", f"is in quarantine: {artifact.reason or 'no reason noted'}")
        )
    return Report(artifact, level, tuple(findings), judged.checked_bytes, judged.content)


def _place(path: Path) -> Root:
    found = roots.locate(path)
    if found is None or found[1] is None:
        raise NotFound("is no kt-int8 tree", path=path)
    return found[1]


def _inside(entry: Path) -> tuple[Path, Root]:
    """The tree in a quarantine entry, and what it is once it stands in its base again."""
    name = layout.parse_quarantine_name(entry.name) or entry.name
    root = roots.find(entry, name)
    if root is None:
        raise NotFound("holds no tree", path=entry)
    return entry / name, root


class _Check:
    def __init__(self, root_fd: int, root: Root, level: Level, options: CheckOptions) -> None:
        self._root_fd = root_fd
        self._root = root
        self._level = level
        self._options = options
        self._expected = options.expected if isinstance(options.expected, Expectation) else Expectation()
        self.checked_bytes = 0
        self.content = Content.NOT_ASKED

    def findings(self) -> Iterator[Finding]:
        st = os.fstat(self._root_fd)
        # Reading verbs judge a tree against whoever owns it; kt-kernel and consume ask for their own uid.
        yield from judge_root(st, None if self._root.kind is Kind.PERSISTENT else st.st_uid)
        if self._root.kind is Kind.STAGING:
            yield from self._staging()
            return
        found = judge_documents(self._root_fd, self._root, expected=self._expected)
        require_known_schema(found.read)
        yield from found.findings
        if found.manifest is not None and self._level is not Level.MARKER:
            yield from self._tree(plan_of(found.manifest), found.manifest)

    def _staging(self) -> Iterator[Finding]:
        """A tree that is still growing: what its lease says, and how far the finished layers are sound."""
        yield Finding("not-ready", "is still being staged: nothing has published it")
        yield from staged.judge_lease(self._root_fd, self._root.key)
        plan, findings = staged.plan_of(self._root_fd, self._expected)
        yield from findings
        if plan is not None and self._level is not Level.MARKER:
            yield from self._tree(plan, None)

    def _tree(self, plan: Plan, manifest: Manifest | None) -> Iterator[Finding]:
        told: set[tuple[str, str | None]] = set()
        for finding in judge_tree(self._root_fd, plan):
            told.add((finding.code, finding.file))
            yield finding
        if self._level is not Level.FULL:
            return
        for finding in self._bytes(plan, manifest):
            if (finding.code, finding.file) not in told:
                yield finding

    def _bytes(self, plan: Plan, manifest: Manifest | None) -> Iterator[Finding]:
        rules = torch_loads()
        self.content = Content.CHECKED if rules else Content.NOT_CHECKED
        published = {layer.index: layer for layer in manifest.layers} if manifest else {}
        options = self._options
        for read in content.read_tree(
            self._root_fd,
            plan.geometry,
            plan.whole,
            workers=options.jobs,
            rules=rules,
            pacer=None if options.rate is None else Pacer(options.rate),
            deadline=options.deadline,
        ):
            self.checked_bytes += read.batch.size
            options.advance(read.batch.size)
            yield from read.findings
            if read.batch.layer in published:
                yield from published[read.batch.layer].wrong_digests(plan.geometry, read.digests)
