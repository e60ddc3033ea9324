"""ggml's own quantiser through ctypes: PyPI's `gguf` package reads every type but writes only a few.

The shared library is found in this order: --ggml PATH of the caller, the environment variable GGML_BASE, the installed package
`llama-cpp-python` (which ships libggml-base.so). Without it only F32, F16, BF16 and Q8_0 can be written.
"""
import ctypes
import glob
import importlib.util
import os

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as Q
from gguf import quants

PLAIN = (Q.F32, Q.F16, Q.BF16, Q.Q8_0)


def find_library(path=None):
    if path or os.environ.get("GGML_BASE"):
        return path or os.environ["GGML_BASE"]
    spec = importlib.util.find_spec("llama_cpp")
    found = glob.glob(os.path.join(os.path.dirname(spec.origin), "lib", "*ggml-base.*")) if spec and spec.origin else []
    if not found:
        raise SystemExit("no libggml-base found: `pip install llama-cpp-python`, or name it with --ggml or GGML_BASE")
    return found[0]


class Quantiser:
    def __init__(self, path=None):
        self.path, self.lib = path, None

    def _library(self):
        if self.lib is None:
            self.lib = ctypes.CDLL(find_library(self.path))
            f = self.lib.ggml_quantize_chunk
            f.restype = ctypes.c_size_t
            f.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p]
        return self.lib

    def __call__(self, x, qtype, importance=None):
        """x f32 [..., row] -> uint8 [..., bytes of a row]. `importance` [row] (or [experts, row]) weighs the columns' errors."""
        if qtype == Q.F32:
            return x.astype(np.float32)
        if qtype in PLAIN:
            return quants.quantize(x.astype(np.float32), qtype)
        block, size = GGML_QUANT_SIZES[qtype]
        row = x.shape[-1]
        if row % block:
            raise ValueError(f"row length {row} is no multiple of {block} ({qtype.name})")
        x = np.ascontiguousarray(x, np.float32).reshape(-1, x.shape[-2] if x.ndim > 1 else 1, row)
        out = np.empty((x.shape[0], x.shape[1], row // block * size), np.uint8)
        for i in range(x.shape[0]):
            imp = None
            if importance is not None:
                imp = np.ascontiguousarray(importance[i] if importance.ndim == 2 else importance, np.float32)
            n = self._library().ggml_quantize_chunk(int(qtype), x[i].ctypes.data, out[i].ctypes.data, 0, x.shape[1], row,
                                                    imp.ctypes.data if imp is not None else None)
            assert n == out[i].nbytes
        return out


def shaped(q, shape):
    """Quantised rows in the byte shape that gguf's writer expects for a tensor of `shape`."""
    return q.reshape(*shape[:-1], -1) if q.dtype == np.uint8 else q.reshape(shape)
