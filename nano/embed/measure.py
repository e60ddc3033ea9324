"""How well nano-embed finds what belongs together, beside BM25 over words on the same questions and candidates. Held-out pairs of each set:
the first text must find its second among those of all others; and each question of the slice exam the training's questions of its family.

usage (in nano/): python3 -m embed.measure nano-embed.gguf CORPUS TEXTS
"""
import argparse
import json
import math
import re
from collections import Counter, defaultdict

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize

from embed.data import HELD_OUT, pairs, question, share, short
from tasks.exam import items
from train.tokenizer import from_gguf

TOKENS = 96             # of a text that are read
CANDIDATES = 1000       # texts of which the right one must be found
K1, B = 1.2, 0.75       # as Robertson and Zaragoza (2009) recommend


class Embedder:
    """A text is the sum of its tokens' vectors, made one long."""

    def __init__(self, path):
        tensor = next(t for t in GGUFReader(path).tensors if t.name == "token_embd.weight")
        self.vectors = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        self.tokenizer = from_gguf(path)

    def scores(self, asked, known):
        a, b = (self.embed(texts) for texts in (asked, known))
        return a @ b.T

    def embed(self, texts):
        rows = [e.ids[:TOKENS] for e in self.tokenizer.encode_batch(list(texts), add_special_tokens=False)]
        sums = np.stack([self.vectors[ids].sum(0) for ids in rows])
        return sums / np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1e-9)


class Bm25:
    """Words in lower case, weighed by how few of the candidates have them."""

    def scores(self, asked, known):
        words = [re.findall(r"\w+", text.lower()) for text in known]
        mean = sum(map(len, words)) / len(words)
        lists = defaultdict(list)
        for n, row in enumerate(words):
            for word, count in Counter(row).items():
                lists[word].append((n, count * (K1 + 1) / (count + K1 * (1 - B + B * len(row) / mean))))
        out = np.zeros((len(asked), len(known)), np.float32)
        for n, text in enumerate(asked):
            for word in set(re.findall(r"\w+", text.lower())):
                found = lists.get(word, ())
                weight = math.log(1 + (len(known) - len(found) + 0.5) / (len(found) + 0.5))
                for at, value in found:
                    out[n, at] += weight * value
        return out


def wilson(right, n, z=1.959964):
    """Per cent with its 95 % interval."""
    p, d = right / n, 1 + z * z / n
    m, h = (p + z * z / (2 * n)) / d, z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / d
    return [round(100 * v, 1) for v in (p, m - h, m + h)]


def recall(scores, at):
    """Share of rows whose own column is among the best `at`; as good as it counts against it."""
    better = (scores >= scores.diagonal()[:, None]).sum(1) - 1
    return wilson(int((better < at).sum()), len(scores))


def figures(path, held, known, asked):
    """`held`: (set, text, text); `known`, `asked`: (family, question)."""
    out, finders = {}, {"nano-embed": Embedder(path), "bm25": Bm25()}
    for name in sorted({r[0] for r in held if not r[0].startswith("family:")}):
        rows = [r for r in held if r[0] == name][:CANDIDATES]
        if len(rows) >= 20:
            out[name] = {"n": len(rows)}
            for finder, f in finders.items():
                scores = f.scores([r[1] for r in rows], [r[2] for r in rows])
                out[name][finder] = {"recall@1": recall(scores, 1), "recall@5": recall(scores, 5)}
    out["family"] = {"n": len(asked), "known": len(known)}
    for finder, f in finders.items():
        nearest = f.scores([q for _, q in asked], [q for _, q in known]).argmax(1)
        right = sum(known[at][0] == family for at, (family, _) in zip(nearest, asked))
        out["family"][finder] = {"nearest": wilson(right, len(asked))}
    return out


def families(rows):
    """The training's questions and the slice exam's, with their families."""
    known = [(name[7:], a) for name, a, _ in rows if name.startswith("family:")]
    return known, [(i["family"], short(question(i))) for i in items("golden/slice.jsonl.gz")]


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("model")
    ap.add_argument("corpus")
    ap.add_argument("texts")
    a = ap.parse_args()
    rows = list(pairs(a.corpus, a.texts))
    held = [r for r in rows if share(r[1]) < HELD_OUT]
    known, asked = families([r for r in rows if share(r[1]) >= HELD_OUT])
    print(json.dumps(figures(a.model, held, known, asked), indent=1))


if __name__ == "__main__":
    main()
