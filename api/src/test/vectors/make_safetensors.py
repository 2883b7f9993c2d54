"""Writes the vectors that SafetensorsVectorTest compares with: make_safetensors.py FOLDER

Needs the Python packages safetensors (0.8) and NumPy. tensors.safetensors has a tensor of each type that the api has, an
empty one, a scalar and a name that is not ASCII; tensors_other.safetensors has types and a shape that the api does not have.
Numbers are counted up from a first one, so that the test knows them without this file.
"""
import sys
import numpy as np
from safetensors import TensorSpec, serialize_file


def counted(dtype, first, *shape):
    return (first + np.arange(np.prod(shape, dtype=int))).astype(dtype).reshape(shape)


def upper_halves(floats):
    """bfloat16, which NumPy does not have: exact here, for the numbers are small."""
    return (floats.view(np.uint32) >> 16).astype(np.uint16)


def write(name, arrays, metadata):
    specs = {
        key: TensorSpec(dtype=dtype, shape=array.shape, data_ptr=array.ctypes.data, data_len=array.nbytes)
        for key, (dtype, array) in arrays.items()
    }
    serialize_file(specs, f"{sys.argv[1]}/{name}.safetensors", metadata=metadata)


write("tensors", {
    "step": ("int64", counted(np.int64, 2**40)),
    "layers.0.weight": ("float32", counted(np.float32, -4.5, 3, 5)),
    "ids": ("int32", counted(np.int32, -2, 2, 2)),
    "layers.0.bias": ("bfloat16", upper_halves(counted(np.float32, -1, 7))),
    "halves": ("float16", counted(np.float16, 0.5, 1, 1, 1, 9)),
    "nothing": ("float16", counted(np.float16, 0, 0, 4)),
    "größe \"\t": ("uint8", counted(np.uint8, 250, 5)),
}, {"format": "np"})
write("tensors_other", {
    "energies": ("float64", counted(np.float64, 0.25, 3)),
    "mask": ("bool", np.array([True, False, True])),
    "scales": ("float8_e4m3fn", counted(np.uint8, 56, 2)),
    "deep": ("float32", counted(np.float32, 1, 1, 2, 1, 2, 1)),
}, None)
