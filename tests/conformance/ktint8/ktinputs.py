"""Deterministic checkpoints for the kt-int8 converter cases, made with integers so that every torch agrees.

A case is a JSON object (see cases.json). `write_checkpoint(case, folder)` writes config.json and the
.safetensors files of the case; `canonical(case, layer)` gives the bf16 matrices (gate, up, down) that the
file form stands for, before quantization, as [experts, rows, cols] tensors.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

M32 = 0xFFFFFFFF


def mix(n: int, seed: int) -> torch.Tensor:
    """n pseudo-random 32-bit integers (int64 tensor)."""
    x = (torch.arange(n, dtype=torch.int64) * 0x9E3779B1 + (seed * 0x7F4A7C15 & M32)) & M32
    x = x ^ (x >> 16)
    x = (x * 0x85EBCA6B) & M32
    x = x ^ (x >> 13)
    x = (x * 0xC2B2AE35) & M32
    return x ^ (x >> 16)


def to_i16(bits: torch.Tensor) -> torch.Tensor:
    return torch.where(bits >= 0x8000, bits - 0x10000, bits).to(torch.int16)


def bf16(bits: torch.Tensor, shape) -> torch.Tensor:
    return to_i16(bits).view(torch.bfloat16).reshape(shape).clone()


def plain_bits(n: int, seed: int) -> torch.Tensor:
    """bf16 patterns: random sign and mantissa, magnitudes from about 0.06 down to 2**-12, rarer going up."""
    h = mix(n, seed)
    low = h & 0xFF
    step = torch.full((n,), 8, dtype=torch.int64)
    for b in range(8):
        step = torch.where((step == 8) & ((low >> b) & 1 == 1), torch.full_like(step, b), step)
    exp = 115 + step
    return ((h >> 31) << 15) | (exp << 7) | ((h >> 8) & 0x7F)


def tie_rows(m: torch.Tensor, seed: int) -> None:
    """Row r: largest magnitude 127*2**e, the others (j+0.5)*2**e: every product is midway of two codes."""
    n, k = m.shape
    for r in range(n):
        e = (r * 5 + seed) % 40 - 20
        j = (torch.arange(k) * 3 + r) % 127
        v = (j.double() + 0.5) * 2.0**e
        v[(r * 7) % k] = 127 * 2.0**e
        v = torch.where((torch.arange(k) + r) % 2 == 1, -v, v)
        m[r] = v.to(torch.float32).to(torch.bfloat16)


def scale_rows(m: torch.Tensor, seed: int) -> None:
    """Row r: the largest magnitude has mantissa (r mod 128), the rest is spread below it."""
    n, k = m.shape
    h = mix(n * k, seed).view(n, k)
    for r in range(n):
        top = ((100 + (r + seed) % 40) << 7) | (r % 128)
        bits = top - (h[r] % 900)
        bits[(r * 11) % k] = top
        m[r] = bf16(bits | (((h[r] >> 20) & 1) << 15), (k,))


def zero_rows(m: torch.Tensor, seed: int) -> None:
    n, k = m.shape
    b = torch.zeros(n, k, dtype=torch.int64)
    b[1::4] = 0x8000
    b[2::4, k - 1] = 0xBF80
    b[3::4] = plain_bits(b[3::4].numel(), seed).view(-1, k)
    m.copy_(bf16(b, (n, k)))


def tiny_rows(m: torch.Tensor, seed: int) -> None:
    """Largest magnitudes around where the scale flushes to zero (pattern 0x03FE), and subnormal entries."""
    n, k = m.shape
    tops = [
        0x0001,
        0x007F,
        0x0080,
        0x0200,
        0x03FC,
        0x03FD,
        0x03FE,
        0x03FF,
        0x0400,
        0x0410,
        0x0440,
        0x0480,
        0x0500,
        0x0700,
    ]
    h = mix(n * k, seed).view(n, k)
    for r in range(n):
        top = tops[(r + seed) % len(tops)]
        bits = (h[r] >> 3) % (top + 1)
        bits[(r * 13) % k] = top
        m[r] = bf16(bits | ((h[r] & 1) << 15), (k,))


def huge_rows(m: torch.Tensor, seed: int) -> None:
    """Outliers: the largest finite bf16, its negative, 2**126, one large value among small ones."""
    n, k = m.shape
    base = plain_bits(n * k, seed).view(n, k)
    pick = [0x7F7F, 0xFF7F, 0x7E80, 0xC6FA, 0x4770, 0xFF00]
    for r in range(n):
        base[r, (r * 17) % k] = pick[r % len(pick)]
        if r % 6 < 2:
            base[r] = torch.where(mix(k, seed + r) % 2 == 0, base[r], (base[r] & 0x80FF) | 0x7E00)
    m.copy_(bf16(base, (n, k)))


def any_rows(m: torch.Tensor, seed: int) -> None:
    """Every finite bf16 pattern may occur anywhere."""
    n, k = m.shape
    h = mix(n * k, seed)
    bits = h & 0xFFFF
    bits = torch.where((bits & 0x7F80) == 0x7F80, bits & 0x807F, bits)
    m.copy_(bf16(bits, (n, k)))


STYLES = {
    "ties": tie_rows,
    "scales": scale_rows,
    "zeros": zero_rows,
    "tiny": tiny_rows,
    "huge": huge_rows,
    "any": any_rows,
}


def shapes(case):
    return {
        "gate": (case["intermediate"], case["hidden"]),
        "up": (case["intermediate"], case["hidden"]),
        "down": (case["hidden"], case["intermediate"]),
    }


def seed_of(case, layer, expert, proj) -> int:
    return case["seed"] * 1009 + layer * 131 + expert * 17 + ("gate", "up", "down").index(proj)


def fp8_parts(case, layer, expert, proj):
    """(e4m3 weight, block scale) of one matrix."""
    r, c = shapes(case)[proj]
    s = seed_of(case, layer, expert, proj)
    b = mix(r * c, s) & 0xFF
    b = torch.where((b & 0x7F) == 0x7F, b ^ 1, b)
    w = b.to(torch.uint8).view(torch.float8_e4m3fn).reshape(r, c).clone()
    br, bc = (r + 127) // 128, (c + 127) // 128
    h = mix(br * bc, s + 7)
    if case.get("scale_style") == "power-of-two":
        bits = (112 + h % 8) << 23
    else:
        bits = ((112 + h % 8) << 23) | ((h >> 8) & 0x7FFFFF)
    scale = bits.to(torch.int32).view(torch.float32).reshape(br, bc).clone()
    if case.get("scale_dtype") == "bf16":
        scale = (scale.view(torch.int32) & -65536).view(torch.float32).to(torch.bfloat16)
    return w, scale


def half_matrix(case, layer, expert, proj) -> torch.Tensor:
    """One fp16 matrix with full 10-bit mantissas; style "any" spreads it over every finite fp16 pattern."""
    r, c = shapes(case)[proj]
    h = mix(r * c, seed_of(case, layer, expert, proj))
    if "any" in case.get("styles", []):
        bits = torch.where((h & 0x7C00) == 0x7C00, h & 0x83FF, h & 0xFFFF)
    else:
        bits = ((h >> 31) << 15) | ((4 + (h >> 12) % 7) << 10) | (h & 0x3FF)
    return to_i16(bits).view(torch.float16).reshape(r, c).clone()


def dequant(w: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """The converter's rule: fp32 product of code and scale, then one rounding to bf16."""
    s = scale.float().repeat_interleave(128, 0)[: w.shape[0]].repeat_interleave(128, 1)[:, : w.shape[1]]
    return (w.float() * s).to(torch.bfloat16)


def matrix(case, layer, expert, proj) -> torch.Tensor:
    """The bf16 matrix that is quantized."""
    if case["dtype"] == "fp8":
        return dequant(*fp8_parts(case, layer, expert, proj))
    if case["dtype"] == "fp16":
        return half_matrix(case, layer, expert, proj).to(torch.bfloat16)
    r, c = shapes(case)[proj]
    s = seed_of(case, layer, expert, proj)
    m = bf16(plain_bits(r * c, s), (r, c))
    for style in case.get("styles", []):
        STYLES[style](m, s % 9973)
    if case.get("zero_expert") == expert:
        m.zero_()
    return m


def canonical(case, layer):
    return tuple(
        torch.stack([matrix(case, layer, e, p) for e in range(case["experts"])])
        for p in ("gate", "up", "down")
    )


def tensors(case) -> dict:
    """The checkpoint's tensors, by name."""
    out, form, prefix = {}, case["form"], case.get("prefix", "model.")
    for layer in list(case["layers"]) + list(case.get("beyond", [])):
        base = f"{prefix}layers.{layer}."
        if form in ("fused-hk", "fused-nk"):
            g, u, d = canonical(case, layer)
            gu = torch.cat([g, u], 1)
            if form == "fused-hk":
                gu, d = gu.transpose(1, 2), d.transpose(1, 2)
            out[base + "mlp.experts.gate_up_proj"] = gu.contiguous()
            out[base + "mlp.experts.down_proj"] = d.contiguous()
            continue
        mod, names = (
            ("block_sparse_moe", ("w1", "w3", "w2"))
            if form == "mixtral"
            else ("mlp", ("gate_proj", "up_proj", "down_proj"))
        )
        for e in range(case["experts"]):
            for proj, name in zip(("gate", "up", "down"), names, strict=True):
                key = f"{base}{mod}.experts.{e}.{name}.weight"
                if case["dtype"] == "fp8":
                    out[key], out[key + "_scale_inv"] = fp8_parts(case, layer, e, proj)
                elif case["dtype"] == "fp16":
                    out[key] = half_matrix(case, layer, e, proj)
                else:
                    out[key] = matrix(case, layer, e, proj)
    for name, shape in (
        ("model.embed_tokens.weight", (4, 8)),
        ("model.layers.0.mlp.shared_experts.up_proj.weight", (4, 8)),
    ):
        out[name] = bf16(plain_bits(32, 5), shape)
    return out


def config(case) -> dict:
    text = {
        "hidden_size": case["hidden"],
        "num_hidden_layers": case.get("hidden_layers", max(case["layers"]) + 1),
        "num_experts_per_tok": min(2, case["experts"]),
    }
    text[case.get("experts_key", "num_experts")] = case["experts"]
    text[case.get("size_key", "moe_intermediate_size")] = case["intermediate"]
    text.update(case.get("config_extra", {}))
    if case["dtype"] == "fp8":
        text["quantization_config"] = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}
    head = {"model_type": case["model_type"], "architectures": [case["architecture"]]}
    return {**head, "text_config": text} if case.get("nested_config") else {**head, **text}


def write_checkpoint(case, folder) -> None:
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    t = tensors(case)
    (folder / "config.json").write_text(json.dumps(config(case), indent=1) + "\n")
    shards = case.get("shards", 1)
    if shards == 1:
        save_file(t, folder / "model.safetensors")
        return
    names, where = sorted(t), {}
    for i in range(shards):
        part = {k: t[k] for k in names[i::shards]}
        fn = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        save_file(part, folder / fn)
        where.update(dict.fromkeys(part, fn))
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": where}, indent=0) + "\n"
    )
    if case.get("orphan_shard"):
        save_file(
            {k: torch.zeros_like(v) for k, v in t.items() if "experts.0." in k},
            folder / "model-99999-of-99999.safetensors",
        )
