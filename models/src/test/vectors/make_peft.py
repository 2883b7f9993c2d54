"""Writes the adapters and vectors that PeftAdaptersTest and PeftDecodersTest read: make_peft.py HUGGINGFACE_FOLDER FOLDER [CASE...]

Needs torch, transformers and peft (0.21 made what is stored), no GPU. HUGGINGFACE_FOLDER has the models of make_huggingface_esm2.py
and make_huggingface_decoders.py. Each
folder of FOLDER has adapters of one of them as PEFT's save_pretrained writes them, with random numbers in A, B and the saved head, and
vectors.safetensors: logits, loss, and the gradients of all that is trained, for the packed sequences of the model's own vectors.
"""
import sys
from pathlib import Path

import torch
from peft import LoraConfig, TaskType, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import EsmForSequenceClassification, EsmForTokenClassification, LlamaForCausalLM, Qwen3ForCausalLM

CASES = {
    "all-products": ("sequences", EsmForSequenceClassification, dict(
        task_type=TaskType.SEQ_CLS, r=4, lora_alpha=8,
        target_modules=["query", "key", "value", "attention.output.dense", "intermediate.dense", r"0.output.dense"])),
    "query-value": ("tokens", EsmForTokenClassification, dict(
        task_type=TaskType.TOKEN_CLS, r=3, lora_alpha=5, use_rslora=True, lora_dropout=0.1,
        target_modules=["query", "value"])),
    "llama-patterns": ("decoders/llama", LlamaForCausalLM, dict(
        task_type=TaskType.CAUSAL_LM, r=4, lora_alpha=8,
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
        rank_pattern={"v_proj": 2, "layers.1.mlp.up_proj": 6}, alpha_pattern={"q_proj": 3, ".*down_proj": 5})),
    "qwen3-query-value": ("decoders/qwen3", Qwen3ForCausalLM, dict(
        task_type=TaskType.CAUSAL_LM, r=3, lora_alpha=5, use_rslora=True, target_modules=["q_proj", "v_proj"])),
}


def write(models, folder, base, kind, options, seed):
    torch.manual_seed(seed)
    vectors = load_file(models / base / "vectors.safetensors")
    model = kind.from_pretrained(models / base, attn_implementation="eager")
    model = get_peft_model(model, LoraConfig(**options)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                parameter.copy_(0.3 * torch.randn_like(parameter))
    lengths = vectors["lengths"].tolist()
    ids = torch.nn.utils.rnn.pad_sequence(vectors["ids"].long().split(lengths), batch_first=True, padding_value=1)
    mask = torch.arange(max(lengths))[None, :] < torch.tensor(lengths)[:, None]
    labels = vectors["labels"].long()
    decodes = base.startswith("decoders/")
    by_token = decodes or base == "tokens"
    if by_token:
        labels = torch.nn.utils.rnn.pad_sequence(labels.split(lengths), batch_first=True, padding_value=-100)
    if decodes:  # labels are those that follow, as Chagres has them
        output = model(input_ids=ids, attention_mask=mask.long())
        output.loss = torch.nn.functional.cross_entropy(output.logits.flatten(0, 1), labels.flatten())
    else:
        output = model(input_ids=ids, attention_mask=mask.long(), labels=labels)
    output.loss.backward()
    logits = output.logits[mask] if by_token else output.logits
    made = {"logits": logits.detach().contiguous(), "loss": output.loss.detach().reshape(1)}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            made["gradient." + name.replace(".default", "").replace(".modules_to_save", "")] = parameter.grad.contiguous()
    model.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    save_file(made, folder / "vectors.safetensors", metadata={"format": "pt"})
    print(folder, output.loss.item(), sorted(load_file(folder / "adapter_model.safetensors")), sorted(made))


for index, (case, (base, kind, options)) in enumerate(CASES.items()):
    if sys.argv[3:] and case not in sys.argv[3:]:
        continue
    target = Path(sys.argv[2]) / case
    target.mkdir(parents=True, exist_ok=True)
    write(Path(sys.argv[1]), target, base, kind, options, index + 1)
