"""Consuming a ready tree that was opened: take its layers one by one, finish, or clean up.

Owns the tree while it is consumed; opening it is ``opening``, signals are ``guard``. A layer goes only after
it was found exact once more, and only what the manifest lists. Everything that deletes is bound to the
process that opened the tree: in a forked child it does nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace

from hwctl.errors import Finding, NotFound, Refused, from_os_error
from hwctl.fs.liveness import in_use
from hwctl.fs.lock_table import Mode
from hwctl.fs.remove import Removal
from hwctl.stores.base import Removed
from hwctl.stores.ktint8 import content, deletion, guard, layout
from hwctl.stores.ktint8.finished import plan_of, unsound
from hwctl.stores.ktint8.layers import LayerRecord, LayerState
from hwctl.stores.ktint8.manifest import Manifest, Schema
from hwctl.stores.ktint8.manifest_text import Rewriter
from hwctl.stores.ktint8.root_lock import LockedRoot
from hwctl.stores.ktint8.tree import judge_layer
from hwctl.weights.torch_here import torch_loads


class ConsumableTree:
    """A ready tree that this process has to itself. ``close`` keeps what is left, ``cleanup`` deletes it."""

    def __init__(self, root: LockedRoot, manifest: Manifest, rewriter: Rewriter) -> None:
        """Takes the root over."""
        self.path = root.path
        self.root_fd = root.fd
        self.manifest = manifest
        self._root = root
        self._rewriter = rewriter
        self._layers = {layer.index: layer for layer in manifest.layers}
        self._pid = os.getpid()
        self._open = True

    @property
    def ours(self) -> bool:
        """Whether the tree is open, and this is the process that opened it."""
        return self._open and os.getpid() == self._pid

    @property
    def left(self) -> tuple[int, ...]:
        """The layers that are still whole, ascending."""
        return self._in_state(LayerState.READY)

    @property
    def begun(self) -> tuple[int, ...]:
        """The layers whose deletion was begun and not ended by a consumer before."""
        return self._in_state(LayerState.CONSUMING)

    def _in_state(self, state: LayerState) -> tuple[int, ...]:
        return tuple(sorted(index for index, layer in self._layers.items() if layer.state is state))

    def validate(self, layers: Iterable[int], *, workers: int = 1) -> int:
        """Read layers in full: digests where the manifest has them, and the content rules; bytes read.

        Raises Damaged with every finding; the tree is as it was.
        """
        wanted = [self._record(layer).index for layer in layers]
        geometry = self.manifest.geometry
        findings: list[Finding] = []
        total = 0
        for read in content.read_tree(self.root_fd, geometry, wanted, workers=workers, rules=torch_loads()):
            total += read.batch.size
            findings += read.findings
            findings += self._layers[read.batch.layer].wrong_digests(geometry, read.digests)
        if findings:
            raise unsound(self.path, findings)
        return total

    def consume(self, layer: int) -> Removed:
        """Delete a layer whose data the caller has taken over: exactly the files the manifest lists.

        Raises Damaged, and deletes nothing, when the layer is not exactly what the manifest says.
        """
        record = self._record(layer)
        self._require_alone()
        with guard.deleting():
            try:
                return self._consume(record)
            except OSError as exc:
                raise from_os_error(exc, f"cannot consume layer {layer}", self.path) from exc

    def _require_alone(self) -> None:
        if self._root.lock.mode is not Mode.EXCLUSIVE:
            raise Refused("was opened to be looked at only", path=self.path)

    def _record(self, layer: int) -> LayerRecord:
        if not self.ours:
            raise Refused("is closed, or was opened by another process", path=self.path)
        record = self._layers.get(layer)
        if record is None:
            raise NotFound(f"has no layer {layer}", path=self.path)
        if record.state is LayerState.CONSUMED:
            raise NotFound(f"layer {layer} was consumed already", path=self.path)
        return record

    def _consume(self, record: LayerRecord) -> Removed:
        layer = record.index
        if record.ready:
            plan = plan_of(replace(self.manifest, layers=(record,)))
            try:
                findings = list(judge_layer(self.root_fd, layer, plan))
            except (FileNotFoundError, NotADirectoryError):
                findings = [Finding("missing-directory", "is no directory any more", layout.layer_dir(layer))]
            if findings:
                raise unsound(self.path, findings)
            self._mark(record, LayerState.CONSUMING)
        removal = Removal()
        deletion.delete_layer(self.root_fd, self.manifest.geometry, record, removal)
        if layout.layer_dir(layer) in os.listdir(self.root_fd):
            raise Refused(
                f"layer {layer} holds something that is not ours; it was left there", path=self.path
            )
        self._mark(record, LayerState.CONSUMED)
        return removal.result()

    def _mark(self, record: LayerRecord, state: LayerState) -> None:
        self._rewriter.set_state(record.index, state)
        deletion.rewrite(self.root_fd, Schema.EPHEMERAL.document, self._rewriter.document())
        self._layers[record.index] = replace(record, state=state)

    def finish(self) -> None:
        """Remove the manifest and the root, once every layer is consumed; the tree is closed then.

        Raises Refused, and removes nothing, while layers are left or something that is not ours lies there.
        """
        if not self.ours:
            raise Refused("is closed, or was opened by another process", path=self.path)
        self._require_alone()
        if self.left or self.begun:
            raise Refused(f"{len(self.left) + len(self.begun)} layers are not consumed", path=self.path)
        document = Schema.EPHEMERAL.document
        with guard.deleting():
            try:
                _drop_dead_temporaries(self.root_fd)
                strangers = sorted(set(os.listdir(self.root_fd)) - {document})
                if strangers:
                    raise Refused(f"{strangers[0]} is not ours; the root was left", path=self.path)
                os.unlink(document, dir_fd=self.root_fd)
                try:
                    os.rmdir(self.path.name, dir_fd=self._root.base_fd)
                except OSError:
                    # Somebody put a file there this very moment: the root must not lose its manifest.
                    deletion.restore(self.root_fd, document, self._rewriter.document())
                    raise
            except OSError as exc:
                raise from_os_error(exc, "cannot finish", self.path) from exc
        self.close()

    def cleanup(self) -> Removed:
        """Delete what is left of the tree, as far as the manifest lists it, and close. Strangers' files stay,
        and then the root. Does nothing in another process than the one that opened the tree."""
        if not self.ours:
            return Removed()
        self._require_alone()
        with guard.deleting():
            try:
                inode = self._root.lock.inode
                return deletion.remove_listed(self._root.base_fd, self.path.name, inode, ephemeral=True)
            finally:
                self.close()

    def close(self) -> None:
        """Let the tree go as it is. In a forked child this closes and unlocks nothing of its parent's."""
        if self._open:
            self._open = False
            self._root.close()

    def __enter__(self) -> ConsumableTree:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


def _drop_dead_temporaries(root_fd: int) -> None:
    """Remove temporaries that this process or one that is no more left; kt-kernel's may have our very pid."""
    for name in os.listdir(root_fd):
        pid = layout.temporary_pid(name)
        if pid is not None and (pid == os.getpid() or not in_use(pid)):
            os.unlink(name, dir_fd=root_fd)
