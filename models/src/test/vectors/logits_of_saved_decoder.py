"""Opens a folder that DecoderCheckpoint saved: logits_of_saved_decoder.py FOLDER VECTORS.safetensors OUTPUT.safetensors

Needs torch and transformers, 4.x or 5.x, no GPU. Fails where a tensor that the model computes with is missing or unexpected. Writes the
logits of the packed sequences in VECTORS.
"""
import json
import sys

import torch
from safetensors.torch import load_file, save_file
import transformers
from transformers import AutoModelForCausalLM

folder, vectors, output = sys.argv[1:]
vectors = load_file(vectors)
architecture = json.load(open(folder + "/config.json"))["architectures"][0]
model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, attn_implementation="eager")
model.eval()
print(type(model).__name__, info, model.config)
assert isinstance(model, getattr(transformers, architecture))
assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"], info
parts = vectors["ids"].long().split(vectors["lengths"].tolist())
with torch.no_grad():
    logits = [model(input_ids=part[None]).logits[0] for part in parts]
save_file({"logits": torch.cat(logits).contiguous()}, output)
