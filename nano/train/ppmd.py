"""Bits per byte of PPMd on the held-out text, primed with training text of the same domain: the yardstick for the model's figures.

usage: python3 -m train.ppmd MIX DATA [--prime BYTES] [--limit BYTES]      (needs `pip install pyppmd`)
"""
import argparse
import glob
import os

import pyppmd

from .chat import SPLIT
from .pack import held_out
from .tokenizer import read_documents


def size(data):
    return len(pyppmd.compress(data, max_order=12, mem_size=512 << 20))


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("mix")
    ap.add_argument("data")
    ap.add_argument("--prime", type=int, default=4_000_000)
    ap.add_argument("--limit", type=int, default=60_000)
    a = ap.parse_args()
    for path in sorted(glob.glob(a.data + "/*.val.txt")):
        name = os.path.basename(path)[:-8]
        with open(path, "rb") as f:
            text = f.read(a.limit)
        seen, used = [], 0
        for d in read_documents(f"{a.mix}/{name}.txt"):
            if used > a.prime:
                break
            if not held_out(d):
                seen.append(d.replace(SPLIT, "").encode())
                used += len(seen[-1])
        prime = b"\0".join(seen)
        print(f"{name:10s} primed with {len(prime)} bytes: {8 * (size(prime + text) - size(prime)) / len(text):.4f} bits per byte on {len(text)} bytes", flush=True)


if __name__ == "__main__":
    main()
