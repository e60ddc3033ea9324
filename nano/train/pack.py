"""Encodes documents to uint16 token files: `DOMAIN.bin` for training and `DOMAIN.val.bin` (held out by document), 0 ends a document.

Held-out text is chosen by a hash of the document itself, so the same document is held out whatever the order of the files. With
`--exams` a document that repeats or nearly repeats an exam item is dropped (see `tasks/leaks.py`).

usage: python3 -m train.pack MIX TOKENIZER OUT [--exams FILE ...] [--xz] [--jobs N] [--domains a,b]
"""
import argparse
import glob
import hashlib
import json
import lzma
import multiprocessing as mp
import os

import numpy as np

from .chat import SPLIT
from .tokenizer import read_documents

HELD_OUT = 0.015
_STATE = {}


def held_out(text, share=HELD_OUT):
    return int.from_bytes(hashlib.blake2b(text.replace(SPLIT, "").encode(), digest_size=4).digest(), "big") < share * 2 ** 32


def encode(tk, docs):
    """Token ids of each document; SPLIT marks are borders no merge crosses."""
    parts, owner = [], []
    for i, d in enumerate(docs):
        for p in d.split(SPLIT):
            if p:
                parts.append(p)
                owner.append(i)
    out = [[] for _ in docs]
    for i, e in zip(owner, tk.encode_batch_fast(parts, add_special_tokens=False)):
        out[i] += e.ids
    return out


def flatten(rows):
    a = np.fromiter((t for r in rows for t in (*r, 0)), dtype=np.uint16, count=sum(len(r) + 1 for r in rows))
    return a


def load_tokenizer(path):
    from tokenizers import Tokenizer
    return Tokenizer.from_file(path)


def compress(path):
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 0, "lp": 1, "pb": 1}]
    with open(path, "rb") as f, lzma.open(path + ".xz", "wb", filters=filters) as g:
        g.write(f.read())
    return os.path.getsize(path + ".xz")


def pack_domain(job):
    path, tokenizer, out, xz, exams = job
    tk = load_tokenizer(tokenizer)
    docs, name = read_documents(path), os.path.basename(path)[:-4]
    dropped = 0
    if exams:
        from tasks.leaks import Index, parts_of          # only here: `wording` must be the first to import `tasks`
        index = Index([json.loads(line) for path in exams for line in open(path, encoding="utf-8")])
        kept = [d for d in docs if not any(index.find(part) for part in parts_of(d.replace(SPLIT, "")))]
        dropped, docs = len(docs) - len(kept), kept
    sides = {True: [], False: []}
    for d in docs:
        sides[held_out(d)].append(d)
    n = {}
    for side, suffix in ((False, ""), (True, ".val")):
        a = np.concatenate([flatten(encode(tk, sides[side][i:i + 4000])) for i in range(0, len(sides[side]), 4000)] or [np.zeros(0, np.uint16)])
        a.tofile(f"{out}/{name}{suffix}.bin")
        n[suffix] = len(a)
    text = "\0".join(d.replace(SPLIT, "") for d in sides[True])
    with open(f"{out}/{name}.val.txt", "wb") as f:
        f.write(text.encode())
    size = compress(f"{out}/{name}.bin") if xz else 0
    return f"{name:10s} {len(docs):8d} documents, {dropped} near an exam; {n[''] / 1e6:7.2f} M tokens, {n['.val'] / 1e6:.2f} M held out, xz {size / 2 ** 20:.2f} MiB"


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("mix")
    ap.add_argument("tokenizer")
    ap.add_argument("out")
    ap.add_argument("--exams", nargs="*", default=[])
    ap.add_argument("--xz", action="store_true")
    ap.add_argument("--jobs", type=int, default=os.cpu_count())
    ap.add_argument("--domains", default="")
    a = ap.parse_args()
    os.makedirs(a.out, exist_ok=True)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    paths = sorted(glob.glob(a.mix + "/*.txt"), key=lambda p: -os.path.getsize(p))
    paths = [p for p in paths if not a.domains or os.path.basename(p)[:-4] in a.domains.split(",")]
    with mp.Pool(a.jobs) as pool:
        for line in pool.imap_unordered(pack_domain, [(p, a.tokenizer, a.out, a.xz, a.exams) for p in paths], chunksize=1):
            print(line, flush=True)


if __name__ == "__main__":
    main()
