"""Is this tree sound? The three levels of verify for staging, ready, half-consumed and persistent trees.

Owns the order of the checks: root, documents, expectation, then the exact tree, then every byte. Each rule
lives with its subject (``manifest``, ``tree``, ``content``). The lock on the root is held shared meanwhile;
nothing is written. Damage is in the report, exceptions mean that it could not be found out.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from hwctl.errors import Damaged, Finding, NotFound, Unsupported, from_os_error
from hwctl.fs.locks import Mode, acquire_dir
from hwctl.fs.pace import Pacer
from hwctl.fs.paths import open_dir
from hwctl.fs.walk import inode_of
from hwctl.stores.base import Artifact, CheckOptions, Content, Level, Report
from hwctl.stores.ktint8 import content, expect, layout, roots, staged
from hwctl.stores.ktint8.documents import ReadManifest, read_manifest
from hwctl.stores.ktint8.expect import Expectation
from hwctl.stores.ktint8.listing import LayerState
from hwctl.stores.ktint8.manifest import SCHEMA_UNKNOWN, Manifest, Schema
from hwctl.stores.ktint8.roots import Kind, Root
from hwctl.stores.ktint8.survey import matching
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
        root_fd = open_dir(path)
    except FileNotFoundError as exc:
        raise NotFound("is absent", path=path) from exc
    except OSError as exc:
        if exc.errno in (errno.ELOOP, errno.ENOTDIR):
            words = "the root is no directory, or a symbolic link to one"
            return Report(artifact, level, (Finding("root-type", words),))
        raise from_os_error(exc, "cannot open the root", path) from exc
    try:
        with acquire_dir(root_fd, Mode.SHARED, options.wait):
            if not _still_there(path, root_fd):
                raise NotFound("is gone: it was consumed, moved or removed meanwhile", path=path)
            judged = _Check(root_fd, root, level, options)
            findings = list(judged.findings())
    except OSError as exc:
        raise from_os_error(exc, "cannot check it", path) from exc
    finally:
        os.close(root_fd)
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


def _still_there(path: Path, root_fd: int) -> bool:
    try:
        return inode_of(os.lstat(path)) == inode_of(os.fstat(root_fd))
    except FileNotFoundError:
        return False


class _Check:
    def __init__(self, root_fd: int, root: Root, level: Level, options: CheckOptions) -> None:
        self._root_fd = root_fd
        self._root = root
        self._level = level
        self._options = options
        self.checked_bytes = 0
        self.content = Content.NOT_ASKED

    def findings(self) -> Iterator[Finding]:
        st = os.fstat(self._root_fd)
        # Reading verbs judge a tree against whoever owns it; kt-kernel and consume ask for their own uid.
        yield from judge_root(st, None if self._root.kind is Kind.PERSISTENT else st.st_uid)
        if self._root.kind is Kind.STAGING:
            yield from self._staging()
            return
        read = read_manifest(self._root_fd, ephemeral=self._root.kind is Kind.EPHEMERAL)
        require_known_schema(read)
        yield from read.parsed.findings
        manifest = read.parsed.manifest
        if manifest is None:
            return
        if self._root.kind is Kind.EPHEMERAL:
            yield from matching(manifest, self._root, st.st_uid)
        if manifest.half_consumed:
            yield half_consumed(manifest)
        if isinstance(self._options.expected, Expectation):
            yield from expect.judge(self._options.expected, manifest.geometry, manifest.indices)
        if self._level is not Level.MARKER:
            yield from self._tree(plan_of(manifest), manifest)

    def _staging(self) -> Iterator[Finding]:
        """A tree that is still growing: what its lease says, and how far the finished layers are sound."""
        yield Finding("not-ready", "is still being staged: nothing has published it")
        expected = (
            self._options.expected if isinstance(self._options.expected, Expectation) else Expectation()
        )
        yield from staged.judge_lease(self._root_fd, self._root.key)
        plan, findings = staged.plan_of(self._root_fd, expected)
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
        known = {layer.index: layer.digests for layer in manifest.layers} if manifest else {}
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
            yield from wrong_digests(read, known.get(read.batch.layer, ()), plan)


def wrong_digests(read: content.ReadBatch, known: tuple[bytes | None, ...], plan: Plan) -> Iterator[Finding]:
    if not known:
        return
    folder = f"{layout.layer_dir(read.batch.layer)}/{layout.part_dir(read.batch.part)}"
    names = list(layout.part_files(plan.geometry))
    for slot, digest in read.digests.items():
        wanted = known[slot]
        if wanted is not None and wanted != digest:
            path = f"{folder}/{names[slot % len(names)]}"
            words = "its bytes are not those that were published (SHA-256 differs)"
            yield Finding("digest-mismatch", words, path, wanted.hex(), digest.hex())


def plan_of(manifest: Manifest) -> Plan:
    """What a root with this manifest should hold, as far as its layers have not been consumed."""
    by_state = {
        state: tuple(sorted(layer.index for layer in manifest.layers if layer.state is state))
        for state in LayerState
    }
    return Plan(
        manifest.geometry,
        whole=by_state[LayerState.READY],
        partial=by_state[LayerState.CONSUMING],
        documents=frozenset({manifest.schema.document}),
        private=manifest.schema is Schema.EPHEMERAL,
    )


def half_consumed(manifest: Manifest) -> Finding:
    left = sum(layer.ready for layer in manifest.layers)
    words = f"is half consumed: {left} of {len(manifest.layers)} layers are left; only hwctl goes on with it"
    return Finding("half-consumed", words, manifest.schema.document)


def require_known_schema(read: ReadManifest) -> None:
    """Raise Unsupported for a schema that another version may know: that is no damage."""
    for finding in read.parsed.findings:
        if finding.code == SCHEMA_UNKNOWN:
            raise Unsupported(f"{finding.file}: {finding.message}")


def unsound(path: Path, findings: Sequence[Finding]) -> Damaged:
    """A tree that cannot be used for what was asked, with all that is wrong with it."""
    first = findings[0]
    where = f"{first.file}: " if first.file else ""
    more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
    return Damaged(f"{path}: {where}{first.message}{more}", findings, path=path)
