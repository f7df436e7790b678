"""Finds every expert's matrices among a checkpoint's tensors, and says what is wrong with those it finds.

Pure: names, shapes and dtypes from the headers are held against config.json, and a tensor too few, too many,
of another shape or without its scales is a finding. What cannot be converted at all is refused by name.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from hwctl.errors import Finding, Unsupported
from hwctl.weights.amx import Projection
from hwctl.weights.checkpoint import Checkpoint
from hwctl.weights.moe.config import CONFIG, MoeConfig
from hwctl.weights.moe.families import Fused
from hwctl.weights.moe.matrix import Matrix
from hwctl.weights.moe.naming import Place, Role, expert_name, layer_name, place_of
from hwctl.weights.tensor_layout import TensorEntry

MAX_FINDINGS = 100
PLAIN_DTYPES = ("BF16", "F16", "F32")
BLOCK_DTYPE = "F8_E4M3"
SCALE_DTYPES = ("F32", "BF16")


class Search:
    """Looks through one checkpoint; ``layers`` are the ones wanted, all of which have experts by config.

    After ``run``, ``matrices`` has every matrix, or there are ``findings``. ``tensors`` are the names used.
    A config.json that promises too much could ask for millions of findings: the search ends with the layer
    in which there are enough of them, and counts those that it did not keep.
    """

    def __init__(self, checkpoint: Checkpoint, config: MoeConfig, layers: tuple[int, ...]) -> None:
        self._headers = {shard.name: shard.header for shard in checkpoint.shards}
        self._shard_of = checkpoint.weight_map
        self._config = config
        self._layers = layers
        self.findings: list[Finding] = []
        self.dropped = 0
        self.matrices: dict[tuple[int, int, Projection], Matrix] = {}
        self.tensors: set[str] = set()

    def run(self) -> None:
        """Judge every layer wanted. Raises Unsupported at the first tensor of a form not known."""
        places = self._by_layer()
        for layer in self._layers:
            if self.dropped:
                return
            there = places.get(layer, {})
            fused = {place for place in there if place.expert is None}
            if not there:
                self._fault(
                    "missing-layer", f"{layer_name(layer)}: no experts, though {CONFIG} promises them"
                )
            elif fused and len(fused) < len(there):
                name = there[min(fused, key=lambda place: there[place])]
                self._fault("tensor-unexpected", f"{name}: fused beside tensors of single experts", name)
            elif fused:
                self._judge_fused(layer, there)
            else:
                self._judge_single(layer, there)

    def _by_layer(self) -> dict[int, dict[Place, str]]:
        """Layer -> place -> tensor name, for the layers wanted. MTP layers, past the last, are left out."""
        places: dict[int, dict[Place, str]] = defaultdict(dict)
        with_experts = frozenset(self._config.layers)
        for name in self._shard_of:
            place = place_of(name, self._config.family)
            if place is None or place.layer >= self._config.hidden_layers:
                continue
            if place.layer not in with_experts:
                self._fault("tensor-unexpected", f"{name}: by {CONFIG} this layer has no experts", name)
            elif place.layer in self._layers:
                if place.role is Role.OTHER:
                    raise Unsupported(f"{name}: experts stored in this form cannot be converted")
                other = places[place.layer].setdefault(place, name)
                if other != name:
                    self._fault("tensor-ambiguous", f"{name} and {other} are the same matrix", name)
        return places

    def _judge_single(self, layer: int, there: dict[Place, str]) -> None:
        """Layers whose experts have a tensor for each projection, stored [output, input]."""
        for expert in range(self._config.experts):
            for projection in Projection:
                name = there.pop(Place(layer, expert, projection, Role.WEIGHT), None)
                scales = there.pop(Place(layer, expert, projection, Role.SCALE), None)
                if name is None:
                    missing = expert_name(layer, expert, projection)
                    self._fault("missing-tensor", f"{missing}: missing", missing)
                    continue
                shape = self._shape(projection)
                if (entry := self._entry(name, [shape])) is not None:
                    matrix = Matrix(name, entry.dtype, shape, *shape)
                    self._add(layer, expert, projection, self._scaled(matrix, scales, shape))
        for name in there.values():
            count = self._config.experts
            self._fault("tensor-unexpected", f"{name}: by {CONFIG} there are {count} experts", name)

    def _judge_fused(self, layer: int, there: dict[Place, str]) -> None:
        """Layers with one tensor for gate and up of all experts and one for down."""
        names = {place.projection: name for place, name in there.items() if place.role is Role.WEIGHT}
        scales = {place.projection: name for place, name in there.items() if place.role is Role.SCALE}
        for projection, spelling in ((None, "gate_up_proj"), (Projection.DOWN, "down_proj")):
            if projection not in names:
                missing = f"{layer_name(layer)}.{spelling}"
                self._fault("missing-tensor", f"{missing}: missing", missing)
        if len(names) == 2 and (fused := self._orientation(names)) is not None:
            for projection in Projection:
                half = None if projection is not Projection.DOWN else projection
                for expert, matrix in self._slabs(names[half], scales.get(half), projection, fused):
                    self._add(layer, expert, projection, matrix)

    def _orientation(self, names: dict[Projection | None, str]) -> Fused | None:
        """Which way round two fused tensors are stored: as both shapes have it.

        The model library saves a family's tensors the other way round than they were published, so the
        shapes have the last word. Gate and up of a family whose form is not known must tell by themselves.
        """
        shapes = {half: self._header_entry(name).shape for half, name in names.items()}
        fitting = [
            fused for fused in Fused if all(shapes[half] == self._fused_shape(half, fused) for half in names)
        ]
        known = self._config.family.fused
        if not fitting:
            for half, name in names.items():
                wanted = [self._fused_shape(half, fused) for fused in Fused if known in (None, fused)]
                self._entry(name, wanted)
            return None
        if known is None and shapes[None] == self._fused_shape(None, Fused.INPUT_FIRST) == (
            self._fused_shape(None, Fused.OUTPUT_FIRST)
        ):
            raise Unsupported(
                f"{names[None]}: with shape {list(shapes[None])} it may be stored either way round, and no"
                f" orientation is known of model family {self._config.family.name or '(none stated)'}"
            )
        self.tensors.update(names.values())
        return fitting[0]

    def _slabs(
        self, name: str, scales: str | None, projection: Projection, fused: Fused
    ) -> Iterator[tuple[int, Matrix | None]]:
        """Every expert's matrix of one projection in a fused tensor; None where its scales are wrong."""
        entry = self._header_entry(name)
        slab = entry.shape[1], entry.shape[2]
        rows, columns = self._shape(projection)
        transposed = fused is Fused.INPUT_FIRST
        begin = rows if projection is Projection.UP else 0
        first = Matrix(
            name,
            entry.dtype,
            slab,
            rows,
            columns,
            expert=0,
            origin=(0, begin) if transposed else (begin, 0),
            transposed=transposed,
        )
        scaled = self._scaled(first, scales, (self._config.experts, *slab))
        for expert in range(self._config.experts):
            yield expert, None if scaled is None else replace(scaled, expert=expert)

    def _scaled(self, matrix: Matrix, scales: str | None, shape: tuple[int, ...]) -> Matrix | None:
        """The matrix with its scales, which an e4m3 one must have and any other must not."""
        name = matrix.tensor
        if matrix.dtype in PLAIN_DTYPES:
            if scales is not None:
                self._fault("tensor-unexpected", f"{scales}: scales of {matrix.dtype} weights", scales)
            return None if scales is not None else matrix
        if matrix.dtype != BLOCK_DTYPE:
            raise Unsupported(f"{name}: expert weights of dtype {matrix.dtype} cannot be converted")
        block = self._config.block
        if block is None:
            key = "quantization_config.weight_block_size"
            self._fault("config-key", f"{key}: missing, though {name} is {matrix.dtype}", CONFIG)
            return None
        if scales is None:
            missing = name + "_scale_inv"
            self._fault("missing-tensor", f"{missing}: missing", missing)
            return None
        scaled = replace(matrix, scales=scales, block=block)
        entry = self._entry(scales, [(*shape[:-2], *scaled.scale_shape)])
        if entry is not None and entry.dtype not in SCALE_DTYPES:
            raise Unsupported(f"{scales}: scales of dtype {entry.dtype} cannot be converted")
        return None if entry is None else scaled

    def _entry(self, name: str, shapes: Sequence[tuple[int, ...]]) -> TensorEntry | None:
        """The header's entry of a tensor, if its shape is one of ``shapes``."""
        entry = self._header_entry(name)
        if entry.shape in shapes:
            self.tensors.add(name)
            return entry
        wanted = " or ".join(str(list(shape)) for shape in shapes)
        message = f"{name}: shape {list(entry.shape)}, by {CONFIG} it must be {wanted}"
        expected = [list(shape) for shape in shapes]
        self._fault(
            "tensor-shape", message, name, expected if len(expected) > 1 else expected[0], list(entry.shape)
        )
        return None

    def _header_entry(self, name: str) -> TensorEntry:
        return self._headers[self._shard_of[name]].by_name[name]

    def _shape(self, projection: Projection) -> tuple[int, int]:
        hidden, intermediate = self._config.hidden, self._config.intermediate
        return (hidden, intermediate) if projection is Projection.DOWN else (intermediate, hidden)

    def _fused_shape(self, projection: Projection | None, fused: Fused) -> tuple[int, int, int]:
        hidden, intermediate = self._config.hidden, self._config.intermediate
        rows, columns = (hidden, intermediate) if projection else (2 * intermediate, hidden)
        ends = (rows, columns) if fused is Fused.OUTPUT_FIRST else (columns, rows)
        return (self._config.experts, *ends)

    def _add(self, layer: int, expert: int, projection: Projection, matrix: Matrix | None) -> None:
        if matrix is not None:
            self.matrices[layer, expert, projection] = matrix

    def _fault(
        self, code: str, message: str, what: str | None = None, expected: object = None, actual: object = None
    ) -> None:
        if len(self.findings) == MAX_FINDINGS:
            self.dropped += 1
            return
        file = what if what == CONFIG else self._shard_of.get(what or "")
        self.findings.append(Finding(code, message, file, expected, actual))
