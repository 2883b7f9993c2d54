"""Compares what WriteCases wrote with Transformer Engine for PyTorch:

    compare_with_te.py FOLDER COUNT OUTPUT.csv [FIRST STRIDE]

Needs an NVIDIA GPU and Transformer Engine for PyTorch 2.20.2. Of every case TE gets the same weights and inputs (te_side.py). A line is
written for each: the arguments, and ||ours - TE|| / ||TE|| of the output, of the input's gradients and of the gradient of that
parameter which is furthest. A case that TE refuses is kept with what TE said. OUTPUT.csv.results.csv has a line for each result. Files may
still be being written; FIRST and STRIDE share the work among processes. summarize_te.py counts what the files of all have.

Where a gradient is cast to E5M2 twice on its way, and where a derivative jumps, one BF16 rounding moves it by several percent.
TE therefore runs a second time over inputs, x and memory, that are moved by up to one BF16 rounding. Where products run in eight
bits it runs a third time in BF16, which shows what eight bits cost; where it trains a layer, in FP32, which shows what 16 and eight bits
cost. Where it computes attention in PyTorch, which rounds scores to BF16, it runs once more with that attention in FP32. A result fails
when it is further from TE's than the limit and than 1.5 times what TE is from itself; where TE ran in a wider type, when it is also
further from that than 1.25 times what TE's first run is.
"""
import csv, json, os, sys, time
from typing import NamedTuple

import torch

import te_side

COLUMNS = ("case", "seed", "kind", "precision", "layer", "call", "attention", "refused", "y", "dx", "dmemory", "furthest", "of",
           "TE itself", "from wider", "TE from wider", "beyond the limit", "furthest from FP32 scores", "beyond with FP32 scores", "failed")
RESULTS = ("case", "precision", "result", "ours", "TE itself", "from wider", "TE from wider")
LIMITS = {"fp32": 1e-4, "bf16": 1e-2, "fp8-delayed": 6e-2, "fp8-current": 6e-2, "fp8-block": 6e-2}
# Moments in BF16 are rounded in each step, and a rounding that goes the other way shows in an FP32 weight.
BF16_MOMENTS = 1e-2
# Adding one number to all scores of a query changes nothing: without a rotation the gradient of a bias of the keys is 0 but for
# rounding. It is compared together with that of the queries.
TOGETHER = {f"{part}.qk_norm.bias": (f"{part}.q_norm.bias", f"{part}.k_norm.bias")
            for part in ("self_attention", "inter_attention")}


def apart(actual, expected):
    size = expected.double().norm().item()
    difference = (actual.double() - expected.double()).norm().item()
    return difference / size if size else difference


def moved(tensor, generator):
    """The tensor with each element moved by up to one BF16 rounding."""
    moves = torch.rand(tensor.shape, generator=generator, device="cuda") * 2**-7 - 2**-8
    return (tensor.float() * (1 + moves)).bfloat16()


def together(results):
    for both, names in TOGETHER.items():
        if names[0] in results:
            results[both] = torch.cat([results.pop(name).flatten() for name in names])
    return results


class Distance(NamedTuple):
    """Of one result: ours from TE, TE from itself over a moved input, and ours and TE from TE in a wider type, where it has run in one."""
    ours: float
    itself: float
    ours_from_wider: float
    te_from_wider: float

    def fails(self, limit):
        return not self.ours <= max(limit, 1.5 * self.itself) and not 0 < self.ours_from_wider <= 1.25 * self.te_from_wider


def wider(layer, call, tensors, x, memory):
    """TE's results in BF16 instead of eight bits, or of a trained layer in FP32; None for others."""
    if "adam" in call:
        return te_side.theirs(layer, call | {"recipe": None}, tensors, x.float(), None if memory is None else memory.float())
    if call.get("recipe") is None:
        return None
    last = {name: call[name][-1:] for name in ("steps", "gradients") if name in call}
    return te_side.theirs(layer, call | {"recipe": None} | last, tensors, x, memory)


def compare(layer, call, tensors):
    """By result the distances."""
    x, memory = tensors["x"], tensors.get("memory")
    expected = te_side.theirs(layer, call, tensors, x, memory)
    actual = te_side.ours(layer, call, tensors, expected)
    again = dict(expected)
    if call["kind"] in ("layer", "norm-output"):
        generator = torch.Generator("cuda").manual_seed(call["seed"] % 2**31)
        again = te_side.theirs(layer, call, tensors, moved(x, generator),
                               None if memory is None else moved(memory, generator))
    expected, actual, again = together(expected), together(actual), together(again)
    whole = wider(layer, call, tensors, x, memory)
    costs = {name: (0, 0) for name in expected}
    if whole is not None:
        whole = together(whole)
        costs = {name: (apart(actual[name], whole[name]), apart(expected[name], whole[name])) for name in expected}
    return {name: Distance(apart(actual[name], expected[name]), apart(again[name], expected[name]), *costs[name])
            for name in expected}


def from_fp32_scores(layer, call, tensors):
    """Our distances from TE whose attention in PyTorch rounds no scores: the rest of TE as it is."""
    with te_side.attention_in_fp32():
        expected = te_side.theirs(layer, call, tensors, tensors["x"], tensors.get("memory"))
    actual = together(te_side.ours(layer, call, tensors, expected))
    return [apart(actual[name], value) for name, value in together(expected).items()]


def limit_of(layer, call):
    return BF16_MOMENTS if layer.get("exp_avg_dtype") == "bfloat16" else LIMITS[call["precision"]]


def line(number, layer, call, tensors, of_results):
    """The line of a case, and whether it fails; its results have lines of their own."""
    about = (number, call["seed"], call["kind"], call["precision"], json.dumps(layer), json.dumps(call))
    limit = limit_of(layer, call)
    try:
        results = compare(layer, call, tensors)
        kernels = te_side.kernels(call)
        whole = from_fp32_scores(layer, call, tensors) if kernels == "PyTorch" else None
        torch.cuda.synchronize()
    except Exception as refusal:  # of whatever type TE's are
        said = (f"{type(refusal).__name__}: {refusal}".splitlines() or [""])[0][:300]
        return (*about, "", said), isinstance(refusal, te_side.OwnMistake)
    of_results.writerows((number, call["precision"], name, *(f"{value:.3e}" for value in result)) for name, result in results.items())
    named = ("y", "dx", "dmemory")
    others = [name for name in results if name not in named]
    furthest = max(others, key=lambda name: results[name].ours) if others else "y"
    bad = {name: result for name, result in results.items() if result.fails(limit)}
    if bad:
        print("FAILED", number, layer, call, bad, flush=True)
    return (*about, kernels, "", *(f"{results[name].ours:.1e}" if name in results else "" for name in named),
            f"{results[furthest].ours:.1e}", furthest, *(f"{value:.1e}" for value in results[furthest][1:]),
            sum(not result.ours <= limit for result in results.values()), f"{max(whole):.1e}" if whole else "",
            sum(not distance <= limit for distance in whole) if whole else "", " ".join(bad)), bool(bad)


def wait(path):
    deadline = time.time() + 240
    while not os.path.exists(path):
        if time.time() > deadline:
            raise SystemExit(f"{path} was not written")
        time.sleep(0.05)


def is_alive():
    """Whether the GPU still takes work: some errors end every later call of a process."""
    try:
        torch.zeros(1, device="cuda").item()
        return True
    except RuntimeError:
        return False


def main(folder, count, output, first=0, stride=1, mode="w"):
    failed = 0
    with open(output, mode, newline="") as file, open(f"{output}.results.csv", mode, newline="") as results:
        table, of_results = csv.writer(file), csv.writer(results)
        if mode == "w":
            table.writerow(COLUMNS)
            of_results.writerow(RESULTS)
        for number in range(first, count, stride):
            path = os.path.join(folder, f"{number:04d}.safetensors")
            wait(path)
            row, fails = line(number, *te_side.read(path), of_results)
            table.writerow(row)
            file.flush()
            results.flush()
            failed += fails
            if not is_alive():  # goes on in a process of its own
                again = [sys.executable, __file__, folder, str(count), output, str(number + stride), str(stride), "a"]
                os.execv(sys.executable, again)
    print(f"cases {first} of {count} by {stride}: {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], *map(int, sys.argv[4:6]), *sys.argv[6:])
