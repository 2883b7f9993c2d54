"""Writes the vectors that TransformerLayerVectorsTest compares with: make_transformer_layer.py OUTPUT.bin.gz

Needs an NVIDIA GPU and Transformer Engine for PyTorch 2.20.2. One encoder layer in bfloat16 over packed sequences with
rotary positions: input, output gradient, weights, output, and the gradients of input and weights.

Format: little-endian; for each tensor int32 length of its name, the name in ASCII, int32 number of elements, float32
elements (exact: bfloat16 widened); compressed by gzip.
"""
import gzip, itertools, struct, sys
import torch
import transformer_engine
import transformer_engine.pytorch as te

HIDDEN, INNER, HEADS, LENGTHS = 128, 512, 4, (50, 29, 1, 48)
NAMES = {
    "self_attention.layernorm_qkv.layer_norm_weight": "attention.qkv.norm.weight",
    "self_attention.layernorm_qkv.layer_norm_bias": "attention.qkv.norm.bias",
    "self_attention.layernorm_qkv.weight": "attention.qkv.linear.weight",
    "self_attention.layernorm_qkv.bias": "attention.qkv.linear.bias",
    "self_attention.proj.weight": "attention.projection.weight",
    "self_attention.proj.bias": "attention.projection.bias",
    "layernorm_mlp.layer_norm_weight": "mlp.norm.weight",
    "layernorm_mlp.layer_norm_bias": "mlp.norm.bias",
    "layernorm_mlp.fc1_weight": "mlp.fc1.weight",
    "layernorm_mlp.fc1_bias": "mlp.fc1.bias",
    "layernorm_mlp.fc2_weight": "mlp.fc2.weight",
    "layernorm_mlp.fc2_bias": "mlp.fc2.bias",
}


def drawn(*shape, scale=1.0, shift=0.0):
    return (torch.randn(*shape) * scale + shift).to(torch.bfloat16).cuda()


def main(output):
    torch.manual_seed(20)
    layer = te.TransformerLayer(HIDDEN, INNER, HEADS, layer_type="encoder", self_attn_mask_type="padding",
                                attn_input_format="thd", hidden_dropout=0, attention_dropout=0, layernorm_epsilon=1e-5,
                                params_dtype=torch.bfloat16, fuse_qkv_params=True, qkv_weight_interleaved=False,
                                window_size=(-1, -1)).cuda()
    parameters = dict(layer.named_parameters())
    assert set(parameters) == set(NAMES), sorted(parameters)
    with torch.no_grad():
        for name, parameter in parameters.items():
            norm_weight = name.endswith("norm_weight")
            parameter.copy_(drawn(*parameter.shape, scale=0.1, shift=1.0 if norm_weight else 0.0))
    tokens = sum(LENGTHS)
    x = drawn(tokens, HIDDEN).requires_grad_()
    dy = drawn(tokens, HIDDEN)
    cu = torch.tensor([0, *itertools.accumulate(LENGTHS)], dtype=torch.int32, device="cuda")
    angles = te.RotaryPositionEmbedding(HIDDEN // HEADS)(max_seq_len=64).cuda()
    y = layer(x, rotary_pos_emb=angles, cu_seqlens_q=cu, cu_seqlens_kv=cu, max_seqlen_q=max(LENGTHS),
              max_seqlen_kv=max(LENGTHS))
    y.backward(dy)
    tensors = {"lengths": torch.tensor(LENGTHS, dtype=torch.float32), "x": x, "dy": dy, "y": y, "dx": x.grad}
    for name, parameter in parameters.items():
        tensors[NAMES[name]] = parameter
        tensors["gradient." + NAMES[name]] = parameter.grad
    with gzip.GzipFile(output, "wb", mtime=0) as file:
        for name, tensor in tensors.items():
            values = tensor.detach().float().cpu().flatten().numpy().astype("<f4")
            file.write(struct.pack("<i", len(name)) + name.encode() + struct.pack("<i", values.size) + values.tobytes())
    print("Transformer Engine", transformer_engine.__version__, "PyTorch", torch.__version__,
          torch.cuda.get_device_name(), {name: tuple(tensor.shape) for name, tensor in tensors.items()})


main(sys.argv[1])
