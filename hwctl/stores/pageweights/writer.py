"""Writing an artifact once: laid out as the safetensors library does, hashed and checked on the way.

Owns the temporary's bytes. Each block is hashed and looked at for infinities on another thread while it is
written here, so that nothing is read back. Names, records and the order of publication are
``publication``'s.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from hwctl.errors import Damaged, Finding, Unsupported
from hwctl.fs.atomic import write_all
from hwctl.stores.base import Advance
from hwctl.stores.pageweights import geometry
from hwctl.stores.pageweights.authority import Authority, unwritable
from hwctl.stores.pageweights.content import FiniteTest, finite_test
from hwctl.stores.pageweights.geometry import IDS, LOADABLE, TensorShape, code_of
from hwctl.stores.pageweights.hashing import Digester
from hwctl.stores.pageweights.memory import BLOCK
from hwctl.stores.pageweights.offers import Offer, OfferedTensor


@dataclass(frozen=True, slots=True)
class ArtifactPlan:
    """An artifact before its first byte: header, tensors in their order, ``size`` in bytes."""

    header: bytes
    tensors: tuple[OfferedTensor, ...]
    size: int
    geometry: dict[str, object]


def judge_offer(offer: Offer, authority: Authority) -> tuple[Finding, ...]:
    """Why these tensors must not be published under this authority, as far as it shows before reading."""
    findings = [*unwritable(authority), *_judge_dtype(authority), *geometry.judge_set(list(offer), None)]
    if findings:
        return tuple(findings)
    findings += geometry.judge_tensors([offer[name].shape for name in geometry.TENSORS], authority, None)
    page_id = offer[IDS].as_int64()
    if page_id is not None and not findings:
        findings += geometry.judge_page_id(page_id, authority, None)
    return tuple(findings)


def _judge_dtype(authority: Authority) -> tuple[Finding, ...]:
    if code_of(authority.dtype) in LOADABLE:
        return ()
    message = f"the cache's own program cannot load weights of dtype {authority.dtype}"
    return (Finding("source-authority", message, None, None, authority.dtype),)


def plan_artifact(offer: Offer) -> ArtifactPlan:
    """Lay out tensors that passed ``judge_offer``: equal content gives equal bytes, hence equal keys."""
    ordered = geometry.library_order([tensor.shape for tensor in offer.values()])
    tensors = tuple(offer[shape.name] for shape in ordered)
    header = _header(tensors)
    size = len(header) + sum(tensor.nbytes for tensor in tensors)
    in_format_order: Sequence[TensorShape] = [offer[name].shape for name in geometry.TENSORS]
    return ArtifactPlan(header, tensors, size, geometry.geometry_of(in_format_order))


def _header(tensors: Sequence[OfferedTensor]) -> bytes:
    """As the library writes it: fields in this order, no metadata, padded with blanks to 8."""
    document: dict[str, object] = {}
    begin = 0
    for tensor in tensors:
        shape, end = tensor.shape, begin + tensor.nbytes
        document[shape.name] = {
            "dtype": shape.dtype,
            "shape": list(shape.shape),
            "data_offsets": [begin, end],
        }
        begin = end
    text = json.dumps(document, separators=(",", ":")).encode("ascii")
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def tests_for(plan: ArtifactPlan) -> dict[str, FiniteTest]:
    """The finiteness test of each dtype in the plan; Unsupported when one needs torch and torch is absent."""
    tests: dict[str, FiniteTest] = {}
    for tensor in plan.tensors:
        code = tensor.shape.dtype
        if tensor.shape.name != IDS and code not in tests:
            test = finite_test(code)
            if test is None:
                raise Unsupported(f"publishing {geometry.torch_name(code)} weights needs torch to check them")
            tests[code] = test
    return tests


def write_artifact(fd: int, plan: ArtifactPlan, tests: dict[str, FiniteTest], advance: Advance) -> str:
    """Write the whole artifact to an empty file and return its SHA-256.

    Raises Damaged (``nonfinite``) at the first NaN or infinity; OSError as met. The caller removes the file.
    """
    with Digester(plan.size) as digester:
        digester.feed(plan.header)
        write_all(fd, plan.header, 0)
        advance(len(plan.header))
        at = len(plan.header)
        for tensor in plan.tensors:
            test = tests.get(tensor.shape.dtype) if tensor.shape.name != IDS else None
            for block in tensor.blocks(BLOCK):
                # Writing takes about as long as hashing and looking together: this splits the work evenly.
                digester.feed(
                    block, None if test is None else partial(_require_finite, test, block, tensor.shape.name)
                )
                write_all(fd, block, at)
                at += len(block)
                advance(len(block))
        return digester.hexdigest()


def digest_of(plan: ArtifactPlan) -> str:
    """The SHA-256 that the artifact would have, without writing it."""
    with Digester(plan.size) as digester:
        digester.feed(plan.header)
        for tensor in plan.tensors:
            for block in tensor.blocks(BLOCK):
                digester.feed(block)
        return digester.hexdigest()


def _require_finite(test: FiniteTest, block: memoryview, name: str) -> None:
    if not test(block):
        message = f"{name} holds a NaN or an infinity"
        raise Damaged(message, (Finding("nonfinite", message),))
