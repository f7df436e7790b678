"""What goes into an artifact: declared tensors, and how they are laid out in payload files.

Pure. Owns the rules of what can be published at all, and the one difference between a tensor as torch sees
it and as the container spells it. Writing the bytes is ``writer``'s work.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hwctl.errors import HwctlError, Usage
from hwctl.stores.hostweights.layout import PAYLOAD_SUFFIX, is_safe_name
from hwctl.stores.hostweights.records import TENSOR_KINDS
from hwctl.stores.hostweights.verdict import Code, Stage, coded
from hwctl.weights.dtypes import CODES, DTYPE_BITS, TORCH_NAMES
from hwctl.weights.safetensors_file import build_header
from hwctl.weights.tensor_layout import TensorEntry

RESERVED_NAME = "__metadata__"
CONTAINER_METADATA = {"format": "pt", "host_weight_runtime": "1"}

_TWO_IN_ONE = "F4"
"""torch counts a pair of 4-bit elements as one, the container counts each: its last dimension is twice."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor that a producer promises to write.

    ``dtype`` is torch's text (``torch.bfloat16``), ``shape`` what torch reports, ``file_name`` the payload
    file (``*.safetensors``). ``kind`` is ``parameter`` or ``buffer``.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    file_name: str
    kind: str = "parameter"
    role: str = "weight"

    @property
    def nbytes(self) -> int:
        """Size of the raw bytes; Usage for a dtype that cannot be stored."""
        return math.prod(self.shape) * element_bytes(self)


@dataclass(frozen=True, slots=True)
class Extent:
    """Where one tensor lies: ``begin`` and ``size`` in bytes, from the start of its file."""

    spec: TensorSpec
    begin: int
    size: int


@dataclass(frozen=True, slots=True)
class PayloadPlan:
    """One payload file, fully laid out: prefix and header as bytes, tensors by name in name order."""

    file_name: str
    header: bytes
    extents: Mapping[str, Extent]
    size: int


def refusal(message: str) -> HwctlError:
    """A producer asked for something that cannot be published; in upstream's words producer_failed."""
    return coded(Usage(message), Stage.PRODUCTION, Code.PRODUCER_FAILED)


def plan_payloads(specs: Iterable[TensorSpec]) -> tuple[PayloadPlan, ...]:
    """Lay the tensors out, one plan a file, sorted by file name.

    Within a file tensors follow each other in name order without padding, as upstream lays them out.
    Raises Usage for what upstream would take and could not read back, or could not write.
    """
    by_file: dict[str, list[TensorSpec]] = {}
    seen: set[str] = set()
    for spec in specs:
        _judge(spec)
        if spec.name in seen:
            raise refusal(f"tensor {spec.name!r} is declared more than once")
        seen.add(spec.name)
        by_file.setdefault(spec.file_name, []).append(spec)
    if not by_file:
        raise refusal("an artifact needs at least one tensor")
    return tuple(_plan_file(name, by_file[name]) for name in sorted(by_file))


def _plan_file(file_name: str, specs: Sequence[TensorSpec]) -> PayloadPlan:
    ordered = sorted(specs, key=lambda spec: spec.name)
    try:
        header, entries = build_header(
            [(spec.name, CODES[spec.dtype], _stored_shape(spec)) for spec in ordered], CONTAINER_METADATA
        )
    except ValueError as exc:
        raise refusal(f"{file_name}: {exc}") from exc
    extents = {
        spec.name: Extent(spec, len(header) + entry.begin, entry.nbytes)
        for spec, entry in zip(ordered, entries, strict=True)
    }
    return PayloadPlan(file_name, header, extents, len(header) + entries[-1].end)


def _judge(spec: TensorSpec) -> None:
    if not spec.name or not spec.role:
        raise refusal(f"tensor {spec.name!r}: name and role must not be empty")
    if spec.name == RESERVED_NAME:
        # Upstream publishes it, cannot read it back, and leaves a quarantine copy at every try.
        raise refusal(f"a tensor cannot be named {RESERVED_NAME}, which the container keeps for itself")
    try:
        spec.name.encode()
    except UnicodeEncodeError:
        raise refusal(f"tensor {spec.name!r}: the name is not valid Unicode") from None
    if spec.kind not in TENSOR_KINDS:
        raise refusal(f"tensor {spec.name!r}: kind must be parameter or buffer, not {spec.kind!r}")
    if any(type(extent) is not int or extent < 0 for extent in spec.shape):
        raise refusal(f"tensor {spec.name!r}: the shape {spec.shape!r} is no tuple of sizes")
    if not is_safe_name(spec.file_name) or not spec.file_name.endswith(PAYLOAD_SUFFIX):
        raise refusal(f"payload {spec.file_name!r} must be one path component ending in {PAYLOAD_SUFFIX}")
    element_bytes(spec)


def element_bytes(spec: TensorSpec) -> int:
    """Bytes of one element as torch counts elements."""
    code = CODES.get(spec.dtype)
    if code is None:
        raise refusal(f"tensor {spec.name!r}: dtype {spec.dtype!r} cannot be stored in a safetensors file")
    return 1 if code == _TWO_IN_ONE else DTYPE_BITS[code] // 8


def _stored_shape(spec: TensorSpec) -> tuple[int, ...]:
    stored = container_shape(spec.dtype, spec.shape)
    if stored is None:
        raise refusal(f"tensor {spec.name!r}: a scalar cannot be of {spec.dtype}")
    return stored


def container_shape(dtype: str, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """The shape the container's header states for this torch dtype and shape; None if there can be none."""
    if CODES.get(dtype) != _TWO_IN_ONE:
        return shape
    return (*shape[:-1], shape[-1] * 2) if shape else None


def torch_view(entry: TensorEntry) -> tuple[str, tuple[int, ...]] | None:
    """The dtype text and shape torch would report for an entry; None if torch has no such dtype."""
    name = TORCH_NAMES.get(entry.dtype)
    if name is None:
        return None
    if entry.dtype != _TWO_IN_ONE:
        return name, entry.shape
    if not entry.shape or entry.shape[-1] % 2:
        return None
    return name, (*entry.shape[:-1], entry.shape[-1] // 2)
