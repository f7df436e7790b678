"""What is to be published: eleven tensors whose bytes can be walked through, from memory or from a file.

Owns getting at the bytes without a copy of the page. Whether the tensors may be published is judged in
``geometry``, with the same rules as for reading.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hwctl.errors import Damaged, Finding, NotFound, Refused, from_os_error
from hwctl.fs.paths import NotRegular, identity, open_regular, real
from hwctl.stores.pageweights.geometry import WEIGHTS, TensorShape, code_of, torch_name
from hwctl.stores.pageweights.memory import Ring
from hwctl.weights.safetensors_file import Header, read_header
from hwctl.weights.tensor_layout import TensorEntry

if TYPE_CHECKING:
    import torch

Blocks = Callable[[int], Iterator[memoryview]]
"""The bytes of a tensor in writable stretches of at most so many bytes; each stays as it is until three
further ones were taken."""


@dataclass(frozen=True, slots=True)
class OfferedTensor:
    """One tensor: what it is, its size in bytes, and a way to its bytes."""

    shape: TensorShape
    nbytes: int
    blocks: Blocks

    def as_int64(self) -> int | None:
        """The value of a tensor of eight bytes, None for any other."""
        if self.nbytes != 8:
            return None
        return int.from_bytes(b"".join(self.blocks(self.nbytes)), "little", signed=True)


Offer = Mapping[str, OfferedTensor]
"""Tensors by name."""


def from_torch(weights: Mapping[str, torch.Tensor]) -> Offer:
    """Tensors in memory, walked in place; one that is not contiguous is copied when its turn comes.

    Raises Damaged, with the reason word ``tensor-authority``, for tensors that are not plain CPU memory or
    want a gradient.
    """
    import torch

    findings = tuple(_judge_torch(weights, torch.strided))
    if findings:
        raise Damaged(findings[0].message, findings)
    return {name: _offered(name, tensor.detach()) for name, tensor in weights.items()}


def _judge_torch(weights: Mapping[str, torch.Tensor], strided: torch.layout) -> Iterator[Finding]:
    for name, tensor in weights.items():
        reasons = []
        if tensor.device.type != "cpu":
            reasons.append(f"is on {tensor.device.type}, not on the CPU")
        if tensor.layout is not strided:
            reasons.append(f"has the layout {tensor.layout}")
        if tensor.requires_grad:
            reasons.append("wants a gradient")
        if code_of(_dtype_name(tensor)) is None:
            reasons.append(f"is {_dtype_name(tensor)}, which no safetensors file holds")
        yield from (Finding("tensor-authority", f"{name} {reason}") for reason in reasons)


def _dtype_name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _offered(name: str, tensor: torch.Tensor) -> OfferedTensor:
    code = code_of(_dtype_name(tensor))
    assert code is not None  # judged before
    shape = TensorShape(name, code, tuple(tensor.shape))
    return OfferedTensor(shape, tensor.numel() * tensor.element_size(), partial(_tensor_blocks, tensor))


def _tensor_blocks(tensor: torch.Tensor, size: int) -> Iterator[memoryview]:
    # Lazily conjugated or negated views hold other bits than they stand for.
    plain = tensor.resolve_conj().resolve_neg().contiguous()
    total = plain.numel() * plain.element_size()
    if total == 0:
        return
    # torch lends its memory to Python only through numpy, which it does not bring along.
    raw = memoryview((ctypes.c_ubyte * total).from_address(plain.data_ptr())).cast("B")
    for begin in range(0, total, size):
        yield raw[begin : begin + size]


@contextmanager
def from_file(path: Path) -> Iterator[Offer]:
    """The tensors of a safetensors file, read block by block; the file must not change meanwhile.

    Links are followed: a snapshot of a hub consists of them.
    Raises NotFound, Refused for what is no regular file, Damaged with the container's findings, or with
    ``source-changed`` at the end of the with-block.
    """
    with _reading(path):
        fd, before = open_regular(real(path))
    try:
        with _reading(path):
            header = read_header(fd, before.st_size, name=path.name)
        if not isinstance(header, Header):
            raise Damaged(f"{path}: {header[0].message}", header, path=path)
        yield {entry.name: _of_entry(fd, path, header, entry) for entry in header.tensors}
        if identity(os.fstat(fd)) != identity(before):
            raise _changed(path)
    finally:
        os.close(fd)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turns an OSError into what it means for a file that could not be read."""
    try:
        yield
    except FileNotFoundError as exc:
        shown = f"{path}, a link to {real(path)}," if path.is_symlink() else f"{path}"
        raise NotFound(f"{shown} does not exist", path=path) from exc
    except NotRegular as exc:
        raise Refused(f"{path} is a {exc.kind}, not a regular file", path=path) from exc
    except OSError as exc:
        raise from_os_error(exc, f"cannot read {path}", path) from exc


def _of_entry(fd: int, path: Path, header: Header, entry: TensorEntry) -> OfferedTensor:
    shape = TensorShape(entry.name, entry.dtype, entry.shape)
    blocks = partial(_file_blocks, fd, path, header.data_start + entry.begin, entry.nbytes)
    return OfferedTensor(shape, entry.nbytes, blocks)


def _file_blocks(fd: int, path: Path, start: int, total: int, size: int) -> Iterator[memoryview]:
    ring = Ring(total, size)
    for begin in range(0, total, size):
        block = ring.next(min(size, total - begin))
        with _reading(path):
            done = _fill(fd, block, start + begin)
        if done < len(block):
            raise _changed(path)
        yield block


def _fill(fd: int, block: memoryview, offset: int) -> int:
    """How much of ``block`` the file could fill."""
    done = 0
    while done < len(block) and (count := os.preadv(fd, [block[done:]], offset + done)):
        done += count
    return done


def _changed(path: Path) -> Damaged:
    finding = Finding("source-changed", "changed while it was read", path.name)
    return Damaged(f"{path} changed while it was read", (finding,), path=path)


def dtype_of(offer: Offer) -> str | None:
    """The dtype of an offer's weights by their first one, for whoever derives an authority from it."""
    weights = [name for name in WEIGHTS if name in offer]
    return torch_name(offer[weights[0]].shape.dtype) if weights else None
