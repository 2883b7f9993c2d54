"""Writes the vectors that OptimizerVectorsTest compares with: make_optimizers.py > optimizers.txt

Needs PyTorch 2.10 or newer and transformers. A line is a name and numbers: first weights and gradients of five steps of a matrix "a" [6, 4] and a vector "b" [5], then
their weights after these steps by torch.optim.SGD, Adafactor and Muon, by transformers.Adafactor, and by the published formulas of Lion (Chen et al.,
2023) and schedule-free AdamW (Defazio et al., 2024) in double precision, and the moving average of the weights with decay 0.9; then the numbers of bitsandbytes' dynamic codes, by the
formula of its create_dynamic_map.
"""
import torch
import transformers
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

STEPS, RATE = 5, 0.01
torch.manual_seed(5)
first = {"a": torch.randn(6, 4), "b": torch.randn(5)}
gradients = [{name: torch.randn_like(value) for name, value in first.items()} for _ in range(STEPS)]


def line(name, values):
    print(name, *(repr(float(value)) for value in torch.as_tensor(values).double().flatten()))


def write(method, weights):
    for name, value in weights.items():
        line(f"{method}.{name}", value)


def by_torch(method, make, names=("a", "b"), decayed="a"):
    """Decay applies to the matrix alone."""
    weights = {name: torch.nn.Parameter(first[name].clone()) for name in names}
    optimizers = [make([weight], 0.1 if name == decayed else 0.0) for name, weight in weights.items()]
    for step in gradients:
        for name, weight in weights.items():
            weight.grad = step[name].clone()
        for optimizer in optimizers:
            optimizer.step()
    write(method, {name: weight.detach() for name, weight in weights.items()})


def averaged(method, make, decay=0.9):
    """The average of the weights of by_torch, which begins with the first ones."""
    for name, value in first.items():
        module = torch.nn.ParameterList([torch.nn.Parameter(value.clone())])
        average = AveragedModel(module, multi_avg_fn=get_ema_multi_avg_fn(decay))
        average.update_parameters(module)
        optimizer = make(list(module.parameters()), 0.1 if name == "a" else 0.0)
        for step in gradients:
            module[0].grad = step[name].clone()
            optimizer.step()
            average.update_parameters(module)
        line(f"{method}.{name}", next(average.module.parameters()).detach())


def lion(b1=0.9, b2=0.99, decay=0.1):
    for name, weight in first.items():
        w, m = weight.double(), torch.zeros_like(weight).double()
        for step in gradients:
            g = step[name].double()
            w = w - RATE * ((b1 * m + (1 - b1) * g).sign() + (decay if name == "a" else 0) * w)
            m = b2 * m + (1 - b2) * g
        line(f"lion.{name}", w)


def schedule_free(b1=0.9, b2=0.999, eps=1e-8, decay=0.1):
    for name, weight in first.items():
        y, z, v, total, highest = weight.double(), weight.double(), torch.zeros_like(weight).double(), 0.0, 0.0
        for k, step in enumerate(gradients):
            rate = RATE * (k + 1) / STEPS
            g = step[name].double()
            v = b2 * v + (1 - b2) * g * g
            direction = g / ((v / (1 - b2 ** (k + 1))).sqrt() + eps) + (decay if name == "a" else 0) * y
            highest = max(highest, rate)
            total += highest**2
            c = highest**2 / total
            y = torch.lerp(y, z, c) + direction * (rate * (b1 * (1 - c) - 1))
            z = z - rate * direction
        line(f"schedule_free.y.{name}", y)
        line(f"schedule_free.x.{name}", torch.lerp(y, z, 1 - 1 / b1))


def dynamic_map(signed):
    data = [0.0, 1.0]
    for i in range(7):
        items = 2**i + 1 if signed else 2 ** (i + 1) + 1
        borders = torch.linspace(0.1, 1, items, dtype=torch.float64)
        means = 10.0 ** (i - 6) * (borders[:-1] + borders[1:]) / 2
        data += means.tolist() + ((-means).tolist() if signed else [])
    return sorted(data)


write("first", first)
for number, step in enumerate(gradients):
    write(f"gradient{number}", step)
sgd = torch.optim.SGD
by_torch("sgd", lambda p, decay: sgd(p, lr=RATE, weight_decay=decay))
by_torch("momentum", lambda p, decay: sgd(p, lr=RATE, momentum=0.9, dampening=0.3, weight_decay=decay))
by_torch("nesterov", lambda p, decay: sgd(p, lr=RATE, momentum=0.9, nesterov=True, weight_decay=decay))
by_torch("adafactor", lambda p, decay: torch.optim.Adafactor(p, lr=RATE))
adafactor = transformers.Adafactor
by_torch("adafactor.relative", lambda p, decay: adafactor(p, weight_decay=decay))
by_torch("adafactor.warm_up", lambda p, decay: adafactor(p, weight_decay=decay, warmup_init=True))
by_torch("adafactor.given", lambda p, decay: adafactor(
    p, lr=RATE, beta1=0.9, clip_threshold=0.5, weight_decay=decay, relative_step=False, scale_parameter=False))
averaged("average", lambda p, decay: sgd(p, lr=RATE, momentum=0.9, dampening=0.3, weight_decay=decay))
by_torch("muon", lambda p, decay: torch.optim.Muon(p, lr=RATE, weight_decay=decay), names=("a",))
lion()
schedule_free()
line("signed_codes", dynamic_map(True))
line("unsigned_codes", dynamic_map(False))
