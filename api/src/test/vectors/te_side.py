"""What Transformer Engine for PyTorch computes of the cases that WriteCases wrote, and ours beside it.

A case has a kind (KINDS); of each there is `theirs`, which computes, and `ours`, which takes the same results from the file.
"""
import contextlib, itertools, json, os, struct

os.environ["NVTE_UNFUSED_ATTN"] = "1"  # what cuDNN has no attention for, TE computes in PyTorch
os.environ["NVIDIA_TF32_OVERRIDE"] = "0"  # what is computed in FP32 is to be exact

import torch
import transformer_engine.pytorch as te

# TE compiles its sums of bias and residual anew for each shape, which round once. Beyond the usual eight shapes of a process it would
# run them operation by operation, with a rounding after each: no training has so many shapes.
torch._dynamo.config.recompile_limit = 1000
torch._dynamo.config.accumulated_recompile_limit = 10000
from transformer_engine.common import recipe as recipes
from transformer_engine.pytorch.attention.dot_product_attention import backends, dot_product_attention as attention
from transformer_engine.pytorch.attention.rope import apply_rotary_pos_emb
from transformer_engine.pytorch.quantization import FP8GlobalStateManager

ATTENTION = {
    "self_attention.layernorm_qkv.layer_norm_": ["attention.qkv.norm."],
    "self_attention.layernorm_qkv.": ["attention.qkv.linear."],
    "self_attention.qkv.": ["attention.qkv.linear."],
    "self_attention.q_norm.": ["attention.q_norm."],
    "self_attention.k_norm.": ["attention.k_norm."],
    "self_attention.core_attention.": ["attention."],
    "self_attention.proj.": ["attention.projection."],
    "inter_attention.layernorm_query.layer_norm_": ["cross_attention.norm."],
    "inter_attention.layernorm_query.": ["cross_attention.query."],
    "inter_attention.key_value.": ["cross_attention.key_value."],
    "inter_attention.q_norm.": ["cross_attention.q_norm."],
    "inter_attention.k_norm.": ["cross_attention.k_norm."],
    "inter_attention.proj.": ["cross_attention.projection."],
    "layernorm_mlp.layer_norm_": ["mlp.norm."],
    "layernorm_mlp.fc1_": ["mlp.fc1."],
    "layernorm_mlp.fc2_": ["mlp.fc2."],
    "layernorm.": ["norm."],
}
PREFIXES = {
    "TransformerLayer": ATTENTION,
    "LayerNormLinear": {"layer_norm_": ["norm."], "": ["linear."]},
    "LayerNormMLP": {"layer_norm_": ["norm."], "fc1_": ["fc1."], "fc2_": ["fc2."]},
}
ROLES = ("fp8_quant_fwd_inp", "fp8_quant_fwd_weight", "fp8_quant_bwd_grad")
BIASES = {"bias": "post_scale_bias", "bias-before-scale": "pre_scale_bias"}
POSITIONS = 1024
DTYPES = {"BF16": torch.bfloat16, "F32": torch.float32, "U8": torch.uint8, "I32": torch.int32}


class OwnMistake(Exception):
    """A case that this program cannot give TE: no refusal of TE's."""


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


def recipe(described):
    """TE's recipe of a description, which has the names of TE's own arguments."""
    if described is None:
        return None
    given = dict(described)
    kind = getattr(recipes, given.pop("class"))
    roles = {role: recipes.QParams(**given.pop(role)) for role in ROLES if role in given}
    given = {name: recipes.MMParams(**value) if isinstance(value, dict) else value for name, value in given.items()}
    made = kind(**given | {"fp8_format": recipes.Format[given["fp8_format"]]})
    for role, parameters in roles.items():  # no arguments of the constructor
        setattr(made, role, parameters)
    return made


def of_parameter(kind, name, tensors, prefixes):
    """Our tensor of a parameter that TE calls `name`: weight or gradient."""
    for prefix, here in prefixes.items():
        if name.startswith(prefix):
            try:
                parts = [tensors[kind + part + name[len(prefix) :]] for part in here]
            except KeyError as missing:
                raise OwnMistake(f"no tensor {missing} for TE's {name}") from missing
            return torch.cat(parts) if len(parts) > 1 else parts[0]
    raise OwnMistake(f"no name for TE's parameter {name}")


def module(kind, arguments, tensors, dtype=torch.bfloat16):
    """TE's module of a type with our weights, and its parameters by name."""
    tuples = {name: tuple(value) for name, value in arguments.items() if isinstance(value, list)}
    made = getattr(te, kind)(**(arguments | tuples), params_dtype=dtype, device="cuda")
    named = dict(made.named_parameters())
    given = {name: tensor for name, tensor in tensors.items() if name.startswith("weight.")}
    if sum(parameter.numel() for parameter in named.values()) != sum(tensor.numel() for tensor in given.values()):
        raise OwnMistake(f"other parameters: {sorted(named)}, {sorted(given)}")
    with torch.no_grad():
        for name, parameter in named.items():
            parameter.copy_(of_parameter("weight.", name, tensors, PREFIXES[kind]).view_as(parameter))
    return made, named


def our_gradients(kind, tensors, expected, names):
    return {name: of_parameter("gradient.", name, tensors, PREFIXES[kind]).view_as(expected[name]) for name in names}


# Layers


def cumulative(lengths):
    return torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device="cuda")


def with_gaps(lengths, gaps):
    return [length + gap for length, gap in zip(lengths, gaps or [0] * len(lengths))]


def outside(lengths, padded):
    """[b, padded]: which tokens belong to no sequence."""
    return torch.arange(padded)[None, :] >= torch.tensor(lengths)[:, None]


def inside(form, lengths, gaps, padded):
    """Which rows hold tokens of sequences."""
    if form == "thd":
        rows = [torch.arange(whole) < length for length, whole in zip(lengths, with_gaps(lengths, gaps))]
        return torch.cat(rows).cuda()
    tokens = ~outside(lengths, padded)
    return (tokens if form == "bshd" else tokens.T).flatten().cuda()


def query_rows(layer, call):
    return inside(layer["attn_input_format"], call["lengths"], call["gaps"], call["padded"])


def key_rows(layer, call):
    return inside(layer["attn_input_format"], call["memory_lengths"], call["memory_gaps"], call["memory_padded"])


def shaped(rows, form, lengths, padded):
    if form == "thd":
        return rows
    return rows.view(*((len(lengths), padded) if form == "bshd" else (padded, len(lengths))), -1)


def packed_arguments(layer, call):
    lengths, gaps = call["lengths"], call["gaps"]
    decodes = layer["layer_type"] == "decoder"
    keys, key_gaps = (call["memory_lengths"], call["memory_gaps"]) if decodes else (lengths, gaps)
    given = dict(cu_seqlens_q=cumulative(lengths), cu_seqlens_kv=cumulative(keys), max_seqlen_q=max(lengths),
                 max_seqlen_kv=max(keys))
    if gaps or key_gaps:  # whose rows TE leaves as they are unless told to fill whole tensors
        given |= dict(fast_zero_fill=False, cu_seqlens_q_padded=cumulative(with_gaps(lengths, gaps)),
                      cu_seqlens_kv_padded=cumulative(with_gaps(keys, key_gaps)), pad_between_seqs=True)
    return given


def dense_arguments(layer, call, tensors):
    queries = outside(call["lengths"], call["padded"])[:, None, None, :].cuda()
    given = {}
    if layer["self_attn_mask_type"] == "arbitrary":
        given["attention_mask"] = tensors["mask"].bool()
    elif layer["self_attn_mask_type"].startswith("padding"):
        given["attention_mask"] = queries
    if layer.get("enc_dec_attn_mask_type", "").startswith("padding"):
        given["enc_dec_attn_mask"] = (
            queries, outside(call["memory_lengths"], call["memory_padded"])[:, None, None, :].cuda())
    return given


def forward_arguments(layer, call, tensors):
    given = {}
    if "rotary" in call:
        given["rotary_pos_emb"] = te.RotaryPositionEmbedding(
            **call["rotary"], pretrained_max_position_embeddings=POSITIONS)(POSITIONS, offset=call["start"]).cuda()
    if call["scores"] in ("alibi", "slopes"):
        given["core_attention_bias_type"] = "alibi"
        # TE keeps slopes and biases from call to call, and asks no more than whether the sizes are the same.
        attention._alibi_cache |= {"_alibi_slopes_require_update": True, "_alibi_bias_require_update": True}
    if call["scores"] == "slopes":
        given["alibi_slopes"] = tensors["slopes"]
    if call["scores"] in BIASES:
        given["core_attention_bias_type"] = BIASES[call["scores"]]
    thd = layer["attn_input_format"] == "thd"
    return given | (packed_arguments(layer, call) if thd else dense_arguments(layer, call, tensors))


def fused_adam(arguments, weights):
    """TE's optimizer; FP32 weights have no masters."""
    given = {name: getattr(torch, value) if name.endswith("dtype") else value for name, value in arguments.items()}
    given |= {"betas": tuple(given["betas"]), "master_weights": given["master_weights"] and weights[0].dtype != torch.float32}
    return te.optimizers.FusedAdam(weights, **given)


def their_layer(arguments, call, tensors, x, memory):
    form = arguments["attn_input_format"]
    os.environ["NVTE_ALLOW_NONDETERMINISTIC_ALGO"] = "0" if call["deterministic"] else "1"
    layer, named = module("TransformerLayer", arguments | dict(
        hidden_dropout=0, attention_dropout=0, fuse_qkv_params=True, qkv_weight_interleaved=False), tensors, x.dtype)
    adam = fused_adam(call["adam"], list(named.values())) if "adam" in call else None
    given = forward_arguments(arguments, call, tensors)
    bias = None
    if call["scores"] in BIASES:
        given["core_attention_bias"] = bias = tensors["bias"].clone().requires_grad_()
    own = recipe(call["recipe"])
    for factor, jump in zip(call["steps"], call["gradients"]):  # a recipe learns its scales in those before the last
        leaf = (shaped(x, form, call["lengths"], call["padded"]) * factor).requires_grad_()
        read = None
        if memory is not None:
            read = (shaped(memory, form, call["memory_lengths"], call["memory_padded"]) * factor).requires_grad_()
        for tensor in (bias, *named.values()):
            if tensor is not None:
                tensor.grad = None
        with te.autocast(enabled=own is not None, recipe=own):
            y = layer(leaf, encoder_output=read, **given)
        y.backward(shaped(tensors["dy"].to(y.dtype) * jump, form, call["lengths"], call["padded"]))
        if adam is not None:
            adam.step()
    columns = x.shape[-1]
    rows = lambda tensor, which: tensor.detach().reshape(-1, columns)[which]
    results = {"y": rows(y, query_rows(arguments, call)), "dx": rows(leaf.grad, query_rows(arguments, call))}
    if memory is not None:
        results["dmemory"] = rows(read.grad, key_rows(arguments, call))
    if bias is not None:
        results["dbias"] = bias.grad
    if adam is None:
        return results | {name: parameter.grad for name, parameter in named.items()}
    masters = {name: adam.state[parameter].get("master_param", parameter).detach() for name, parameter in named.items()}
    return results | moves(masters, tensors, named)


def moves(masters, tensors, shapes):
    """How far steps of an optimizer have moved each parameter."""
    return {name: master.view_as(shapes[name]).double()
            - of_parameter("weight.", name, tensors, ATTENTION).view_as(shapes[name]).double()
            for name, master in masters.items()}


def our_layer(arguments, call, tensors, expected):
    results = {name: tensors[name][query_rows(arguments, call)] for name in ("y", "dx")}
    if "dmemory" in expected:
        results["dmemory"] = tensors["dmemory"][key_rows(arguments, call)]
    if "dbias" in expected:
        results["dbias"] = tensors["dbias"]
    names = expected.keys() - results.keys()
    if "adam" in call:
        return results | moves({name: of_parameter("master.", name, tensors, ATTENTION) for name in names}, tensors, expected)
    return results | our_gradients("TransformerLayer", tensors, expected, names)


# Norms with two readers


def their_norm_output(arguments, call, tensors, x, memory):
    kind = arguments["class"]
    given = {name: value for name, value in arguments.items() if name != "class"}
    layer, named = module(kind, given | {"return_layernorm_output": True}, tensors)
    own = recipe(call["recipe"])
    for _ in call["steps"]:
        leaf = x.clone().requires_grad_()
        for parameter in named.values():
            parameter.grad = None
        with te.autocast(enabled=own is not None, recipe=own):
            y, normed = layer(leaf)
        torch.autograd.backward([y, normed], [tensors["dy"], tensors["dnormed"]])
    results = {"y": y.detach(), "dx": leaf.grad, "normed": normed.detach()}
    return results | {name: parameter.grad for name, parameter in named.items()}


def our_norm_output(arguments, call, tensors, expected):
    results = {name: tensors[name] for name in ("y", "dx", "normed")}
    return results | our_gradients(arguments["class"], tensors, expected, expected.keys() - results.keys())


# Losses, optimizers, rotations


def their_loss(arguments, call, tensors, x, memory):
    logits = x[None].clone().requires_grad_()
    loss = te.parallel_cross_entropy(logits, tensors["labels"].long()[None], **arguments)
    loss.backward(torch.ones_like(loss) if arguments["reduce_loss"] else tensors["dy"].view_as(loss))
    return {"y": loss.detach().flatten(), "dx": logits.grad[0]}


def our_loss(arguments, call, tensors, expected):
    return {"y": tensors["y"].flatten(), "dx": tensors["dx"]}


def their_adam(arguments, call, tensors, x, memory):
    weight = torch.nn.Parameter(x.clone())
    adam = fused_adam(arguments, [weight])
    for step in range(call["steps"]):
        weight.grad = tensors[f"gradient.{step}"].clone()
        adam.step()
    return {"y": weight.detach().double() - x.double()}


def our_adam(arguments, call, tensors, expected):
    return {"y": tensors["y"].double() - tensors["x"].double()}


def their_rotation(arguments, call, tensors, x, memory):
    angles = te.RotaryPositionEmbedding(**arguments, pretrained_max_position_embeddings=POSITIONS)(POSITIONS).cuda()
    leaf = x.clone().requires_grad_()
    y = apply_rotary_pos_emb(
        leaf, angles, tensor_format=call["format"], fused=True, interleaved=arguments["interleaved"],
        start_positions=torch.tensor(call["starts"], dtype=torch.int32, device="cuda"),
        cu_seqlens=cumulative(call["lengths"]) if call["format"] == "thd" else None)
    y.backward(tensors["dy"])
    return {"y": y.detach(), "dx": leaf.grad}


def our_rotation(arguments, call, tensors, expected):
    return {name: tensors[name] for name in ("y", "dx")}


KINDS = {
    "layer": (their_layer, our_layer),
    "norm-output": (their_norm_output, our_norm_output),
    "loss": (their_loss, our_loss),
    "adam": (their_adam, our_adam),
    "rotation": (their_rotation, our_rotation),
}


def theirs(layer, call, tensors, x, memory):
    FP8GlobalStateManager.reset()
    return KINDS[call["kind"]][0](layer, call, tensors, x, memory)


def ours(layer, call, tensors, expected):
    return KINDS[call["kind"]][1](layer, call, tensors, expected)


@contextlib.contextmanager
def attention_in_fp32():
    """Inside, TE's attention in PyTorch takes its inputs in FP32, so that it rounds no scores, and rounds what it returns."""
    own = backends.UnfusedDotProductAttention.forward

    def forward(self, cache, query, key, value, *more, **named):
        return own(self, cache, query.float(), key.float(), value.float(), *more, **named).to(query.dtype)

    backends.UnfusedDotProductAttention.forward = forward
    try:
        yield
    finally:
        backends.UnfusedDotProductAttention.forward = own


def kernels(call):
    """Which of TE's attentions computed last."""
    if call["kind"] != "layer":
        return ""
    return "cuDNN" if attention._attention_backends["use_fused_attention"] else "PyTorch"
