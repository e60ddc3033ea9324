"""Training files of the generated tasks: many seeds in parallel, rendered, encoded, written as `synthetic.NNN.bin`.

One in eight items with a thought is also taught with thinking switched off; items without a thought are shown both as "chosen to
answer at once" and as "switched off", because the daemon uses both prompts.

usage: python3 -m train.synth TOKENIZER OUT [--files 64] [--items 20000] [--jobs N] [--families a,b] [--name synthetic] [--first 0]
"""
import argparse
import multiprocessing as mp
import os
import random
import time

from .chat import item_text
from .pack import encode, flatten, load_tokenizer


def texts(seed, n, families=None):
    import sys
    from .wording import extended_tasks, vary
    tasks = sys.modules["tasks"] if getattr(sys.modules.get("tasks"), "extended", False) else extended_tasks()
    rng = random.Random(f"form {seed}")
    with open(os.path.join(os.path.dirname(__file__), "words.txt"), encoding="utf-8") as f:
        words = f.read().split()
    for item in tasks.generate("train", seed, n, families):
        item = vary(item, rng, words)
        direct = 0.12 if item["think"] else 0.4
        yield item_text(item, "direct" if rng.random() < direct else "think")


def make(job):
    seed, n, tokenizer, path, families = job
    tk, ids = load_tokenizer(tokenizer), []
    chunk = []
    for t in texts(seed, n, families):
        chunk.append(t)
        if len(chunk) == 2000:
            ids.append(flatten(encode(tk, chunk)))
            chunk = []
    if chunk:
        ids.append(flatten(encode(tk, chunk)))
    import numpy as np
    a = np.concatenate(ids)
    a.tofile(path + ".part")
    os.replace(path + ".part", path)
    return len(a)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("tokenizer")
    ap.add_argument("out")
    ap.add_argument("--files", type=int, default=64)
    ap.add_argument("--items", type=int, default=20000)
    ap.add_argument("--jobs", type=int, default=os.cpu_count())
    ap.add_argument("--families", default="")
    ap.add_argument("--name", default="synthetic")
    ap.add_argument("--first", type=int, default=0)
    a = ap.parse_args()
    os.makedirs(a.out, exist_ok=True)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    t, total = time.time(), 0
    jobs = [(s, a.items, a.tokenizer, f"{a.out}/{a.name}.{s:03d}.bin", a.families.split(",") if a.families else None)
            for s in range(a.first, a.first + a.files)]
    with mp.Pool(a.jobs) as pool:
        for n in pool.imap_unordered(make, jobs, chunksize=1):
            total += n
    print(f"{a.name}: {a.files * a.items} items, {total / 1e6:.1f} M tokens in {time.time() - t:.0f} s", flush=True)


if __name__ == "__main__":
    main()
