"""Writes the vectors that TransformerLayerVectorsTest compares FP32 with: make_transformer_layer_fp32.py OUTPUT.bin.gz

Needs PyTorch, no GPU. One pre-norm encoder layer over packed sequences with rotary positions, from PyTorch's own
functions and autograd: FP32 inputs and weights, computed in FP64, results rounded to FP32. Format and names as
make_transformer_layer.py has them.
"""
import gzip, struct, sys
import torch
from torch.nn import functional as F

HIDDEN, INNER, HEADS, LENGTHS = 64, 256, 4, (50, 29, 1, 48)
HEAD_DIM = HIDDEN // HEADS
SHAPES = {
    "attention.qkv.norm.weight": (HIDDEN,),
    "attention.qkv.norm.bias": (HIDDEN,),
    "attention.qkv.linear.weight": (3 * HIDDEN, HIDDEN),
    "attention.qkv.linear.bias": (3 * HIDDEN,),
    "attention.projection.weight": (HIDDEN, HIDDEN),
    "attention.projection.bias": (HIDDEN,),
    "mlp.norm.weight": (HIDDEN,),
    "mlp.norm.bias": (HIDDEN,),
    "mlp.fc1.weight": (INNER, HIDDEN),
    "mlp.fc1.bias": (INNER,),
    "mlp.fc2.weight": (HIDDEN, INNER),
    "mlp.fc2.bias": (HIDDEN,),
}


def drawn(*shape, scale=1.0, shift=0.0):
    return (torch.randn(*shape) * scale + shift).double().requires_grad_()


def rotated(x):
    """x [S, h, d]: (a, b) of the two halves -> (a cos - b sin, b cos + a sin), angle = position * 10000^(-2 i / d)."""
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


def layer(x, p):
    def norm(t, name):
        return F.layer_norm(t, (HIDDEN,), p[name + ".weight"], p[name + ".bias"], 1e-5)

    def linear(t, name):
        return F.linear(t, p[name + ".weight"], p[name + ".bias"])

    h = x + linear(attention(linear(norm(x, "attention.qkv.norm"), "attention.qkv.linear")), "attention.projection")
    return h + linear(F.gelu(linear(norm(h, "mlp.norm"), "mlp.fc1"), approximate="tanh"), "mlp.fc2")


def main(output):
    torch.manual_seed(21)
    parameters = {name: drawn(*shape, scale=0.1, shift=1.0 if name.endswith("norm.weight") else 0.0)
                  for name, shape in SHAPES.items()}
    x, dy = drawn(sum(LENGTHS), HIDDEN), drawn(sum(LENGTHS), HIDDEN)
    y = layer(x, parameters)
    y.backward(dy)
    tensors = {"lengths": torch.tensor(LENGTHS, dtype=torch.float32), "x": x, "dy": dy, "y": y, "dx": x.grad}
    for name, parameter in parameters.items():
        tensors[name] = parameter
        tensors["gradient." + name] = parameter.grad
    with gzip.GzipFile(output, "wb", mtime=0) as file:
        for name, tensor in tensors.items():
            values = tensor.detach().float().flatten().numpy().astype("<f4")
            file.write(struct.pack("<i", len(name)) + name.encode() + struct.pack("<i", values.size) + values.tobytes())
    print("PyTorch", torch.__version__, {name: tuple(tensor.shape) for name, tensor in tensors.items()})


main(sys.argv[1])
