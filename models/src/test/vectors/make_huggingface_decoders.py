"""Writes the models and vectors that HuggingFaceDecoderTest reads: make_huggingface_decoders.py FOLDER

Needs torch and transformers (5.17 made what is stored), no GPU. Each folder is a small decoder with random weights as save_pretrained
writes it, and vectors.safetensors: identifiers and labels of packed sequences, the logits of their tokens, the states behind the last norm,
the loss, and the gradient of each parameter, all in FP32 arithmetic of the eager attention. Labels are stored as Chagres wants them: for
each token the one that follows it.
"""
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import (LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM, Qwen2Config, Qwen2ForCausalLM,
                          Qwen3Config, Qwen3ForCausalLM)

LLAMA3 = dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=64)
CASES = {
    "llama": (LlamaForCausalLM, LlamaConfig, dict(num_key_value_heads=1, head_dim=16, rope_parameters=LLAMA3,
                                                  rms_norm_eps=1e-5)),
    "llama-biases": (LlamaForCausalLM, LlamaConfig, dict(
        num_key_value_heads=2, head_dim=16, attention_bias=True, mlp_bias=True, tie_word_embeddings=True,
        rope_parameters=dict(rope_type="linear", rope_theta=10000.0, factor=2.5))),
    "llama2": (LlamaForCausalLM, LlamaConfig, dict()),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, dict(
        num_key_value_heads=1, tie_word_embeddings=True, use_sliding_window=True, sliding_window=7, max_window_layers=1,
        rope_parameters=dict(rope_type="default", rope_theta=1000000.0))),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config, dict(
        num_key_value_heads=1, head_dim=16, rope_parameters=dict(rope_type="default", rope_theta=1000000.0))),
    "qwen3-biases": (Qwen3ForCausalLM, Qwen3Config, dict(
        num_key_value_heads=2, head_dim=8, attention_bias=True, tie_word_embeddings=True, use_sliding_window=True,
        sliding_window=4, layer_types=["sliding_attention", "full_attention"])),
    "mistral": (MistralForCausalLM, MistralConfig, dict(num_key_value_heads=1, head_dim=16, sliding_window=5)),
    "mistral-full": (MistralForCausalLM, MistralConfig, dict(num_key_value_heads=2, sliding_window=None,
                                                             rms_norm_eps=1e-5)),
}
VOCABULARY = 51


def sequences(generator):
    """Lengths, identifiers and labels. The second begins with a prompt, the last one has no token to predict."""
    lengths = (19, 40, 7, 13, 1)
    ids = [torch.randint(0, VOCABULARY, (length,), generator=generator) for length in lengths]
    labels = [part.clone() for part in ids]
    labels[1][:21] = -100
    return lengths, ids, labels


def padded(parts, value, length):
    return torch.stack([torch.nn.functional.pad(part, (0, length - len(part)), value=value) for part in parts])


def write(folder, model_class, config_class, options, seed):
    torch.manual_seed(seed)
    config = config_class(vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
                          max_position_embeddings=128, attn_implementation="eager", bos_token_id=1, eos_token_id=2,
                          **{"num_key_value_heads": 2, **options})
    model = model_class(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Of a size that shows each of them in the logits.
            norm = "norm" in name
            parameter.copy_((1 + 0.2 * torch.randn_like(parameter)) if norm else 0.4 * torch.randn_like(parameter))
    generator = torch.Generator().manual_seed(seed)
    lengths, ids, labels = sequences(generator)
    longest = max(lengths)
    mask = torch.arange(longest)[None, :] < torch.tensor(lengths)[:, None]
    output = model(input_ids=padded(ids, 0, longest), attention_mask=mask.long(), labels=padded(labels, -100, longest),
                   output_hidden_states=True)
    output.loss.backward()
    logits = output.logits[mask]
    shifted = [torch.cat([part[1:], torch.tensor([-100])]) for part in labels]
    vectors = {"lengths": torch.tensor(lengths, dtype=torch.int32), "ids": torch.cat(ids).int(),
               "labels": torch.cat(shifted).int(), "logits": logits.detach().contiguous(),
               "hidden": output.hidden_states[-1][mask].detach().contiguous(), "loss": output.loss.detach().reshape(1)}
    for name, parameter in model.named_parameters():
        vectors["gradient." + name] = parameter.grad.contiguous()
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink()
    save_file(vectors, folder / "vectors.safetensors", metadata={"format": "pt"})
    print(folder, output.loss.item(), logits.abs().max().item(), sorted(vectors)[:3])


for index, (case, (model_class, config_class, options)) in enumerate(CASES.items()):
    target = Path(sys.argv[1]) / case
    target.mkdir(parents=True, exist_ok=True)
    write(target, model_class, config_class, options, index + 1)
