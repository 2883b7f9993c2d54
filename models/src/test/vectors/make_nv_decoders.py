"""Writes the models and vectors that NvDecoderTest reads: make_nv_decoders.py FOLDER

Needs torch and transformers (5.17 made what is stored), no GPU. NVIDIA's NVLlamaForCausalLM and NVQwen3ForCausalLM need Transformer Engine on a
GPU; what they compute is what the models of transformers compute. So this computes with those, and writes their weights under the names and in
the layout of NVIDIA's files: for each key head its query heads, the key, the value; gate, then up; norms beside the products behind them.
"""
import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

HEADS, KEYS, LAYERS = 4, 2, 2
SIZES = dict(vocab_size=51, num_hidden_layers=LAYERS, num_attention_heads=HEADS, num_key_value_heads=KEYS,
             intermediate_size=24, max_position_embeddings=128, attn_implementation="eager", bos_token_id=1, eos_token_id=2)
CASES = {
    "llama": (LlamaForCausalLM, LlamaConfig, dict(hidden_size=32, head_dim=8, rms_norm_eps=1e-5, rope_parameters=dict(
        rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64))),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config, dict(hidden_size=16, head_dim=8, tie_word_embeddings=True,
                                                  rope_parameters=dict(rope_type="default", rope_theta=1000000.0))),
}


def by_group(query, key, value):
    """For each key head its query heads, the key head, the head of its values."""
    head = len(key) // KEYS
    rows = []
    for group in range(KEYS):
        rows += [query[group * head * (HEADS // KEYS):(group + 1) * head * (HEADS // KEYS)],
                 key[group * head:(group + 1) * head], value[group * head:(group + 1) * head]]
    return torch.cat(rows)


def nvidia(weights):
    own = {name: weights[name] for name in ("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight") if name in weights}
    for i in range(LAYERS):
        layer = f"model.layers.{i}."
        theirs, mlp = layer + "self_attn.", layer + "mlp."
        own[layer + "self_attention.layernorm_qkv.layer_norm_weight"] = weights[layer + "input_layernorm.weight"]
        own[layer + "self_attention.layernorm_qkv.weight"] = by_group(
            *(weights[theirs + name + "_proj.weight"] for name in "qkv"))
        for norm in ("q_norm", "k_norm"):
            if theirs + norm + ".weight" in weights:
                own[layer + "self_attention." + norm + ".weight"] = weights[theirs + norm + ".weight"]
        own[layer + "self_attention.proj.weight"] = weights[theirs + "o_proj.weight"]
        own[layer + "layernorm_mlp.layer_norm_weight"] = weights[layer + "post_attention_layernorm.weight"]
        own[layer + "layernorm_mlp.fc1_weight"] = torch.cat([weights[mlp + "gate_proj.weight"], weights[mlp + "up_proj.weight"]])
        own[layer + "layernorm_mlp.fc2_weight"] = weights[mlp + "down_proj.weight"]
    return {name: tensor.detach().clone().contiguous() for name, tensor in own.items()}


def write(folder, model_class, config_class, options, seed):
    torch.manual_seed(seed)
    model = model_class(config_class(**SIZES, **options)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_((1 if "norm" in name else 0) + (0.1 if "norm" in name else 0.3) * torch.randn_like(parameter))
    lengths = (19, 7, 1)
    parts = [torch.randint(0, 51, (length,)) for length in lengths]
    with torch.no_grad():
        logits = torch.cat([model(input_ids=part[None]).logits[0] for part in parts])
    config = model.config.to_dict()
    config.update(architectures=["NV" + model_class.__name__], attn_input_format="thd", self_attn_mask_type="padding_causal",
                  layer_precision=None, use_quantized_model_init=False, dtype="float32")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    weights = dict(model.state_dict())
    if model.config.tie_word_embeddings:
        del weights["lm_head.weight"]
    save_file(nvidia(weights), folder / "model.safetensors", metadata={"format": "pt"})
    save_file({"lengths": torch.tensor(lengths, dtype=torch.int32), "ids": torch.cat(parts).int(), "logits": logits.contiguous()},
              folder / "vectors.safetensors", metadata={"format": "pt"})


for index, (case, (model_class, config_class, options)) in enumerate(CASES.items()):
    write(Path(sys.argv[1]) / case, model_class, config_class, options, index + 41)
