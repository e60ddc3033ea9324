"""Reference logits of a small random model: rounds its large matrices to bfloat16, so that half the bytes hold them exactly, and writes
PyTorch's logits in float32 of the rounded model. First the same code must give the logits that were there before, for the model as it was.

usage (in nano/): python3 -m train.reference FOLDER_BEFORE FOLDER_AFTER       a folder: model.gguf, promptN.ids.i32, promptN.*logits.f32.gz
"""
import argparse
import glob
import gzip
import os
import shutil

import numpy as np
import torch
import torch.nn.functional as F
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter
from gguf.quants import dequantize, quantize

from . import gdn, gguf_io
from .model import Batch, rms

LARGE = 10_000          # elements of a matrix from which it is rounded
KL_MAX = 1e-9           # nats, of any position
GRID = 2.0 ** -14       # of what is kept: a row moves by 2e-10 nats, a fiftieth of what the tests allow


def floats(tensor):
    return torch.tensor(dequantize(tensor.data, tensor.tensor_type), dtype=torch.float32)


def logits(path, ids):
    """(logits of every position, of the MTP layer for all but the last), float32."""
    model = gguf_io.load(path)
    output = floats(next(t for t in GGUFReader(path).tensors if t.name == "output.weight"))
    ids = torch.tensor(ids.astype(np.int64))[None]
    T = ids.shape[1]
    pad = F.pad(ids, (0, -T % gdn.CHUNK), value=1)
    batch = Batch(torch.ones_like(pad))         # one document, whatever its tokens
    with torch.no_grad():
        x, _, _ = model.trunk(pad, batch)
        main, mtp = rms(x, model.output_norm) @ output.T, model.mtp(x, pad, batch)[0] @ output.T
    return main[:T].numpy(), mtp[:T - 1].numpy()


def packed(path, values):
    """Float32 on the grid, by the place of their bytes: the first of each, then the second of each, and so on."""
    values = np.round(values.astype(np.float64) / GRID) * GRID
    planes = values.astype("<f4").reshape(-1, 1).view(np.uint8).T
    with open(path, "wb") as file:
        file.write(gzip.compress(planes.tobytes(), 9, mtime=0))


def unpacked(path):
    with gzip.open(path) as file:
        planes = np.frombuffer(file.read(), np.uint8).reshape(4, -1)
    return np.ascontiguousarray(planes.T).view("<f4").reshape(-1)


def kl(p, q):
    """Largest KL divergence of a row."""
    p, q = (torch.log_softmax(torch.tensor(v, dtype=torch.float64), 1) for v in (p, q))
    return float((p.exp() * (p - q)).sum(1).max())


def rounded(source, target):
    """The model with its large matrices in bfloat16."""
    reader = GGUFReader(source)
    kinds = {"general.architecture"}
    w = GGUFWriter(target, reader.fields["general.architecture"].contents())
    for key, field in reader.fields.items():
        if key not in kinds and not key.startswith("GGUF."):
            kind = field.types[0]
            w.add_key_value(key, field.contents(), kind, field.types[-1] if kind == GGUFValueType.ARRAY else None)
    for t in reader.tensors:
        shape = [int(s) for s in reversed(t.shape)]
        if t.n_elements >= LARGE:
            w.add_tensor(t.name, quantize(floats(t).numpy(), GGMLQuantizationType.BF16), raw_dtype=GGMLQuantizationType.BF16)
        else:
            w.add_tensor(t.name, np.array(t.data).reshape(shape))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("before")
    ap.add_argument("after")
    a = ap.parse_args()
    torch.set_num_threads(1)
    os.makedirs(a.after, exist_ok=True)
    model, new = f"{a.before}/model.gguf", f"{a.after}/model.gguf"
    rounded(model, new)
    for path in sorted(glob.glob(f"{a.before}/prompt*.ids.i32")):
        name = os.path.basename(path).split(".")[0]
        ids = np.fromfile(path, dtype="<i4")
        shutil.copyfile(path, f"{a.after}/{name}.ids.i32")
        for kind, old, ours in zip(("logits", "mtp-logits"), logits(model, ids), logits(new, ids)):
            known = unpacked(f"{a.before}/{name}.{kind}.f32.gz").reshape(old.shape)
            apart = kl(known, old)
            print(f"{name} {kind}: KL {apart:.1e} from the logits before; rounding moves it by {kl(old, ours):.1e}", flush=True)
            assert apart <= KL_MAX
            packed(f"{a.after}/{name}.{kind}.f32.gz", ours)


if __name__ == "__main__":
    main()
