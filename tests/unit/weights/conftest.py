"""Small MoE checkpoints, written by the safetensors library from plain tensors."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from hwctl.weights.checkpoint import Checkpoint, open_checkpoint

Tensors = dict[str, torch.Tensor]
WriteMoe = Callable[[Mapping[str, Any], Tensors], Checkpoint]


@pytest.fixture
def write_moe(tmp_path: Path) -> WriteMoe:
    """Write config.json and one weight file; the checkpoint opened."""
    folder = tmp_path / "model"

    def write(config: Mapping[str, Any], tensors: Tensors) -> Checkpoint:
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config))
        save_file(
            {name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors"
        )
        return open_checkpoint(folder)

    return write
