"""Checkpoints a converter must refuse: a message naming the tensor or key at fault, nothing published.

`cases[id]["build"](folder)` writes the checkpoint; "numa" is the number of parts to ask for.
"""

import json
import os
from pathlib import Path

import ktinputs
import torch
from safetensors.torch import load_file, save_file

BASE = {
    "experts": 2,
    "hidden": 64,
    "intermediate": 64,
    "numa": 1,
    "layers": [0],
    "seed": 41,
    "dtype": "bf16",
    "form": "per-expert",
    "model_type": "qwen3_moe",
    "architecture": "Qwen3MoeForCausalLM",
}
cases: dict = {}


def refuse(cid, what, numa=1, want="refuse"):
    def deco(fn):
        cases[cid] = {"id": cid, "what": what, "numa": numa, "want": want, "build": fn}
        return fn

    return deco


def write(folder, change=None, cfg=None, **case):
    """The base checkpoint after `change(tensors)`, with config keys `cfg` (None removes a key)."""
    c = {**BASE, **case}
    folder = Path(folder)
    ktinputs.write_checkpoint(c, folder)
    if change:
        t = load_file(folder / "model.safetensors")
        t = change(t) or t
        save_file(t, folder / "model.safetensors")
    if cfg:
        p = folder / "config.json"
        d = json.loads(p.read_text())
        d.update(cfg)
        p.write_text(json.dumps({k: v for k, v in d.items() if v is not None}))
    return folder


KEY = "model.layers.0.mlp.experts.{}.{}_proj.weight"


@refuse("r-nan", "one NaN among the weights")
def _(f):
    def ch(t):
        t[KEY.format(1, "up")].view(torch.int16)[5, 9] = 0x7FC0

    write(f, ch)


@refuse("r-width-96", "intermediate size 96 is not a multiple of 64")
def _(f):
    write(f, intermediate=96)


@refuse("r-parts", "128 columns cannot be split into three parts", numa=3)
def _(f):
    write(f, intermediate=128)


@refuse("r-fewer-experts", "config says four experts, the checkpoint has two")
def _(f):
    write(f, cfg={"num_experts": 4})


@refuse("r-truncated-shard", "the second shard, with all of layer 1, is cut short")
def _(f):
    write(f, layers=[0, 1])
    t = load_file(Path(f) / "model.safetensors")
    (Path(f) / "model.safetensors").unlink()
    for i in (0, 1):
        save_file(
            {k: v for k, v in t.items() if f"layers.{i}." in k or (i == 0 and "layers" not in k)},
            Path(f) / f"model-0000{i + 1}-of-00002.safetensors",
        )
    os.truncate(Path(f) / "model-00002-of-00002.safetensors", 100)


@refuse("r-swapped-sizes", "hidden and intermediate sizes exchanged in config.json")
def _(f):
    write(f, hidden=128, cfg={"hidden_size": 64, "moe_intermediate_size": 128})


@refuse(
    "r-fp8-block",
    "fp8 with weight_block_size [64, 64] (support it rightly or refuse)",
    want="refuse or right bytes",
)
def _(f):
    def ch(t):
        for k in list(t):
            if k.endswith("_scale_inv"):
                t[k] = t[k].repeat(2, 2).contiguous()

    write(
        f,
        ch,
        hidden=128,
        intermediate=128,
        dtype="fp8",
        cfg={"quantization_config": {"quant_method": "fp8", "weight_block_size": [64, 64]}},
    )


@refuse("r-fp8-no-scale", "one weight_scale_inv is missing")
def _(f):
    def ch(t):
        del t[KEY.format(0, "down") + "_scale_inv"]

    write(f, ch, hidden=128, intermediate=128, dtype="fp8")


@refuse(
    "r-float32", "float32 weights (round to bf16, or refuse; never reinterpret)", want="refuse or right bytes"
)
def _(f):
    write(f, lambda t: {k: v.float() for k, v in t.items()})


@refuse("r-one-odd-shape", "one up projection has twice the columns")
def _(f):
    def ch(t):
        t[KEY.format(1, "up")] = torch.zeros(64, 128, dtype=torch.bfloat16)

    write(f, ch)


@refuse("r-no-experts", "a dense model")
def _(f):
    write(f, lambda t: {k: v for k, v in t.items() if ".experts." not in k})
