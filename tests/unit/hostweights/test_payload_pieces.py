"""Payloads written in pieces of any order and size: every byte once, and both digests right."""

from __future__ import annotations

import hashlib
import itertools
import os
import random
from pathlib import Path

import pytest

from hwctl.errors import Usage
from hwctl.stores.hostweights.tensors import TensorSpec, plan_payloads
from hwctl.stores.hostweights.writer import ArtifactWriter

NAME = "model.safetensors"
SIZES = (0, 1, 5, 3000, 40_000, 100_000)


def admit(*_sizes: int) -> None:
    """There is always room."""


@pytest.mark.parametrize("seed", range(40))
def test_pieces_in_any_order(seed: int, tmp_path: Path) -> None:
    rnd = random.Random(seed)
    specs = [TensorSpec(f"t{number}", "torch.uint8", (rnd.choice(SIZES),), NAME) for number in range(5)]
    data = {spec.name: rnd.randbytes(spec.shape[0]) for spec in specs}
    pieces = []
    for name, whole in data.items():
        cuts = {0, len(whole), *(rnd.randint(0, len(whole)) for _ in range(rnd.choice((0, 0, 2))))}
        pieces += [(name, begin, end) for begin, end in itertools.pairwise(sorted(cuts))]
    rnd.shuffle(pieces)
    folder = os.open(tmp_path, os.O_RDONLY)
    writer = ArtifactWriter(folder, plan_payloads(specs), admit)
    try:
        writer.reserve()
        payload = writer.open(NAME)
        for name, begin, end in pieces:
            piece = memoryview(data[name])[begin:end]
            payload.put(name, begin, piece).wait()
            if rnd.random() < 0.2:
                with pytest.raises(Usage, match="written before"):
                    payload.put(name, begin, piece)
        payload.close()
        tensors, (file,) = writer.finish()
    finally:
        writer.close()
        os.close(folder)
    assert {entry.name: entry.sha256 for entry in tensors} == {
        name: hashlib.sha256(whole).hexdigest() for name, whole in data.items()
    }
    assert file.sha256 == hashlib.sha256((tmp_path / NAME).read_bytes()).hexdigest()


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    specs = [TensorSpec(name, "torch.uint8", (4,), NAME) for name in "abc"]
    folder = os.open(tmp_path, os.O_RDONLY)
    writer = ArtifactWriter(folder, plan_payloads(specs), admit)
    try:
        writer.reserve()
        payload = writer.open(NAME)
        payload.write_tensor("a", b"1234")
        payload.put("b", 1, memoryview(b"234")).wait()
        with pytest.raises(Usage, match=r"2 tensors are incomplete, first 'b'"):
            payload.close()
    finally:
        writer.close()
        os.close(folder)
