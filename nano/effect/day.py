"""A day of traffic with nano's own replies and their verdicts, and the data sets that a night could make of it."""
import random

import torch

from train.tokenizer import IM_END

from . import data, grade
from .generate import Examiner

HEAT = 0.9                                  # of the four sampled replies


class Day:
    """`items` with the reference replies, and replies of nano's own to each (the first greedy) with `right` for each."""

    def __init__(self, net, coder, grader, dev, small):
        n = 24 if small else 4000
        self.items = data.traffic(n, 31)
        self.prompts = [coder.prompt(i) for i in self.items]
        self.replies = [coder.reply(i) for i in self.items]
        grader.slots.put(None, [])
        heat = torch.full((grader.P,), HEAT, device=dev)
        heat[0] = 0
        self.own = Examiner(net, grader.slots.ab, grader.P, self.prompts, [len(r) for r in self.replies], 400)(heat)
        if dev == "cuda":
            torch.cuda.empty_cache()
        check = grade.Checker(coder, self.items, 1 if small else 10)
        self.right = [[c == "1" for c in f()] for f in [check(r) for r in self.own]]
        check.pool.shutdown()
        seen = data.traffic(8 if small else 2500, 32, fresh=False)
        self.seen = [(coder.prompt(i), coder.reply(i)) for i in seen]
        fail, of = {}, {}
        for it, r in zip(self.items, self.right[0]):
            fail[it["family"]] = fail.get(it["family"], 0) + (not r)
            of[it["family"]] = of.get(it["family"], 0) + 1
        self.weak = [fail[i["family"]] / of[i["family"]] for i in self.items]
        self.facts = {"items": n, "right": [sum(r) / n for r in self.right], "any": sum(map(any, zip(*self.right))) / n,
                      "right_by_family": {f: round(1 - fail[f] / of[f], 3) for f in sorted(of)}}

    def pairs(self, name, seed):
        """A data set such as fresh:1000 for one seed: list of (prompt, reply)."""
        kind, _, size = name.partition(":")
        size, r, ix = int(size or 1000), random.Random(f"{name}/{seed}"), list(range(len(self.items)))
        r.shuffle(ix)
        own = lambda i, p: self.own[p][i] + [IM_END]
        ref = lambda i: (self.prompts[i], self.replies[i])
        pick = lambda i, want: next((p for p in r.sample(range(len(self.own)), len(self.own)) if self.right[p][i] == want), None)
        if kind == "fresh":
            got = [ref(i) for i in ix]
        elif kind == "seen":
            got = r.sample(self.seen, len(self.seen))
        elif kind == "failed":                                 # wrong at first, the right reply known (a correction)
            got = [ref(i) for i in ix if not self.right[0][i]]
        elif kind == "weak":                                   # drawn by the failure share of the family
            got = [ref(i) for i in ix if r.random() < self.weak[i] / max(self.weak)]
        elif kind in ("sampled", "rescued"):                   # nano's own right replies; rescued: only where the greedy one is wrong
            some = [(i, pick(i, True)) for i in ix if kind == "sampled" or not self.right[0][i]]
            got = [(self.prompts[i], own(i, p)) for i, p in some if p is not None]
        elif kind == "shuffled":                               # placebo: own replies whatever their verdict
            got = [(self.prompts[i], own(i, r.randrange(len(self.own)))) for i in ix]
        elif kind == "wrong":                                  # own replies that are wrong
            got = [(self.prompts[i], own(i, p)) for i, p in ((i, pick(i, False)) for i in ix) if p is not None]
        elif kind == "earned":                                 # own right replies, and corrections where nano fails
            got = [(self.prompts[i], own(i, pick(i, True))) if self.right[0][i] else ref(i) for i in ix]
        else:
            raise ValueError("no data set " + name)
        return got[:size]
