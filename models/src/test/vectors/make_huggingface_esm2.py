"""Writes the models and vectors that HuggingFaceEsm2Test reads: make_huggingface_esm2.py FOLDER

make_huggingface_esm2.py FOLDER contacts writes the contacts of the models in FOLDER alone,
make_huggingface_esm2.py FOLDER CASE... some cases,
make_huggingface_esm2.py FOLDER base the models without a head.

Needs torch and transformers (5.17 made what is stored), no GPU. Each folder is a small ESM-2 with random weights as save_pretrained
writes it, EsmForMaskedLM or a classifier, and vectors.safetensors: identifiers and labels of packed sequences, the logits of their tokens, the
loss, and the gradient of each parameter, all in FP32 arithmetic of the eager attention. Frequencies were rounded to FP16, as
those of the published files.
"""
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import EsmConfig, EsmForMaskedLM, EsmForSequenceClassification, EsmForTokenClassification, EsmModel
from transformers.models.esm.modeling_esm import EsmRotaryEmbedding

MASK, PAD, CLS, EOS = 32, 1, 0, 2
CASES = {
    "token-dropout": dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128,
                          layer_norm_eps=1e-5, token_dropout=True),
    "plain": dict(hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=48,
                  layer_norm_eps=1e-3, token_dropout=False),
    "tokens": dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=1, intermediate_size=64,
                   layer_norm_eps=1e-5, token_dropout=True, num_labels=3),
    "sequences": dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=1, intermediate_size=64,
                      layer_norm_eps=1e-5, token_dropout=True, num_labels=5),
    "regression": dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64,
                       layer_norm_eps=1e-5, token_dropout=True, num_labels=1, problem_type="regression"),
    "multi-label": dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64,
                        layer_norm_eps=1e-5, token_dropout=True, num_labels=3, problem_type="multi_label_classification"),
}
CLASSES = {"tokens": EsmForTokenClassification, "sequences": EsmForSequenceClassification,
           "regression": EsmForSequenceClassification, "multi-label": EsmForSequenceClassification}


def sequences(generator):
    """Packed lengths, identifiers, labels. The third has no mask, the last one is all masks but one token."""
    lengths = (19, 40, 7, 33, 5)
    ids, labels = [], []
    for number, length in enumerate(lengths):
        tokens = torch.randint(4, 24, (length,), generator=generator)
        tokens[0], tokens[-1] = CLS, EOS
        target = torch.full((length,), -100)
        share = {2: 0.0, 4: 1.0}.get(number, 0.3)
        chosen = torch.rand(length, generator=generator) < share
        chosen[0] = False
        target[chosen] = tokens[chosen]
        tokens[chosen] = MASK
        if number == 2:
            target[3] = tokens[3]
        ids.append(tokens)
        labels.append(target)
    return lengths, ids, labels


def padded(parts, value, length):
    return torch.stack([torch.nn.functional.pad(part, (0, length - len(part)), value=value) for part in parts])


def labels_of(case, ids, labels, generator):
    """Of a classifier classes: of each token but the first and last, or of each sequence."""
    if case == "tokens":
        return [torch.cat([torch.tensor([-100]), torch.randint(0, 3, (len(part) - 2,), generator=generator),
                           torch.tensor([-100])]) for part in ids]
    if case == "regression":
        return torch.randn((len(ids),), generator=generator)
    if case == "multi-label":
        return torch.randint(0, 2, (len(ids), 3), generator=generator).float()
    return torch.randint(0, 5, (len(ids),), generator=generator) if case == "sequences" else labels


def write(folder, case, options, seed):
    torch.manual_seed(seed)
    config = EsmConfig(vocab_size=33, mask_token_id=MASK, pad_token_id=PAD, position_embedding_type="rotary",
                       max_position_embeddings=1026, emb_layer_norm_before=False, hidden_dropout_prob=0.0,
                       attention_probs_dropout_prob=0.0, attn_implementation="eager", **options)
    model = CLASSES.get(case, EsmForMaskedLM)(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Of a size that shows each of them in the logits; transformers begins with 0.02, and biases with 0.
            norm = "norm" in name.lower() and name.endswith("weight")
            parameter.copy_((1 + 0.1 * torch.randn_like(parameter)) if norm else 0.2 * torch.randn_like(parameter))
        if case not in CLASSES:
            model.lm_head.bias.copy_(torch.randn_like(model.lm_head.bias))
            model.tie_weights()
        rotary = [module for module in model.modules() if isinstance(module, EsmRotaryEmbedding)]
        for module in rotary:
            module.inv_freq.copy_(module.inv_freq.half().float())
    generator = torch.Generator().manual_seed(seed)
    lengths, ids, labels = sequences(generator)
    labels = labels_of(case, ids, labels, generator)
    longest = max(lengths)
    mask = torch.arange(longest)[None, :] < torch.tensor(lengths)[:, None]
    output = model(input_ids=padded(ids, PAD, longest), attention_mask=mask.long(), labels=padded(labels, -100, longest) if isinstance(labels, list) else labels,
                   output_hidden_states=True)
    output.loss.backward()
    logits = output.logits[mask] if isinstance(labels, list) else output.logits
    vectors = {"lengths": torch.tensor(lengths, dtype=torch.int32), "ids": torch.cat(ids).int(),
               "labels": torch.cat(labels).int() if isinstance(labels, list) else labels if labels.is_floating_point() else labels.int(),
               "logits": logits.detach().contiguous(),
               "hidden": output.hidden_states[-1][mask].detach().contiguous(), "loss": output.loss.detach().reshape(1)}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None and "contact_head" not in name:
            vectors["gradient." + name] = parameter.grad.contiguous()
    model.save_pretrained(folder)
    save_file(vectors, folder / "vectors.safetensors", metadata={"format": "pt"})
    print(folder, output.loss.item(), logits.abs().max().item())


def write_base(folder, pools, seed):
    """A model without a head: the states behind the last norm, and what the pooler makes of them."""
    torch.manual_seed(seed)
    config = EsmConfig(vocab_size=33, mask_token_id=MASK, pad_token_id=PAD, position_embedding_type="rotary",
                       max_position_embeddings=1026, emb_layer_norm_before=False, hidden_dropout_prob=0.0,
                       attention_probs_dropout_prob=0.0, attn_implementation="eager", hidden_size=16, num_hidden_layers=1,
                       num_attention_heads=2, intermediate_size=64, layer_norm_eps=1e-5, token_dropout=True)
    model = EsmModel(config, add_pooling_layer=pools).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(0.2 * torch.randn(parameter.shape, generator=generator) + (1 if "norm" in name.lower() and name.endswith("weight") else 0))
        for module in model.modules():
            if isinstance(module, EsmRotaryEmbedding):
                module.inv_freq.copy_(module.inv_freq.half().float())
    lengths, ids, _ = sequences(generator)
    mask = torch.arange(max(lengths))[None, :] < torch.tensor(lengths)[:, None]
    with torch.no_grad():
        output = model(input_ids=padded(ids, PAD, max(lengths)), attention_mask=mask.long())
    vectors = {"lengths": torch.tensor(lengths, dtype=torch.int32), "ids": torch.cat(ids).int(),
               "hidden": output.last_hidden_state[mask].contiguous()}
    if pools:
        vectors["pooled"] = output.pooler_output.contiguous()
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    save_file(vectors, folder / "vectors.safetensors", metadata={"format": "pt"})


def write_contacts(folder):
    """The contacts of a saved model, of padded sequences without masks: contacts.safetensors has them one after the other."""
    model = EsmForMaskedLM.from_pretrained(folder, attn_implementation="eager").eval()
    generator = torch.Generator().manual_seed(9)
    lengths = (23, 3, 40)
    ids = []
    for length in lengths:
        tokens = torch.randint(4, 24, (length,), generator=generator)
        tokens[0], tokens[-1] = CLS, EOS
        ids.append(tokens)
    mask = (torch.arange(max(lengths))[None, :] < torch.tensor(lengths)[:, None]).long()
    with torch.no_grad():
        contacts = model.predict_contacts(padded(ids, PAD, max(lengths)), mask)
    contacts = [contacts[i, : length - 2, : length - 2].reshape(-1) for i, length in enumerate(lengths)]
    save_file({"lengths": torch.tensor(lengths, dtype=torch.int32), "ids": torch.cat(ids).int(),
               "contacts": torch.cat(contacts)}, folder / "contacts.safetensors", metadata={"format": "pt"})


if sys.argv[2:] == ["contacts"]:
    for case in CASES.keys() - CLASSES.keys():
        write_contacts(Path(sys.argv[1]) / case)
    sys.exit()
if not sys.argv[2:] or sys.argv[2:] == ["base"]:
    write_base(Path(sys.argv[1]) / "base", False, 21)
    write_base(Path(sys.argv[1]) / "base-pooler", True, 22)
for index, (case, options) in enumerate(CASES.items()):
    if sys.argv[2:] and case not in sys.argv[2:]:
        continue
    target = Path(sys.argv[1]) / case
    target.mkdir(parents=True, exist_ok=True)
    write(target, case, options, index + 1)
    if case not in CLASSES:
        write_contacts(target)
