"""Writes tests/golden/reference.safetensors with the Python package (pip install safetensors==0.8.0 numpy ml_dtypes).

Two-dimensional, scalar, zero-size and sub-word tensors of every type that the package can write, named so that
sorting by name alone would give another order, with one metadata entry.
"""
import pathlib

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

NUMPY_TYPES = ["bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64",
               "float16", "float32", "float64", "complex64"]
OTHER_TYPES = ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float8_e4m3fnuz",
               "float8_e5m2fnuz"]

tensors = {}
for name in NUMPY_TYPES:
    tensors["a." + name] = (np.arange(6).reshape(2, 3) % 2 if name == "bool" else np.arange(6).reshape(2, 3)).astype(name)
for name in OTHER_TYPES:
    tensors["b." + name] = np.array([[1, 2], [4, 8]], dtype=getattr(ml_dtypes, name))
tensors["z.scalar"] = np.array(3.5, dtype=np.float32)
tensors["c.empty"] = np.zeros((3, 0, 2), dtype=np.float32)
tensors["\u00e9\"\\"] = np.array([np.nan, -0.0], dtype=np.float64)

save_file(tensors, pathlib.Path(__file__).with_name("reference.safetensors"), metadata={"format": "pt"})
