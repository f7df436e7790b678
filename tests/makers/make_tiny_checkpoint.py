"""Writes tests/data/tiny-llama: a Llama of a few kilobytes in the files transformers would save.

    python tests/makers/make_tiny_checkpoint.py tests/data/tiny-llama

Needs torch and safetensors. The shards are written by the safetensors library, the values are a fixed
function of each tensor's name, so that the files come out the same everywhere.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 8,
    "initializer_range": 0.02,
    "intermediate_size": 16,
    "max_position_embeddings": 64,
    "model_type": "llama",
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "num_key_value_heads": 1,
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 32,
}


def shapes() -> dict[str, tuple[int, ...]]:
    hidden, inner, heads = 8, 16, 4
    out: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (32, hidden)}
    for layer in range(2):
        prefix = f"model.layers.{layer}."
        out |= {
            prefix + "input_layernorm.weight": (hidden,),
            prefix + "mlp.down_proj.weight": (hidden, inner),
            prefix + "mlp.gate_proj.weight": (inner, hidden),
            prefix + "mlp.up_proj.weight": (inner, hidden),
            prefix + "post_attention_layernorm.weight": (hidden,),
            prefix + "self_attn.k_proj.weight": (heads, hidden),
            prefix + "self_attn.o_proj.weight": (hidden, hidden),
            prefix + "self_attn.q_proj.weight": (hidden, hidden),
            prefix + "self_attn.v_proj.weight": (heads, hidden),
        }
    return out | {"model.norm.weight": (hidden,), "lm_head.weight": (32, hidden)}


def main(folder: Path) -> None:
    import torch
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for name, shape in shapes().items():
        seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "little")
        count = torch.Size(shape).numel()
        values = (torch.arange(count, dtype=torch.int64) * 7919 + seed) % 1021
        tensors[name] = ((values.float() - 510) / 16384).to(torch.bfloat16).reshape(shape)
    names = list(tensors)
    shards = {"model-00001-of-00002.safetensors": names[:10], "model-00002-of-00002.safetensors": names[10:]}
    for file, held in shards.items():
        save_file({name: tensors[name] for name in held}, folder / file, metadata={"format": "pt"})
    index = {
        "metadata": {"total_size": sum(tensor.numel() * 2 for tensor in tensors.values())},
        "weight_map": dict(sorted((name, file) for file, held in shards.items() for name in held)),
    }
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
