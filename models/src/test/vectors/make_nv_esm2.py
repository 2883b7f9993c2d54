"""Writes the models and vectors that NvEsmTest reads: make_nv_esm2.py FOLDER

Needs torch and transformers (5.17 made what is stored), no GPU. NVIDIA's NVEsmForMaskedLM needs Transformer Engine on a GPU; what it computes is
an EsmForMaskedLM whose layers have the GELU by tanh. So this computes with such a one, and writes its weights under the names and in the layout
of NVIDIA's files: a head's queries, keys and values one after the other, a vocabulary of 64 rows in one folder and of 33 in the other.
"""
import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import EsmConfig, EsmForMaskedLM
from transformers.models.esm.modeling_esm import EsmIntermediate

EsmIntermediate.forward = lambda self, x: torch.nn.functional.gelu(self.dense(x), approximate="tanh")
HEADS, HIDDEN, LAYERS, INNER = 2, 32, 2, 64


def interleaved(parts):
    """[3, heads, d, …] becomes [heads, 3, d, …]."""
    rest = parts[0].shape[1:]
    return torch.stack(parts).reshape(3, HEADS, HIDDEN // HEADS, *rest).transpose(0, 1).reshape(3 * HIDDEN, *rest)


def padded(tensor, rows, value):
    return torch.cat([tensor, torch.full((rows - len(tensor), *tensor.shape[1:]), value)])


def nvidia(weights, rows):
    own = {"model.embeddings.word_embeddings.weight": padded(weights["esm.embeddings.word_embeddings.weight"], rows, 0.0),
           "lm_head.decoder.bias": padded(weights["lm_head.bias"], rows, torch.finfo(torch.float32).min)}
    for end in ("weight", "bias"):
        for i in range(LAYERS):
            theirs, layer = f"esm.encoder.layer.{i}.", f"model.encoder.layers.{i}."
            own[layer + "self_attention.layernorm_qkv." + end] = interleaved(
                [weights[theirs + f"attention.self.{name}." + end] for name in ("query", "key", "value")])
            own[layer + "self_attention.layernorm_qkv.layer_norm_" + end] = weights[theirs + "attention.LayerNorm." + end]
            own[layer + "self_attention.proj." + end] = weights[theirs + "attention.output.dense." + end]
            own[layer + "layernorm_mlp.layer_norm_" + end] = weights[theirs + "LayerNorm." + end]
            own[layer + "layernorm_mlp.fc1_" + end] = weights[theirs + "intermediate.dense." + end]
            own[layer + "layernorm_mlp.fc2_" + end] = weights[theirs + "output.dense." + end]
        own["model.encoder.emb_layer_norm_after." + end] = weights["esm.encoder.emb_layer_norm_after." + end]
        own["lm_head.dense." + end] = weights["lm_head.dense." + end]
        own["lm_head.decoder.layer_norm_" + end] = weights["lm_head.layer_norm." + end]
    return {name: tensor.detach().clone().contiguous() for name, tensor in own.items()}


def write(folder, rows, seed):
    torch.manual_seed(seed)
    config = EsmConfig(vocab_size=33, mask_token_id=32, pad_token_id=1, position_embedding_type="rotary", hidden_size=HIDDEN,
                       num_hidden_layers=LAYERS, num_attention_heads=HEADS, intermediate_size=INNER, layer_norm_eps=1e-5,
                       token_dropout=True, max_position_embeddings=1026, emb_layer_norm_before=False, hidden_dropout_prob=0.0,
                       attention_probs_dropout_prob=0.0, attn_implementation="eager")
    model = EsmForMaskedLM(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            norm = "norm" in name.lower() and name.endswith("weight")
            parameter.copy_((1 + 0.1 * torch.randn_like(parameter)) if norm else 0.3 * torch.randn_like(parameter))
        model.tie_weights()
    lengths = (19, 40, 7)
    ids = [torch.cat([torch.tensor([0]), torch.randint(4, 24, (length - 2,)), torch.tensor([2])]) for length in lengths]
    ids[1][5:11] = 32
    logits, hidden = [], []
    with torch.no_grad():
        for one in ids:
            output = model(input_ids=one[None], attention_mask=torch.ones(1, len(one), dtype=torch.long), output_hidden_states=True)
            logits.append(output.logits[0])
            hidden.append(output.hidden_states[-1][0])
    folder.mkdir(parents=True, exist_ok=True)
    save_file(nvidia(dict(model.named_parameters()), rows), folder / "model.safetensors", metadata={"format": "pt"})
    save_file({"lengths": torch.tensor(lengths, dtype=torch.int32), "ids": torch.cat(ids).int(), "logits": torch.cat(logits),
               "hidden": torch.cat(hidden)}, folder / "vectors.safetensors", metadata={"format": "pt"})
    fields = {"architectures": ["NVEsmForMaskedLM"], "model_type": "nv_esm", "vocab_size": 33,
              "mask_token_id": 32, "pad_token_id": 1, "position_embedding_type": "rotary", "hidden_size": HIDDEN,
              "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "intermediate_size": INNER, "layer_norm_eps": 1e-5,
              "token_dropout": True, "max_position_embeddings": 1026, "emb_layer_norm_before": False, "hidden_dropout_prob": 0.0,
              "attention_probs_dropout_prob": 0.0, "hidden_act": "gelu", "encoder_activation": "gelu",
              "qkv_weight_interleaved": True, "fuse_qkv_params": True, "attn_input_format": "bshd", "attn_mask_type": "padding",
              "padded_vocab_size": rows if rows > 33 else None, "dtype": "float32"}
    (folder / "config.json").write_text(json.dumps(fields, indent=2, sort_keys=True) + "\n")


write(Path(sys.argv[1]) / "nv-padded", 64, 1)
write(Path(sys.argv[1]) / "nv-unpadded", 33, 2)
