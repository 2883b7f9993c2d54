"""Writes the vectors that SequencePoolingConformance compares with: make_sequence_pool.py > sequence_pool.txt

Needs PyTorch 2.10 or newer. A line is a name and numbers: x [9, 3] of packed sequences of 4, 1 and 4 tokens, dy [3, 3], and of mean, first and
largest of each sequence the result and the gradient of x, by torch.mean, indexing and torch.max, in double precision.
"""
import torch

torch.manual_seed(3)
x = torch.randn(9, 3).double().requires_grad_()
dy = torch.randn(3, 3).double()
kinds = {
    "MEAN": lambda rows: rows.mean(0),
    "FIRST": lambda rows: rows[0],
    "MAX": lambda rows: rows.max(0).values,
}


def line(name, values):
    print(name, *(repr(float(value)) for value in values.flatten()))


line("x", x.detach())
line("dy", dy)
for name, pool in kinds.items():
    y = torch.stack([pool(rows) for rows in x.split([4, 1, 4])])
    line(f"{name}.y", y.detach())
    line(f"{name}.dx", torch.autograd.grad(y, x, dy)[0])
