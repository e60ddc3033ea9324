"""Checkpoint (or random weights) to GGUF: f32, bf16, or the shipped mix of k-quants by sensitivity.

usage: python3 -m train.export CHECKPOINT|random TOKENIZER OUT.gguf [--type f32|bf16|q8_0|q4_k|ship] [--context 4096] [--ggml LIB]
"""
import argparse

import torch
from gguf import GGMLQuantizationType as Q
from gguf import LlamaFileType

from . import gguf_io
from .checkpoint import load_checkpoint

SMALL = ("ffn_gate_inp", "ssm_alpha", "ssm_beta", "ssm_conv1d")          # a few kB each and sensitive: kept f32


def recipe(kind):
    """Tensor name and shape -> ggml type. `ship`: experts Q4_K, what every token reads Q5_K, embedding (also the head) Q6_K: under 30 MB."""
    def choose(name, shape):
        if any(s in name for s in SMALL) or kind == "f32":
            return Q.F32
        if kind in ("bf16", "q8_0"):
            return {"bf16": Q.BF16, "q8_0": Q.Q8_0}[kind]
        if kind == "q4_k":
            return Q.Q6_K if name == "token_embd.weight" else Q.Q4_K
        if "_exps" in name:
            return Q.Q4_K
        return Q.Q6_K if name == "token_embd.weight" else Q.Q5_K
    return choose


FILE_TYPE = {"f32": LlamaFileType.ALL_F32, "bf16": LlamaFileType.MOSTLY_BF16, "q8_0": LlamaFileType.MOSTLY_Q8_0,
             "q4_k": LlamaFileType.MOSTLY_Q4_K_S, "ship": LlamaFileType.MOSTLY_Q4_K_M}


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("checkpoint")
    ap.add_argument("tokenizer")
    ap.add_argument("out")
    ap.add_argument("--type", default="ship", choices=sorted(FILE_TYPE))
    ap.add_argument("--context", type=int, default=4096)
    ap.add_argument("--ggml")
    a = ap.parse_args()
    model = load_checkpoint(a.checkpoint)
    if a.checkpoint.startswith("random"):          # default inits hide wrong conventions: norms of 1, equal gates, a zero shared gate
        g = torch.Generator().manual_seed(1)
        for n, p in model.named_parameters():
            if p.ndim == 1 and "a_log" not in n and "ssm_dt" not in n:
                p.data += 0.3 * torch.randn(p.shape, generator=g)
            elif p.ndim > 1 and "conv1d" not in n:
                p.data *= 3
    gguf_io.save(model, a.out, a.tokenizer, recipe(a.type), a.context, int(FILE_TYPE[a.type]), a.ggml)
    print(a.out, a.type)


if __name__ == "__main__":
    main()
