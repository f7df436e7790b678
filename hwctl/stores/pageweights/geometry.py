"""The eleven tensors of a page: their names, the dtypes that load, their rules and their geometry.

Owns everything about a page's tensors that can be told from a safetensors header. Their values are looked
at in ``content``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hwctl.errors import Finding
from hwctl.stores.pageweights.authority import Authority
from hwctl.weights.dtypes import CODES, TORCH_NAMES
from hwctl.weights.safetensors_file import Header

IDS = "page_ids_t"
WEIGHTS = (
    "ffn_mode_t",
    "gate_t",
    "up_t",
    "down_t",
    "glyph_down_t",
    "glyph_up_t",
    "translation_gate_t",
    "outcome_memory_t",
    "repair_memory_t",
    "transfer_memory_t",
)
TENSORS = (IDS, *WEIGHTS)
IDS_DTYPE = "I64"

_LAYOUT_RANKS = (
    *("BOOL", "U8", "I8", "F8_E5M2", "F8_E8M0", "I16", "U16", "F16", "BF16"),
    *("I32", "U32", "F32", "C64", "F64", "I64", "U64"),
)
# The library lays tensors out by this rank, greatest first, then by name: equal content, equal keys.
_RANK = {code: rank for rank, code in enumerate(_LAYOUT_RANKS)}

# float8_e4m3fn and the two fnuz types have no finiteness test in torch, so their pages never load; the
# 4- and 6-bit types have none either, complex32 and complex128 have no safetensors code.
LOADABLE = frozenset(_LAYOUT_RANKS)
"""Safetensors codes of weights that the cache's own program publishes and loads."""


@dataclass(frozen=True, slots=True)
class TensorShape:
    """What a header says of one tensor; ``dtype`` is the safetensors code."""

    name: str
    dtype: str
    shape: tuple[int, ...]


def shapes_of(header: Header) -> list[TensorShape]:
    """The tensors of a sound header."""
    return [TensorShape(entry.name, entry.dtype, entry.shape) for entry in header.tensors]


def torch_name(code: str) -> str:
    """``BF16`` -> ``bfloat16``; a code that torch has no dtype for stands for itself."""
    return TORCH_NAMES.get(code, code).removeprefix("torch.")


def code_of(dtype: str) -> str | None:
    """``bfloat16`` -> ``BF16``, None for a dtype safetensors cannot hold."""
    return CODES.get(f"torch.{dtype}")


def library_order(tensors: Sequence[TensorShape]) -> list[TensorShape]:
    """The order in which the safetensors library writes these tensors."""
    return sorted(tensors, key=lambda tensor: (-_RANK[tensor.dtype], tensor.name))


def geometry_of(tensors: Sequence[TensorShape]) -> dict[str, object]:
    """The ``geometry`` field of a receipt for these tensors."""
    return {t.name: {"shape": list(t.shape), "dtype": torch_name(t.dtype)} for t in tensors}


def judge_set(names: Sequence[str], file: str | None) -> tuple[Finding, ...]:
    """Exactly the eleven names, in any order."""
    missing = [name for name in TENSORS if name not in names]
    further = sorted(name for name in names if name not in TENSORS)
    if not missing and not further:
        return ()
    parts = [f"lacks {', '.join(missing)}"] if missing else []
    # Names from a hostile header: a bound on how many are told, their bytes are escaped where shown.
    parts += [f"has {len(further)} further, {', '.join(further[:5])}"] if further else []
    message = f"the tensor set differs: it {' and '.join(parts)}"
    return (Finding("tensor-set", message, file, list(TENSORS), sorted(names)[:64]),)


def judge_tensors(
    tensors: Sequence[TensorShape], authority: Authority, file: str | None
) -> tuple[Finding, ...]:
    """Rules 1 to 3, as far as dtypes and shapes go: ids one int64, weights of the authority's dtype."""
    return tuple(finding for tensor in tensors for finding in _judge_tensor(tensor, authority, file))


def _judge_tensor(tensor: TensorShape, authority: Authority, file: str | None) -> Iterator[Finding]:
    wanted = IDS_DTYPE if tensor.name == IDS else code_of(authority.dtype)
    if tensor.dtype != wanted:
        expected = authority.dtype if tensor.name != IDS else torch_name(IDS_DTYPE)
        message = f"{tensor.name} is {torch_name(tensor.dtype)}, not {expected}"
        yield Finding("tensor-authority", message, file, expected, torch_name(tensor.dtype))
    elif wanted not in LOADABLE:
        message = f"{tensor.name} is {authority.dtype}, which the cache's own program cannot load"
        yield Finding("tensor-authority", message, file, None, authority.dtype)
    if tensor.name == IDS and tensor.shape != (1,):
        message = f"{IDS} has shape {list(tensor.shape)}, not [1]"
        yield Finding("tensor-authority", message, file, [1], list(tensor.shape))
    elif not tensor.shape or tensor.shape[0] != 1:
        message = f"{tensor.name} has shape {list(tensor.shape)}; the leading extent must be 1"
        yield Finding("tensor-authority", message, file, 1, list(tensor.shape))


def judge_page_id(value: int, authority: Authority, file: str | None) -> tuple[Finding, ...]:
    """The last part of rule 1: the one id is the authority's page."""
    if value == authority.page_id:
        return ()
    message = f"{IDS} holds {value}, the authority says page {authority.page_id}"
    return (Finding("tensor-authority", message, file, authority.page_id, value),)
