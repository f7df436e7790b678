"""Consume a kt-int8 tree layer by layer: validate, hand over, delete, and in the end the tree itself.

Owns the loop and what may stop it. A layer is deleted only after it was handed over, so that a run that is
killed at any moment can be run again and goes on with the layers that are left. A signal is noted, the layer
in hand is brought to its end, and then the process goes the way the signal says.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from hwctl.core.ktint8_dequantised import write_layer
from hwctl.errors import NotFound, Refused, Unsupported, from_os_error
from hwctl.stores.base import Advance, Removed, silent
from hwctl.stores.ktint8.consume import ConsumableTree
from hwctl.stores.ktint8.deferred import Deferred
from hwctl.stores.ktint8.layout import layer_dir
from hwctl.stores.ktint8.opening import Opening, open_tree
from hwctl.weights.torch_here import torch_loads

HandOver = Callable[[ConsumableTree, int], Path | None]
"""Takes a layer's data over; the file it made, if it made one. The layer is deleted after it returns."""


@dataclass(frozen=True, slots=True)
class Work:
    """How to go about it; ``jobs`` workers validate. ``expect`` is told what ``advance`` adds up to."""

    jobs: int = 1
    advance: Advance = silent
    expect: Advance = silent


@dataclass(frozen=True, slots=True)
class Consumed:
    """One layer that was taken over and deleted, or only checked (then nothing was removed)."""

    layer: int
    bytes: int
    removed: Removed = field(default_factory=Removed)
    file: Path | None = None


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ended: the layers that are left, and whether the tree itself is gone."""

    left: tuple[int, ...]
    finished: bool
    half_consumed: bool = False


Report = Callable[[Consumed], None]
"""Told of every layer as it is done, so that nothing is lost when a signal ends the run."""


def check(path: Path, opening: Opening, layers: Container[int] | None, report: Report, work: Work) -> Ending:
    """Open a tree and read its layers in full; it is left as it was.

    Raises Busy, NotFound, Refused, Unsupported, and Damaged with every finding.
    """
    with open_tree(path, replace(opening, exclusive=False)) as tree:
        chosen = [layer for layer in tree.left if layers is None or layer in layers]
        if layers is not None and not chosen:
            raise NotFound("has none of the layers asked for", path=path)
        size = tree.manifest.geometry.layer_bytes
        work.expect(size * len(chosen))
        for layer in chosen:
            read = tree.validate([layer], workers=work.jobs)
            work.advance(read)
            report(Consumed(layer, read))
        return Ending(tree.left, False, bool(tree.begun) or len(tree.left) < len(tree.manifest.layers))


def consume(path: Path, opening: Opening, hand_over: HandOver, report: Report, work: Work) -> Ending:
    """Consume what is left of a tree. Raises what ``check`` raises; layers done until then are gone.

    After a signal the caller sees what the signal's own handler raises, once the tree is let go.
    """
    with Deferred() as signals, open_tree(path, opening) as tree:
        for layer in tree.begun:
            # Handed over by a run that was killed while it deleted.
            report(Consumed(layer, 0, tree.consume(layer)))
        size = tree.manifest.geometry.layer_bytes
        work.expect(size * len(tree.left))
        for layer in tree.left:
            if signals.noted is not None:
                return Ending(tree.left, False, True)
            file = hand_over(tree, layer)
            report(Consumed(layer, size, tree.consume(layer), file))
            work.advance(size)
        tree.finish()
        return Ending((), True)


def dequantised(folder: Path, work: Work) -> HandOver:
    """Hand a layer over as a safetensors file of fp32 weights in ``folder``, made where it is missing.

    Raises Unsupported without torch.
    """
    if not torch_loads():
        raise Unsupported("dequantising needs torch, which cannot be loaded here")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise from_os_error(exc, "cannot make the folder", folder) from exc

    def hand_over(tree: ConsumableTree, layer: int) -> Path:
        tree.validate([layer], workers=work.jobs)
        return write_layer(tree, layer, folder)

    return hand_over


def run_for_each(command: Sequence[str], stdout: int, work: Work) -> HandOver:
    """Hand a layer over to a command, which gets its folder as the last word and must end with 0.

    What the command prints goes to the descriptor ``stdout``.
    """

    def hand_over(tree: ConsumableTree, layer: int) -> None:
        tree.validate([layer], workers=work.jobs)
        folder = tree.path / layer_dir(layer)
        try:
            ended = subprocess.run([*command, str(folder)], stdout=stdout, check=False)
        except OSError as exc:
            raise from_os_error(exc, f"cannot run {command[0]}", command[0]) from exc
        if ended.returncode:
            how = f"status {ended.returncode}" if ended.returncode > 0 else f"signal {-ended.returncode}"
            raise Refused(f"layer {layer} is kept: {command[0]} ended with {how}", path=tree.path)

    return hand_over


def discard(_tree: ConsumableTree, _layer: int) -> None:
    """Hand a layer over to nobody: it is deleted as it is."""
