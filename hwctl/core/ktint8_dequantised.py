"""A layer of a kt-int8 tree as one safetensors file of fp32 weights, the parts put together again.

Owns the file: names as in a checkpoint with one tensor per expert, the order, writing it whole or not at
all. Memory is bounded by one stretch of rows. The arithmetic is ``weights.dequantise``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from hwctl.errors import Refused, from_os_error
from hwctl.fs import space
from hwctl.fs.atomic import replacing, write_all
from hwctl.fs.digest import ShortRead
from hwctl.fs.paths import NotRegular, open_dir, open_regular, opened_dir
from hwctl.stores.ktint8 import layout
from hwctl.stores.ktint8.consume import ConsumableTree
from hwctl.weights.amx import ROW_BLOCK, SCALE_BYTES, Geometry, Kind, Projection
from hwctl.weights.dequantise import Dequantiser
from hwctl.weights.safetensors_file import build_header
from hwctl.weights.scratch import Scratch

_ELEMENTS = 1 << 19
_FP32_BYTES = 4
_COMPARED = 1 << 20


def file_name(layer: int) -> str:
    return f"layer-{layer:05d}.safetensors"


def tensor_name(layer: int, expert: int, projection: Projection) -> str:
    return f"model.layers.{layer}.mlp.experts.{expert}.{projection}_proj.weight"


def shape(geometry: Geometry, projection: Projection) -> tuple[int, int]:
    """[rows, columns] of the whole matrix, all parts together."""
    if projection is Projection.DOWN:
        return geometry.hidden, geometry.intermediate
    return geometry.intermediate, geometry.hidden


def write_layer(tree: ConsumableTree, layer: int, folder: Path) -> Path:
    """Write a layer into ``folder``; the file's path. What an interrupted run wrote there is the same again.

    Raises Refused where another file has the name: the layer is deleted once this one is written, and both
    models are wanted. NoRoom before the first byte where that can be told, IoFailed; no half file is left.
    """
    geometry = tree.manifest.geometry
    names = [(expert, projection) for expert in range(geometry.experts) for projection in Projection]
    tensors = [(tensor_name(layer, e, p), "F32", shape(geometry, p)) for e, p in names]
    header, entries = build_header(tensors, {"format": "pt"})
    path = folder / file_name(layer)
    total = len(header) + entries[-1].end
    space.require(folder, total, 1, what=f"layer {layer}")
    try:
        with opened_dir(folder) as folder_fd, replacing(folder_fd, path.name) as (fd, temporary):
            _write(fd, total, header, _blocks(tree, layer, names))
            if _differs(folder_fd, path.name, temporary):
                raise Refused("exists already, with other content; the layer was left where it is", path=path)
    except OSError as exc:
        raise from_os_error(exc, f"cannot write {path.name}", path) from exc
    return path


def _differs(folder_fd: int, name: str, other: str) -> bool:
    """Whether there is a file of that name which is not byte for byte the other one."""
    try:
        fd, _st = open_regular(name, dir_fd=folder_fd)
    except FileNotFoundError:
        return False
    except NotRegular:
        return True
    with open(fd, "rb") as there, open(open_regular(other, dir_fd=folder_fd)[0], "rb") as new:
        while (block := new.read(_COMPARED)) == there.read(_COMPARED):
            if not block:
                return False
    return True


def _write(fd: int, total: int, header: bytes, blocks: Iterator[memoryview]) -> None:
    space.reserve(fd, total)
    write_all(fd, header, 0)
    offset = len(header)
    for block in blocks:
        write_all(fd, block, offset)
        offset += block.nbytes


def _blocks(
    tree: ConsumableTree, layer: int, names: Sequence[tuple[int, Projection]]
) -> Iterator[memoryview]:
    """The data of all tensors in order, in a buffer that is used again."""
    geometry = tree.manifest.geometry
    dequantiser, block, packed = Dequantiser(), Scratch(), Scratch()
    for expert, projection in names:
        with ExitStack() as files:
            parts = [
                files.enter_context(_Part(tree, layer, part, expert, projection))
                for part in range(geometry.parts)
            ]
            # A row of down is cut over all parts, gate and up are cut between rows.
            groups = [parts] if projection is Projection.DOWN else [[part] for part in parts]
            for group in groups:
                yield from _rows(geometry, projection, group, dequantiser, block, packed)


def _rows(
    geometry: Geometry,
    projection: Projection,
    group: Sequence[_Part],
    dequantiser: Dequantiser,
    block: Scratch,
    packed: Scratch,
) -> Iterator[memoryview]:
    """Stretches of the whole rows that a group of parts makes up side by side."""
    import torch

    n, k = geometry.shape(projection)
    width = k * len(group)
    step = max(1, _ELEMENTS // width // ROW_BLOCK) * ROW_BLOCK
    for row in range(0, n, step):
        rows = min(step, n - row)
        out = block.tensor(torch.float32, rows, width)
        for index, part in enumerate(group):
            codes = part.read(part.quant_fd, packed.bytes(rows * k), row * k)
            scales = part.scales[row * SCALE_BYTES : (row + rows) * SCALE_BYTES]
            dequantiser.rows(codes, scales, out[:, index * k : (index + 1) * k])
        yield block.bytes(rows * width * _FP32_BYTES)


class _Part:
    """Both files of one part of a matrix, open for reading; the scales read whole."""

    def __init__(
        self, tree: ConsumableTree, layer: int, part: int, expert: int, projection: Projection
    ) -> None:
        geometry = tree.manifest.geometry
        with ExitStack() as stack:
            layer_fd = open_dir(layout.layer_dir(layer), dir_fd=tree.root_fd)
            stack.callback(os.close, layer_fd)
            part_fd = open_dir(layout.part_dir(part), dir_fd=layer_fd)
            stack.callback(os.close, part_fd)
            size = geometry.file_bytes(projection, Kind.SCALE)
            scale_fd, _st = open_regular(
                layout.file_name(projection, expert, Kind.SCALE, size), dir_fd=part_fd
            )
            stack.callback(os.close, scale_fd)
            self.scales = self.read(scale_fd, memoryview(bytearray(size)), 0)
            size = geometry.file_bytes(projection, Kind.QUANT)
            name = layout.file_name(projection, expert, Kind.QUANT, size)
            self.quant_fd, _st = open_regular(name, dir_fd=part_fd)

    def read(self, fd: int, buffer: memoryview, offset: int) -> memoryview:
        """Fill ``buffer`` from a file; ShortRead when it ends too early."""
        done = 0
        while done < len(buffer):
            count = os.preadv(fd, [buffer[done:]], offset + done)
            if count == 0:
                raise ShortRead(offset + done, offset + len(buffer))
            done += count
        return buffer

    def __enter__(self) -> _Part:
        return self

    def __exit__(self, *_exc: object) -> None:
        os.close(self.quant_fd)
