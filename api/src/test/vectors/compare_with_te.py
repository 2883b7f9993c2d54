"""Compares layers that WriteLayerCases wrote with Transformer Engine for PyTorch:

    compare_with_te.py FOLDER COUNT OUTPUT.csv [FIRST STRIDE]

Needs an NVIDIA GPU and Transformer Engine for PyTorch 2.20.2. Of every case it makes the same te.TransformerLayer with the same
weights, runs it over the same input, and writes a line: the options, and ||ours - TE|| / ||TE|| of the output, of the input's
gradients and of the gradient of every parameter. A case that TE refuses is kept with what TE said. Files may still be being
written; FIRST and STRIDE share the work among processes.

Where a gradient is cast to E5M2 twice on its way, and where a derivative jumps, one BF16 rounding moves it by several percent.
TE therefore runs a second time over inputs, x and memory, that are moved by up to one BF16 rounding. Where products run in eight
bits it runs a third time in BF16, which shows what eight bits cost. A result fails when it is further from TE's than the limit and
than 1.5 times what TE is from itself; in eight bits when it is also further from TE's in BF16 than 1.25 times what TE's in eight bits is.
"""
import csv, itertools, json, os, struct, sys, time
from typing import NamedTuple

import torch
import transformer_engine.pytorch as te
from transformer_engine.common.recipe import DelayedScaling, Float8BlockScaling, Float8CurrentScaling
from transformer_engine.pytorch.quantization import FP8GlobalStateManager

RECIPES = {
    "bf16": None,
    "fp8-delayed": DelayedScaling(),
    "fp8-current": Float8CurrentScaling(),
    "fp8-block": Float8BlockScaling(),
}
LIMITS = {"bf16": 1e-2, "fp8-delayed": 6e-2, "fp8-current": 6e-2, "fp8-block": 6e-2}
PREFIXES = {
    "self_attention.layernorm_qkv.layer_norm_": ["attention.qkv.norm."],
    "self_attention.layernorm_qkv.": ["attention.qkv.linear."],
    "self_attention.qkv.": ["attention.qkv.linear."],
    "self_attention.q_norm.": ["attention.q_norm."],
    "self_attention.k_norm.": ["attention.k_norm."],
    "self_attention.core_attention.": ["attention."],
    "self_attention.proj.": ["attention.projection."],
    "inter_attention.layernorm_query.layer_norm_": ["cross_attention.norm."],
    "inter_attention.layernorm_query.": ["cross_attention.query."],
    "inter_attention.key_value.": ["cross_attention.key.", "cross_attention.value."],
    "inter_attention.q_norm.": ["cross_attention.q_norm."],
    "inter_attention.k_norm.": ["cross_attention.k_norm."],
    "inter_attention.proj.": ["cross_attention.projection."],
    "layernorm_mlp.layer_norm_": ["mlp.norm."],
    "layernorm_mlp.fc1_": ["mlp.fc1."],
    "layernorm_mlp.fc2_": ["mlp.fc2."],
    "layernorm.": ["norm."],
}
POSITIONS = 1024
DTYPES = {"BF16": torch.bfloat16, "F32": torch.float32}
# Adding one number to all scores of a query changes nothing: without a rotation the gradient of a bias of the keys is 0 but for
# rounding. It is compared together with that of the queries.
TOGETHER = {f"{part}.qk_norm.bias": (f"{part}.q_norm.bias", f"{part}.k_norm.bias")
            for part in ("self_attention", "inter_attention")}


def read(path):
    with open(path, "rb") as file:
        content = file.read()
    size = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + size])
    metadata = header.pop("__metadata__")
    tensors = {}
    for name, entry in header.items():
        begin, end = (8 + size + offset for offset in entry["data_offsets"])
        tensor = torch.frombuffer(bytearray(content[begin:end]), dtype=DTYPES[entry["dtype"]])
        tensors[name] = tensor.reshape(entry["shape"]).cuda()
    return json.loads(metadata["layer"]), json.loads(metadata["call"]), tensors


def ours(kind, name, tensors):
    for prefix, here in PREFIXES.items():
        if name.startswith(prefix):
            parts = [tensors[kind + part + name[len(prefix) :]] for part in here]
            return torch.cat(parts) if len(parts) > 1 else parts[0]
    raise KeyError(name)


def cumulative(lengths):
    return torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device="cuda")


def arguments(layer, call):
    """The arguments of forward, and which rows of x hold tokens."""
    lengths, padded, form = call["lengths"], call["padded"], layer["attn_input_format"]
    given = {}
    if "rotary" in call:
        given["rotary_pos_emb"] = te.RotaryPositionEmbedding(
            **call["rotary"], pretrained_max_position_embeddings=POSITIONS)(max_seq_len=POSITIONS).cuda()
    if call["alibi"]:
        given["core_attention_bias_type"] = "alibi"
    if form == "thd":
        keys = call["memory_lengths"] if layer["layer_type"] == "decoder" else lengths
        given |= dict(cu_seqlens_q=cumulative(lengths), cu_seqlens_kv=cumulative(keys), max_seqlen_q=max(lengths),
                      max_seqlen_kv=max(keys))
        return given, torch.ones(sum(lengths), dtype=torch.bool, device="cuda")
    outside = torch.arange(padded)[None, :] >= torch.tensor(lengths)[:, None]
    if layer["self_attn_mask_type"].startswith("padding"):
        given["attention_mask"] = outside[:, None, None, :].cuda()
    inside = ~outside if form == "bshd" else ~outside.T
    return given, inside.flatten().cuda()


def shaped(rows, layer, call):
    if layer["attn_input_format"] == "thd":
        return rows
    batch, padded = len(call["lengths"]), call["padded"]
    return rows.view(*((batch, padded) if layer["attn_input_format"] == "bshd" else (padded, batch)), -1)


def apart(actual, expected):
    return ((actual.double() - expected.double()).norm() / expected.double().norm()).item()


def te_layer(arguments, tensors):
    tuples = {name: tuple(value) for name, value in arguments.items() if isinstance(value, list)}
    layer = te.TransformerLayer(**(arguments | tuples), hidden_dropout=0, attention_dropout=0, fuse_qkv_params=True,
                                qkv_weight_interleaved=False, params_dtype=torch.bfloat16, device="cuda")
    named = dict(layer.named_parameters())
    given = {name: tensor for name, tensor in tensors.items() if name.startswith("weight.")}
    assert sum(parameter.numel() for parameter in named.values()) == sum(tensor.numel() for tensor in given.values()), (
        sorted(named), sorted(given))
    with torch.no_grad():
        for name, parameter in named.items():
            parameter.copy_(ours("weight.", name, tensors).view_as(parameter))
    return layer, named


def moved(tensor, generator):
    """The tensor with each element moved by up to one BF16 rounding."""
    moves = torch.rand(tensor.shape, generator=generator, device="cuda") * 2**-7 - 2**-8
    return (tensor.float() * (1 + moves)).bfloat16()


def te_results(layer_arguments, call, tensors, x, memory):
    """What TE computes: the output, the gradients of the inputs, and those of the parameters by TE's names."""
    recipe = RECIPES[call["precision"]]
    FP8GlobalStateManager.reset()
    layer, named = te_layer(layer_arguments, tensors)
    given, inside = arguments(layer_arguments, call)
    x = shaped(x, layer_arguments, call).clone().requires_grad_()
    memory = None if memory is None else memory.clone().requires_grad_()
    for _ in range(1 if recipe is None else 2):  # delayed scaling learns its scales in the first
        for tensor in (x, memory, *named.values()):
            if tensor is not None:
                tensor.grad = None
        with te.autocast(enabled=recipe is not None, recipe=recipe):
            y = layer(x, encoder_output=memory, **given)
        y.backward(shaped(tensors["dy"], layer_arguments, call))
    rows = lambda tensor: tensor.detach().reshape(-1, x.shape[-1])[inside]
    results = {"y": rows(y), "dx": rows(x.grad)}
    if memory is not None:
        results["dmemory"] = memory.grad
    return results | {name: parameter.grad for name, parameter in named.items()}, inside


def together(results):
    for both, names in TOGETHER.items():
        if names[0] in results:
            results[both] = torch.cat([results.pop(name).flatten() for name in names])
    return results


class Distance(NamedTuple):
    """Of one result: ours from TE, TE from itself over a moved input, and in eight bits ours and TE from TE in BF16."""
    ours: float
    itself: float
    ours_from_bf16: float
    te_from_bf16: float

    def fails(self, limit, eight_bits):
        return not self.ours <= max(limit, 1.5 * self.itself) and not (
            eight_bits and self.ours_from_bf16 <= 1.25 * self.te_from_bf16)


def compare(layer_arguments, call, tensors):
    """By result: our distance from TE, TE's from itself, and in eight bits ours and TE's from TE in BF16."""
    x, memory = tensors["x"], tensors.get("memory")
    expected, inside = te_results(layer_arguments, call, tensors, x, memory)
    generator = torch.Generator("cuda").manual_seed(call["seed"] % 2**31)
    again, _ = te_results(layer_arguments, call, tensors, moved(x, generator),
                          None if memory is None else moved(memory, generator))
    actual = {}
    for name in expected:
        if name in ("y", "dx"):
            actual[name] = tensors[name][inside]
        elif name == "dmemory":
            actual[name] = tensors[name]
        else:
            actual[name] = ours("gradient.", name, tensors).view_as(expected[name])
    expected, actual, again = together(expected), together(actual), together(again)
    if call["precision"] == "bf16":
        costs = {name: (0, 0) for name in expected}
    else:
        whole = together(te_results(layer_arguments, call | {"precision": "bf16"}, tensors, x, memory)[0])
        costs = {name: (apart(actual[name], whole[name]), apart(expected[name], whole[name])) for name in expected}
    return {name: Distance(apart(actual[name], expected[name]), apart(again[name], expected[name]), *costs[name])
            for name in expected}


def wait(path):
    deadline = time.time() + 90
    while not os.path.exists(path):
        if time.time() > deadline:
            raise SystemExit(f"{path} was not written")
        time.sleep(0.05)


def main(folder, count, output, first=0, stride=1):
    compared = failed = 0
    with open(output, "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(("case", "seed", "precision", "layer", "call", "refused", "y", "dx", "dmemory", "furthest", "of", "TE itself",
                        "from BF16", "TE from BF16", "beyond the limit", "failed"))
        for number in range(first, count, stride):
            path = os.path.join(folder, f"{number:04d}.safetensors")
            wait(path)
            layer, call, tensors = read(path)
            about = (number, call["seed"], call["precision"], json.dumps(layer), json.dumps(call))
            limit = LIMITS[call["precision"]]
            try:
                results = compare(layer, call, tensors)
            except Exception as refusal:
                table.writerow((*about, f"{type(refusal).__name__}: {refusal}".splitlines()[0][:200]))
            else:
                parameter = max((name for name in results if "." in name), key=lambda name: results[name].ours)
                compared += 1
                bad = {name: result for name, result in results.items() if result.fails(limit, call["precision"] != "bf16")}
                failed += bool(bad)
                table.writerow((*about, "", *(f"{results[name].ours:.1e}" if name in results else "" for name in ("y", "dx", "dmemory")),
                                f"{results[parameter].ours:.1e}", parameter, *(f"{value:.1e}" for value in results[parameter][1:]),
                                sum(not result.ours <= limit for result in results.values()), " ".join(bad)))
                if bad:
                    print("FAILED", number, layer, call, bad, flush=True)
            file.flush()
    print(f"{compared} compared, {failed} failed, {len(range(first, count, stride)) - compared} refused by TE")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], *map(int, sys.argv[4:]))
