"""Held-out perplexity of a checkpoint against GGUF files of it, by their dequantised weights: the price of each quantisation.

usage: python3 -m train.quantcheck CHECKPOINT DATA FILE.gguf [FILE.gguf ...] [--tokens 3000] [--device cpu]
"""
import argparse
import glob
import math
import os

import torch
import torch.nn.functional as F

from .checkpoint import load_checkpoint
from .evaluate import documents, packed
from .model import Batch, rms


@torch.no_grad()
def loss(model, data, limit, length=512):
    """Mean nll over the first `limit` held-out tokens of every domain."""
    total, n = 0.0, 0
    for path in sorted(glob.glob(data + "/*.val.bin")):
        for r in packed(documents(path, limit), length).split(8):
            r = r.to(model.token_embd.device)
            b = Batch(r)
            x, _, _ = model.trunk(r, b)
            lo = F.linear(rms(x, model.output_norm).float(), model.token_embd).view(*r.shape, -1)[:, :-1]
            nll = F.cross_entropy(lo.flatten(0, 1), r[:, 1:].flatten(), reduction="none").view(len(r), -1)
            valid = (r[:, :-1] != 0) & (r[:, 1:] != 0)
            total, n = total + float(nll[valid].sum()), n + int(valid.sum())
    return total / n, n


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("checkpoint")
    ap.add_argument("data")
    ap.add_argument("files", nargs="+")
    ap.add_argument("--tokens", type=int, default=3000)
    ap.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    a = ap.parse_args()
    base, n = loss(load_checkpoint(a.checkpoint, a.device), a.data, a.tokens)
    print(f"{a.checkpoint}: perplexity {math.exp(base):.4f} on {n} tokens", flush=True)
    for f in a.files:
        got, _ = loss(load_checkpoint(f, a.device), a.data, a.tokens)
        print(f"{f}: {os.path.getsize(f) / 1e6:.2f} MB, perplexity {math.exp(got):.4f}, {100 * (math.exp(got - base) - 1):+.2f} %", flush=True)


if __name__ == "__main__":
    main()
