"""Starts a fine-tune from the dequantised weights of a GGUF: no other copy of the weights is needed.

Proves itself while it runs: the loss of the loaded weights on held-out text is printed first (it must be where the GGUF stands),
then after the steps. All weights train, with the same optimiser as the training at a small factor.

usage: python3 -m train.finetune MODEL.gguf DATA OUT.gguf [--mix DOMAIN=SHARE,...] [--steps 30] [--factor 0.05] [--type ship]
"""
import argparse

import torch

from . import data, gguf_io
from .evaluate import documents, packed
from .export import FILE_TYPE, recipe
from .optim import Optimiser
from .pack import load_tokenizer
from .tokenizer import IM_START
from .train import Feed


@torch.no_grad()
def held_out_loss(model, root, names, limit, length):
    total = n = 0.0
    for name in names:
        for r in packed(documents(f"{root}/{name}.val.bin", limit), length).split(8):
            w = (torch.nn.functional.pad(r[:, :-1] != 0, (1, 0)) & (r != 0)).float()
            w[:, 0] = 0
            nll = model(r, w)[1]
            total, n = total + float(nll) * float(w.sum()), n + float(w.sum())
    return total / n


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("model")
    ap.add_argument("data")
    ap.add_argument("out")
    ap.add_argument("--mix", default="math=1,qa=1")
    ap.add_argument("--steps", type=int, default=30)
    ap.add_argument("--factor", type=float, default=0.05)
    ap.add_argument("--tokens", type=int, default=4096)
    ap.add_argument("--length", type=int, default=512)
    ap.add_argument("--held-out", type=int, default=6000)
    ap.add_argument("--type", default="ship", choices=sorted(FILE_TYPE))
    ap.add_argument("--ggml")
    a = ap.parse_args()
    torch.manual_seed(1)
    model, tk = gguf_io.load(a.model), load_tokenizer(a.data + "/tokenizer.json")
    mix = {k: float(v) for k, v in (p.split("=") for p in a.mix.split(","))}
    assistant = tk.encode("assistant", add_special_tokens=False).ids[0]
    names = [n for n in mix if n not in ("synthetic", "smalltalk", "long")]
    feed = Feed([a.data], a.tokens, 1, "cpu", 0)
    feed.open(0, {"mix": mix, "length": a.length})
    print(f"held-out loss of the dequantised weights: {held_out_loss(model, a.data, names, a.held_out, a.length):.4f}", flush=True)
    opt = Optimiser(model)
    for step in range(a.steps):
        ids, _ = feed.next()
        loss, l0, l1, _ = model(ids, data.target_weights(ids, IM_START, assistant, 0.3))
        loss.backward()
        opt.step(a.factor * min(1, (step + 1) / 5) * (1 - step / a.steps))
        print(f"step {step + 1}: loss {float(l0):.4f}, mtp {float(l1):.4f}", flush=True)
    print(f"held-out loss after {a.steps} steps: {held_out_loss(model, a.data, names, a.held_out, a.length):.4f}")
    gguf_io.save(model, a.out, a.data + "/tokenizer.json", recipe(a.type), file_type=int(FILE_TYPE[a.type]), ggml=a.ggml)
    print(a.out, a.type)


if __name__ == "__main__":
    main()
