"""A checkpoint's tensors by their headers, held against config.json: what is used, what is wrong.

Owns looking one tensor up, with its scales, and noting what is the matter with it. Which tensors a layer
must have is ``search``. What cannot be converted at all is refused by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hwctl.errors import Finding, Unsupported
from hwctl.weights.checkpoint import Checkpoint
from hwctl.weights.moe.config import CONFIG, MoeConfig
from hwctl.weights.moe.matrix import Matrix
from hwctl.weights.tensor_layout import Findings, TensorEntry

PLAIN_DTYPES = ("BF16", "F16", "F32")
BLOCK_DTYPE = "F8_E4M3"
SCALE_DTYPES = ("F32", "BF16")


class Inventory:
    """``used`` are the names of the tensors that were found to be as they must be."""

    def __init__(self, checkpoint: Checkpoint, config: MoeConfig) -> None:
        self.config = config
        self.names = checkpoint.weight_map
        self.used: set[str] = set()
        self.findings = Findings()
        self._headers = {shard.name: shard.header for shard in checkpoint.shards}

    def header(self, name: str) -> TensorEntry:
        """What a tensor's header says, whatever that is."""
        return self._headers[self.names[name]].by_name[name]

    def entry(self, name: str, shapes: Sequence[tuple[int, ...]]) -> TensorEntry | None:
        """The same, if its shape is one of ``shapes``."""
        entry = self.header(name)
        if entry.shape in shapes:
            self.used.add(name)
            return entry
        wanted = " or ".join(str(list(shape)) for shape in shapes)
        message = f"{name}: shape {list(entry.shape)}, by {CONFIG} it must be {wanted}"
        expected = [list(shape) for shape in shapes]
        self.fault(
            "tensor-shape", message, name, expected if len(expected) > 1 else expected[0], list(entry.shape)
        )
        return None

    def scaled(self, matrix: Matrix, scales: str | None, shape: tuple[int, ...]) -> Matrix | None:
        """The matrix with its scales, which an e4m3 one must have and any other must not."""
        name = matrix.tensor
        if matrix.dtype in PLAIN_DTYPES:
            if scales is not None:
                self.fault("tensor-unexpected", f"{scales}: scales of {matrix.dtype} weights", scales)
            return None if scales is not None else matrix
        if matrix.dtype != BLOCK_DTYPE:
            raise Unsupported(f"{name}: expert weights of dtype {matrix.dtype} cannot be converted")
        block = self.config.block
        if block is None:
            key = "quantization_config.weight_block_size"
            self.fault("config-key", f"{key}: missing, though {name} is {matrix.dtype}", CONFIG)
            return None
        if scales is None:
            self.missing(f"{name}_scale_inv")
            return None
        scaled = replace(matrix, scales=scales, block=block)
        entry = self.entry(scales, [(*shape[:-2], *scaled.scale_shape)])
        if entry is not None and entry.dtype not in SCALE_DTYPES:
            raise Unsupported(f"{scales}: scales of dtype {entry.dtype} cannot be converted")
        return None if entry is None else scaled

    def missing(self, name: str) -> None:
        """Note a tensor that is not there."""
        self.fault("missing-tensor", f"{name}: missing", name)

    def fault(
        self, code: str, message: str, what: str | None = None, expected: object = None, actual: object = None
    ) -> None:
        """Note what is wrong with ``what``, a tensor or config.json."""
        file = what if what == CONFIG else self.names.get(what or "")
        self.findings.add(lambda: Finding(code, message, file, expected, actual))
