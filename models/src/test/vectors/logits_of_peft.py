"""Opens adapters that PeftAdapters saved: logits_of_peft.py MODEL_FOLDER ADAPTERS_FOLDER VECTORS.safetensors OUTPUT.safetensors

Needs torch, transformers and peft, no GPU. Fails where PEFT warns that a tensor is missing. Writes the logits of the packed sequences in
VECTORS.
"""
import json
import sys
import warnings

import torch
import transformers
from peft import PeftModel
from safetensors.torch import load_file, save_file

warnings.filterwarnings("error", message=".*missing adapter keys.*")
base, adapters, vectors, output = sys.argv[1:]
vectors = load_file(vectors)
architecture = json.load(open(base + "/config.json"))["architectures"][0]
model = getattr(transformers, architecture).from_pretrained(base, attn_implementation="eager")
model = PeftModel.from_pretrained(model, adapters).eval()
parts = vectors["ids"].long().split(vectors["lengths"].tolist())
with torch.no_grad():
    logits = [model(input_ids=part[None], attention_mask=torch.ones_like(part)[None]).logits for part in parts]
    logits = [one.reshape(-1, one.shape[-1]) for one in logits]
save_file({"logits": torch.cat(logits).contiguous()}, output)
