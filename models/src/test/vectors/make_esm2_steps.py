"""Writes the training steps that Esm2StepsTest repeats: make_esm2_steps.py OUTPUT.json

Needs PyTorch, no GPU. A small ESM-2 (embedding, pre-norm encoder layers with rotary positions, norm, head with tied
decoder), packed sequences, masked cross-entropy, gradients clipped to norm 1, torch.optim.AdamW; in FP64 from FP32
weights. The weights come from a formula that the test repeats; losses, gradient norms and some final weights are stored.
"""
import json, math, sys
import numpy as np
import torch
from torch.nn import functional as F

VOCABULARY, CLASSES, HIDDEN, LAYERS, HEADS = 64, 33, 64, 2, 4
HEAD_DIM = HIDDEN // HEADS
LENGTHS = (37, 1, 64, 26)
RATES = (1e-3, 2e-3, 2e-3, 1.5e-3, 1e-3, 5e-4)
STORED = 4


def shapes():
    result = {"embedding.weight": (VOCABULARY, HIDDEN)}
    for i in range(LAYERS):
        for name, shape in {
            "attention.qkv.norm": None, "attention.qkv.linear": (3 * HIDDEN, HIDDEN),
            "attention.projection": (HIDDEN, HIDDEN), "mlp.norm": None,
            "mlp.fc1": (4 * HIDDEN, HIDDEN), "mlp.fc2": (HIDDEN, 4 * HIDDEN),
        }.items():
            result[f"layers.{i}.{name}.weight"] = shape or (HIDDEN,)
            result[f"layers.{i}.{name}.bias"] = shape[:1] if shape else (HIDDEN,)
    for name in ("norm", "head.norm"):
        result[name + ".weight"] = result[name + ".bias"] = (HIDDEN,)
    result["head.dense.weight"] = (HIDDEN, HIDDEN)
    result["head.dense.bias"] = (HIDDEN,)
    result["head.decoder.bias"] = (VOCABULARY,)
    return result


def first_weights(name, shape):
    """Element i: 0.1 * (2 f - 1), and 1 more in a norm's weight; f is the part behind the point of
    43758.5453 * |sin(12.9898 (i + 1) + length of the name)|."""
    i = np.arange(1, math.prod(shape) + 1, dtype=np.float64)
    fraction = np.modf(43758.5453 * np.abs(np.sin(12.9898 * i + len(name))))[0]
    values = 0.1 * (2 * fraction - 1) + (1.0 if name.endswith("norm.weight") else 0.0)
    return torch.from_numpy(values.astype(np.float32).astype(np.float64).reshape(shape)).requires_grad_()


def rotated(x):
    half = HEAD_DIM // 2
    frequency = 10000.0 ** (-2.0 * torch.arange(half, dtype=torch.float64) / HEAD_DIM)
    angle = torch.outer(torch.arange(x.shape[0], dtype=torch.float64), frequency)[:, None, :]
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), dim=-1)


def attention(qkv):
    outputs = []
    for part in qkv.split(LENGTHS):
        q, k, v = part.view(-1, 3, HEADS, HEAD_DIM).unbind(1)
        q, k, v = (t.transpose(0, 1)[None] for t in (rotated(q), rotated(k), v))
        outputs.append(F.scaled_dot_product_attention(q, k, v)[0].transpose(0, 1).reshape(-1, HIDDEN))
    return torch.cat(outputs)


def loss_of(p, ids, labels):
    def norm(t, name):
        return F.layer_norm(t, (HIDDEN,), p[name + ".weight"], p[name + ".bias"], 1e-5)

    def linear(t, name):
        return F.linear(t, p[name + ".weight"], p[name + ".bias"])

    def gelu(t):
        return F.gelu(t, approximate="tanh")

    x = F.embedding(ids, p["embedding.weight"])
    for i in range(LAYERS):
        at = f"layers.{i}."
        x = x + linear(attention(linear(norm(x, at + "attention.qkv.norm"), at + "attention.qkv.linear")),
                       at + "attention.projection")
        x = x + linear(gelu(linear(norm(x, at + "mlp.norm"), at + "mlp.fc1")), at + "mlp.fc2")
    x = norm(gelu(linear(norm(x, "norm"), "head.dense")), "head.norm")
    logits = F.linear(x, p["embedding.weight"], p["head.decoder.bias"])
    return F.cross_entropy(logits[:, :CLASSES], labels, ignore_index=-1)


def main(output):
    generator = torch.Generator().manual_seed(22)
    ids = torch.randint(0, CLASSES, (sum(LENGTHS),), generator=generator)
    labels = torch.where(torch.rand(ids.shape, generator=generator) < 0.3,
                         torch.randint(0, CLASSES, ids.shape, generator=generator), -1)
    p = {name: first_weights(name, shape) for name, shape in shapes().items()}
    optimizer = torch.optim.AdamW([{"params": [t for t in p.values() if t.dim() == 2], "weight_decay": 0.01},
                                   {"params": [t for t in p.values() if t.dim() == 1], "weight_decay": 0.0}],
                                  betas=(0.9, 0.98), eps=1e-8)
    losses, norms = [], []
    for rate in RATES:
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad()
        loss = loss_of(p, ids, labels)
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(p.values(), 1.0).item())
        losses.append(loss.item())
        optimizer.step()
    stored = {"torch": torch.__version__, "lengths": LENGTHS, "ids": ids.tolist(), "labels": labels.tolist(),
              "rates": RATES, "losses": losses, "gradientNorms": norms,
              "weights": {name: t.detach().flatten()[:STORED].tolist() for name, t in p.items()},
              "weightNorms": {name: t.detach().norm().item() for name, t in p.items()}}
    with open(output, "w") as file:
        json.dump(stored, file, indent=0)
        file.write("\n")
    print(losses, norms)


main(sys.argv[1])
