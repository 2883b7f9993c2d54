"""Computes a model of random weights in FP32 and in BF16: half_precision.py KIND SIZE FOLDER OUTPUT.safetensors

KIND is esm, llama or qwen3; SIZE is small, or published: the shapes of ESM-2 650M, Llama-3.2-1B and Qwen3-0.6B. Needs torch and
transformers; takes a GPU where there is one. Writes the model into FOLDER, rounded to BF16, and into OUTPUT the identifiers and lengths of
sequences, labels where the loss is taken, and the logits of these weights in both types.
"""
import sys

import torch
from safetensors.torch import save_file
from transformers import EsmConfig, EsmForMaskedLM, LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

kind, size, folder, output = sys.argv[1:]
published = size == "published"
if kind == "esm":
    shape = dict(hidden_size=1280, num_hidden_layers=33, num_attention_heads=20, intermediate_size=5120) if published else dict(
        hidden_size=64, num_hidden_layers=3, num_attention_heads=4, intermediate_size=256)
    config = EsmConfig(vocab_size=33, pad_token_id=1, mask_token_id=32, max_position_embeddings=1026, position_embedding_type="rotary",
                       emb_layer_norm_before=False, token_dropout=True, layer_norm_eps=1e-5, hidden_dropout_prob=0.0,
                       attention_probs_dropout_prob=0.0, **shape)
    build, vocabulary, first = EsmForMaskedLM, 24, 4
elif kind == "llama":
    shape = dict(vocab_size=128256, hidden_size=2048, num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8,
                 intermediate_size=8192) if published else dict(vocab_size=512, hidden_size=64, num_hidden_layers=3, num_attention_heads=4,
                                                                num_key_value_heads=2, intermediate_size=128)
    config = LlamaConfig(tie_word_embeddings=True, rms_norm_eps=1e-5, max_position_embeddings=2048, rope_parameters=dict(
        rope_type="llama3", rope_theta=500000.0, factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0,
        original_max_position_embeddings=8192), **shape)
    build, vocabulary, first = LlamaForCausalLM, config.vocab_size, 0
else:
    shape = dict(vocab_size=151936, hidden_size=1024, num_hidden_layers=28, num_attention_heads=16, num_key_value_heads=8, head_dim=128,
                 intermediate_size=3072) if published else dict(vocab_size=512, hidden_size=64, num_hidden_layers=3, num_attention_heads=4,
                                                                num_key_value_heads=2, head_dim=32, intermediate_size=128)
    config = Qwen3Config(tie_word_embeddings=True, max_position_embeddings=2048,
                         rope_parameters=dict(rope_type="default", rope_theta=1000000.0), **shape)
    build, vocabulary, first = Qwen3ForCausalLM, config.vocab_size, 0

torch.manual_seed(3)
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.backends.cuda.matmul.allow_tf32 = False
build(config).to(torch.bfloat16).save_pretrained(folder)
generator = torch.Generator().manual_seed(5)
lengths = (97, 64, 30)
ids, labels = [], []
for length in lengths:
    part = torch.randint(first, vocabulary, (length,), generator=generator)
    target = torch.full((length,), -100)
    if kind == "esm":
        part[0], part[-1] = 0, 2
        chosen = torch.rand(length, generator=generator) < 0.2
        chosen[0] = chosen[-1] = False
        target[chosen] = part[chosen]
        part[chosen] = 32
    else:
        target[:-1] = part[1:]
    ids.append(part)
    labels.append(target)


def logits(dtype):
    own = build.from_pretrained(folder, dtype=dtype).to(device).eval()  # a model's own .to(dtype) would round the frequencies of its rotation
    with torch.no_grad():
        return torch.cat([own(input_ids=part[None].to(device), attention_mask=torch.ones_like(part)[None].to(device)).logits[0].float().cpu()
                          for part in ids]).contiguous()


save_file({"half": logits(torch.bfloat16), "whole": logits(torch.float32), "ids": torch.cat(ids).int(), "labels": torch.cat(labels).int(),
           "lengths": torch.tensor(lengths, dtype=torch.int32)}, output)
