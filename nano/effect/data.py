"""A day's traffic, verified pairs from it, the held-out exam, and rows of tokens.

Traffic is made by the task generators on the training side (names, numbers, facts) in wordings that neither the training of nano
nor any exam has (`wordings.json`); a fifth of the families never occurs in it, to see what is forgotten. The exam has the
held-out wordings, names and numbers of the `slice` distribution under another seed than the frozen file.
"""
import json
import os
import random
import sys

import numpy as np
import torch

import tasks
from tasks.core import FAMILIES, bucket
from tasks.exam import prompt_key, unique_items
from train.chat import SPLIT, item_text, parse_reply, render
from train.tokenizer import IM_END

HERE = os.path.dirname(os.path.abspath(__file__))
T = 768                                     # tokens of a packed row: the longest pair fits


def absent(family):
    """Families that traffic never has."""
    return bucket("absent:" + family) < 20


def tokenizer(gguf_path):
    """The tokenizer stored in the GGUF."""
    from gguf import GGUFReader
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
    from train.tokenizer import CONTROL, PRE_TOKENIZER, USER_DEFINED
    f = GGUFReader(gguf_path).fields
    pieces = f["tokenizer.ggml.tokens"].contents()
    merges = [tuple(m.split(" ")) for m in f["tokenizer.ggml.merges"].contents()]
    tk = Tokenizer(models.BPE(vocab={p: i for i, p in enumerate(pieces)}, merges=merges))
    tk.decoder = decoders.ByteLevel()
    tk.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(PRE_TOKENIZER), "isolated"),
                                                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tk.add_special_tokens([AddedToken(t, special=True) for t in CONTROL + USER_DEFINED])
    return tk


class fresh_wordings:
    """While open, the training side of every pool that `wordings.json` names has those phrasings alone."""

    def __enter__(self):
        with open(os.path.join(HERE, "wordings.json"), encoding="utf-8") as f:
            mine = json.load(f)
        self.saved = []
        for name, phrasings in mine.items():
            mod, var = name.split(".")
            pool = getattr(sys.modules["tasks." + mod], var)
            held = {t.lower().strip() for s in pool.of for _, t in pool.of[s] if isinstance(t, str)}
            new = [(f"{name}.f{i}", t) for i, t in enumerate(phrasings) if t.lower().strip() not in held]
            self.saved.append((pool, pool.of["train"]))
            if new:
                pool.of["train"] = new
        return self

    def __exit__(self, *_):
        for pool, old in self.saved:
            pool.of["train"] = old


def traffic(n, seed, fresh=True, families=None):
    """n different items of a day, families evenly within a domain, domains evenly."""
    from contextlib import nullcontext
    names, out, seen = families or [f for f in FAMILIES if not absent(f)], [], set()
    with fresh_wordings() if fresh else nullcontext():
        for it in tasks.generate("train", seed, 20 * n, names, balanced=True):
            key = prompt_key(it)
            if key not in seen:
                seen.add(key)
                out.append(it)
            if len(out) == n:
                break
    random.Random(seed).shuffle(out)
    return out


def exams(n_exam, n_tune):
    """(exam, tuning) items of the slice distribution, no prompt in both."""
    exam = unique_items("slice", 7101, n_exam)
    return exam, unique_items("slice", 7102, n_tune, {prompt_key(i) for i in exam})


class Coder:
    def __init__(self, tk):
        self.tk = tk

    def ids(self, text):
        return [t for part in text.split(SPLIT) if part for t in self.tk.encode(part, add_special_tokens=False).ids]

    def prompt(self, it):
        return self.ids(render(it["messages"], it.get("tools"), "think"))

    def reply(self, it):
        """The reference reply in nano's own form, stop token included."""
        head = render(it["messages"], it.get("tools"), "think")
        text = item_text(it)
        if not text.replace(SPLIT, "").startswith(head):
            raise ValueError("prompt and text differ: " + it["id"])
        ids = self.ids(text[len(head):])
        return ids[:max(i for i, t in enumerate(ids) if t == IM_END) + 1]

    def good(self, it, ids):
        _, answer, calls = parse_reply(self.tk.decode(ids, skip_special_tokens=False), it.get("tools"))
        return calls is not None and bool(tasks.check(it, answer, calls))


def pack(pairs, seed=0, length=T):
    """(ids [n,T], weight [n,T]): pairs of (prompt ids, reply ids[, weight]) in rows; weight (1) where the NEXT token belongs to a reply."""
    rows, order = [], list(pairs)
    random.Random(seed).shuffle(order)
    for p, r, *weight in order:
        if len(p) + len(r) + 1 > length:
            continue
        home = next((row for row in rows[-8:] if len(row[0]) + len(p) + len(r) + 1 <= length), None)
        if home is None:
            rows.append(home := ([], []))
        home[0].extend([*p, *r, 0])
        home[1].extend([0] * (len(p) - 1) + [weight[0] if weight else 1] * len(r) + [0, 0])
    fill = lambda a: a + [0] * (length - len(a))
    return torch.tensor([fill(a) for a, _ in rows]), torch.tensor([fill(b) for _, b in rows], dtype=torch.float32)


def text_rows(folder, n, length=T):
    """Held-out text of the training domains, cut into rows: (ids, weight, names of the domains)."""
    ids, weight, names = [], [], []
    for name in ("wiki", "books", "dialogue", "qa", "code", "textbooks", "cyber", "math"):
        path = os.path.join(folder, name + ".val.bin")
        if os.path.exists(path):
            a = np.fromfile(path, np.uint16, count=n * length).astype(np.int64)
            a = torch.from_numpy(a[:len(a) // length * length]).view(-1, length)
            w = torch.zeros(a.shape)
            w[:, :-1] = ((a[:, 1:] != 0) & (a[:, :-1] != 0)).float()
            ids.append(a)
            weight.append(w)
            names += [name] * len(a)
    return (torch.cat(ids), torch.cat(weight), names) if ids else (None, None, names)
