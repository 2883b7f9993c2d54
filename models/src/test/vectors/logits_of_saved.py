"""Opens a folder that Esm2Checkpoint saved: logits_of_saved.py FOLDER VECTORS.safetensors OUTPUT.safetensors

Needs torch and transformers, 4.x or 5.x, no GPU. Fails where a tensor that the model computes with is missing or unexpected, or the
tokenizer differs. Writes the logits of the packed sequences in VECTORS.
"""
import json
import sys

import torch
from safetensors.torch import load_file, save_file
import transformers
from transformers import AutoTokenizer

folder, vectors, output = sys.argv[1:]
vectors = load_file(vectors)
architecture = json.load(open(folder + "/config.json"))["architectures"][0]
base = architecture == "EsmModel"
auto = transformers.AutoModel if base else getattr(transformers, "AutoModel" + architecture.removeprefix("Esm"))
options = {"add_pooling_layer": "pooled" in vectors} if base else {}
model, info = auto.from_pretrained(folder, output_loading_info=True, attn_implementation="eager", **options)
model.eval()
print(type(model).__name__, info)
missing = [name for name in info["missing_keys"] if "contact_head" not in name and "position_embeddings" not in name]
assert isinstance(model, getattr(transformers, architecture)) and not missing, missing
assert not info["unexpected_keys"] and not info["mismatched_keys"], info

tokenizer = AutoTokenizer.from_pretrained(folder)
assert tokenizer("MKV<mask>A")["input_ids"] == [0, 20, 15, 7, 32, 5, 2], tokenizer("MKV<mask>A")
assert tokenizer.convert_tokens_to_ids(["<cls>", "<pad>", "<eos>", "<unk>", "L", "<null_1>", "<mask>"]) == [0, 1, 2, 3, 4, 31, 32]
assert tokenizer.pad_token_id == 1 and tokenizer.mask_token_id == 32

parts = vectors["ids"].long().split(vectors["lengths"].tolist())
if base:
    with torch.no_grad():
        outputs = [model(input_ids=part[None], attention_mask=torch.ones_like(part)[None]) for part in parts]
    found = {"logits": torch.cat([one.last_hidden_state[0] for one in outputs]).contiguous()}
    if "pooled" in vectors:
        found["pooled"] = torch.cat([one.pooler_output for one in outputs]).contiguous()
    save_file(found, output)
    sys.exit()
with torch.no_grad():
    logits = [model(input_ids=part[None], attention_mask=torch.ones_like(part)[None]).logits.reshape(-1, model.config.num_labels if "Classification" in architecture else 33) for part in parts]
save_file({"logits": torch.cat(logits).contiguous()}, output)
