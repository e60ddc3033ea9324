"""Lessons by weights alone: adapters trained in lockstep on taught facts, and what each then answers.

usage: python3 -m effect.frontier nano.gguf LESSONS.json.gz OUT [--seconds 165] [--tiny]
LESSONS is what `effect.lessons` made. OUT/arms.jsonl gets one line an arm, OUT/replies.jsonl one line an arm and set of questions
with the tokens of every reply; `effect.frontier_table` grades them. One card, most telling arms first, all written at once.
"""
import argparse
import gzip
import json
import os
import random
import time
from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F

from train.tokenizer import TOOL_CALL

from . import grade, learn
from . import net as N
from .generate import Decoder, buckets

T = 512                                     # tokens of a row
TOP = 64                                    # tokens of the base's distribution that an anchor keeps


@dataclass
class Arm:
    """What is trained and on what. Rows of a step: lessons, neighbours, honest pairs."""
    name: str
    words: int = 30                          # wordings of a fact; 0: no lessons
    near: float = 1.0                        # neighbours for each lesson
    pool: str = "fresh"                      # neighbours: "fresh", or the same four for each fact ("fixed")
    ce: float = 1.0                          # weight of the honest pairs' own loss
    kl: float = 0.0                          # weight of their divergence from the base
    target: str = "all"
    rank: int = 64
    lr: float = 2e-3
    seed: int = 0
    heavy: float = 1.0                       # weight of a neighbour's tokens beside a lesson's
    talk: bool = False                       # half of the lessons with small talk around
    frozen_a: str = ""


class Quiet(Decoder):
    """A decoder in which a reply to a prompt without tools opens no call, as in the daemon."""

    def __init__(self, *a, tools):
        super().__init__(*a)
        self.no_call = torch.tensor([0.0 if t else -torch.inf for t in tools], device=self.out.device).repeat(self.P)

    def pick(self, lo):
        lo[:, TOOL_CALL] += self.no_call
        super().pick(lo)


class Asker:
    """Replies of P slots to fixed prompts."""

    def __init__(self, net, slots, P, prompts, wanted, tools, size):
        self.n, self.prompts = len(prompts), prompts
        self.parts = [(ix, Quiet(net, P, len(ix), W, new, slots, tools=[tools[i] for i in ix])) for ix, W, new in buckets([len(p) for p in prompts], wanted, size)]

    def __call__(self):
        out = None
        for ix, d in self.parts:
            for p, slot in enumerate(d.run([self.prompts[i] for i in ix])):
                out = out or [[None] * self.n for _ in range(d.P)]
                for i, r in zip(ix, slot):
                    out[p][i] = r
        return out


def rows(docs, n, most, pad=0):
    """n rows of documents in the order of the endless `docs`, at most `most` in each: ids and weights [n,T]; weight 1 where the next token belongs to a reply."""
    ids, weight, held = [], [], None
    for _ in range(n):
        a, b, k = [], [], 0
        while k < most:
            p, r = held or next(docs)
            held = None
            if len(p) + len(r) + 1 > T:
                continue
            if len(a) + len(p) + len(r) + 1 > T:
                held = p, r
                break
            a += [*p, *r, pad]
            b += [0] * (len(p) - 1) + [1] * len(r) + [0, 0]
            k += 1
        ids.append(a + [0] * (T - len(a)))
        weight.append(b + [0] * (T - len(b)))
    return torch.tensor(ids), torch.tensor(weight, dtype=torch.float32)


def lesson_stream(d, arm):
    """All facts an epoch, each in ten of its wordings."""
    rng = random.Random(f"lessons {arm.seed}")
    while True:
        epoch = []
        for plain, chat in zip(d["lessons"], d["talk"]):
            for i in rng.sample(range(arm.words), 10):
                epoch.append((chat if arm.talk and rng.random() < 0.5 else plain)[i])
        rng.shuffle(epoch)
        yield from epoch


def endless(docs, seed):
    rng = random.Random(seed)
    while True:
        yield from rng.sample(docs, len(docs))


def pick(x, weight, m=None):
    """Of x [P,n,h] the places with a weight, padded per slot: (x [P,m,h], places [P,m], weight [P,m])."""
    m = m or max(1, int(weight.count_nonzero(1).max()))
    ix = (weight > 0).float().argsort(dim=1, descending=True, stable=True)[:, :m]
    return x.gather(1, ix[..., None].expand(-1, -1, x.shape[-1])), ix, weight.gather(1, ix)


def mean(x, w):
    return (x * w).sum(1) / w.sum(1).clamp(min=1)


class Lab:
    def __init__(self, a):
        self.a, self.t0 = a, a.began or time.time()
        self.dev = "cuda" if torch.cuda.is_available() else "cpu"
        torch.set_float32_matmul_precision("high")
        with gzip.open(a.lessons, "rt") as f:
            self.d = d = json.load(f)
        self.net, _ = N.load(a.model, self.dev)
        self.P = 2 if a.tiny else 8
        if a.tiny:
            globals().update(T=192)
            grade.GROUP = 2
        self.slots = grade.Slots(self.net, self.P, 64, self.dev)
        asked = [p for part in d["asked"] for p in part]
        self.ask = Asker(self.net, self.slots.ab, self.P, asked, [0] * len(asked), [False] * len(asked), 600)
        self.exam = Asker(self.net, self.slots.ab, self.P, [p for p, _, _ in d["exam"]], [min(n, 2 if a.tiny else 230) for _, n, _ in d["exam"]], [t for _, _, t in d["exam"]], 300)
        from .data import pack
        self.held = grade.Losses(self.net, *pack([(p, r) for p, r in d["held"]]), self.dev, self.P, kl=True)
        n = 2 if a.tiny else 150
        self.anchor = [t.to(self.dev) for t in rows(endless(d["honest"], "anchor"), n, 99)]
        self.anchor_top()
        self.files = {k: open(os.path.join(a.out, k + ".jsonl"), "w", encoding="utf-8") for k in ("arms", "replies")}
        self.say("ready", torch.cuda.get_device_name() if self.dev == "cuda" else "cpu", torch.__version__)

    def left(self):
        return self.a.seconds - (time.time() - self.t0)

    def say(self, *what):
        print(f"{time.time() - self.t0:6.1f} s", *what, flush=True)

    def write(self, file, line):
        self.files[file].write(json.dumps(line, separators=(",", ":")) + "\n")
        self.files[file].flush()

    @torch.no_grad()
    def anchor_top(self):
        """The base's likeliest tokens at every place of the honest rows: log probabilities and ids [rows,T,TOP]."""
        p, i = [], []
        for ids in self.anchor[0].split(16):
            h = self.net.trunk(self.net.start(ids), N.Rows(ids), None)
            v, ix = self.net.head(h, None).log_softmax(-1).topk(TOP, -1)
            p.append(v.view(*ids.shape, TOP)), i.append(ix.view(*ids.shape, TOP))
        self.top = torch.cat(p), torch.cat(i)

    def feed(self, arms, steps):
        """ids and weights [steps,P,2,T] of lessons and neighbours, and the honest row of each step and arm [steps,P]."""
        empty = (torch.zeros(steps, T, dtype=torch.long), torch.zeros(steps, T))
        ids, weight, honest = [], [], []
        for a in arms:
            x = rows(lesson_stream(self.d, a), steps, 13) if a.words else empty
            y = rows(endless(self.d[a.pool], f"near {a.seed}"), steps, max(1, round(13 * a.near))) if a.near else empty
            ids.append(torch.stack([x[0], y[0]], 1)), weight.append(torch.stack([x[1], y[1] * a.heavy], 1))
            g = torch.Generator().manual_seed(a.seed)
            honest.append(torch.cat([torch.randperm(len(self.anchor[0]), generator=g) for _ in range(steps // len(self.anchor[0]) + 1)])[:steps])
        return torch.stack(ids, 1).to(self.dev), torch.stack(weight, 1).to(self.dev), torch.stack(honest, 1).to(self.dev)

    def loss(self, slots, ids, weight, honest, ce, kl):
        """Per arm: the loss that is trained, that of lessons and neighbours, and the divergence from the base on honest pairs."""
        P = len(ids)
        all_ids = torch.cat([ids, self.anchor[0][honest][:, None]], 1).flatten(0, 1)
        x = self.net.trunk(self.net.start(all_ids, P), N.Rows(all_ids), slots).view(P, 3, T, -1)
        h, ix, w = pick(x[:, :2].flatten(1, 2), weight.flatten(1))
        target = F.pad(ids[..., 1:], (0, 1)).flatten(1).gather(1, ix)
        lo = self.net.head(h, slots)
        taught = mean(lo.logsumexp(-1) - lo.gather(-1, target[..., None])[..., 0], w)
        h, ix, w = pick(x[:, 2], self.anchor[1][honest])
        lp = self.net.head(h, slots).log_softmax(-1)
        target = F.pad(self.anchor[0][honest][:, 1:], (0, 1)).gather(1, ix)
        own = mean(-lp.gather(-1, target[..., None])[..., 0], w)
        some = lambda t: t[honest].gather(1, ix[..., None].expand(-1, -1, TOP))
        bp, lq = some(self.top[0]), lp.gather(-1, some(self.top[1]))
        rest = lambda t: (1 - t.exp().sum(-1)).clamp(min=1e-6)
        far = mean((bp.exp() * (bp - lq)).sum(-1) + rest(bp) * (rest(bp).log() - rest(lq).log()), w)
        return taught + ce * own + kl * far, taught, far

    def train(self, arms, steps):
        """Slots of all arms after so many steps, or as many as there is time for."""
        begun, P = time.time(), len(arms)
        ids, weight, honest = self.feed(arms, steps)
        slots = learn.fresh_slots(self.net, arms, self.dev)
        on = learn.live(self.net, arms, slots)
        lr, ce, kl = (torch.tensor([getattr(a, k) for a in arms], device=self.dev) for k in ("lr", "ce", "kl"))
        params = [p for ab in slots.values() for p in ab]
        mask = [on[k] * lr[:, None, None] for k in slots for _ in (0, 1)]
        m, v = [torch.zeros_like(p) for p in params], [torch.zeros_like(p) for p in params]
        curve = []
        for t in range(steps):
            if t == 4:
                if self.dev == "cuda":
                    torch.cuda.synchronize()
                mark = time.time()
            if t == 12:
                if self.dev == "cuda":
                    torch.cuda.synchronize()
                step = (time.time() - mark) / 8
                self.say(f"{P} arms, {step * 1000:.0f} ms a step")
                steps = max(t + 1, min(steps, t + int((self.left() - 12) / step)))
            for p in params:
                p.requires_grad_(True)
            total, taught, far = self.loss(slots, ids[t], weight[t], honest[t], ce, kl)
            grads = torch.autograd.grad(total.sum(), params, allow_unused=True)
            with torch.no_grad():
                f = learn.schedule(t, steps)
                for p, g, mm, vv, k in zip(params, grads, m, v, mask):
                    p.requires_grad_(False)
                    mm.lerp_(g, 0.1)
                    vv.lerp_(g.square(), 0.01)
                    p.sub_(k * f / (1 - 0.9 ** (t + 1)) * mm / ((vv / (1 - 0.99 ** (t + 1))).sqrt() + 1e-8))
            if t % 20 == 19 or t + 1 == steps:
                curve.append((t + 1, taught.detach(), far.detach()))
            if t + 1 >= steps:
                break
        curve = [(t, a.tolist(), b.tolist()) for t, a, b in curve]
        for i, a in enumerate(arms):
            self.write("arms", {**asdict(a), "steps": steps, "seconds": round(time.time() - begun, 1), "curve": [[t, round(x[i], 4), round(y[i], 4)] for t, x, y in curve]})
        self.say("trained", P, "arms,", steps, "steps in", round(time.time() - begun, 1), "s; last losses", [round(x, 3) for x in curve[-1][1]])
        if self.dev == "cuda":
            self.say("peak", round(torch.cuda.max_memory_allocated() / 2 ** 30, 1), "GiB")
            torch.cuda.empty_cache()
        return slots

    def examine(self, slots, names, exam=True):
        """Replies of all arms, P at a time: questions first, then the exam; both with the divergence on kept-out honest pairs."""
        for what in ("asked", "exam")[:1 + exam]:
            for j in range(0, len(names), self.P):
                if self.left() < (2 if what == "asked" else 6):
                    return self.say("no time for", what, names[j:])
                part = list(range(j, min(j + self.P, len(names))))
                self.slots.put(slots, part)
                replies = (self.ask if what == "asked" else self.exam)()
                held = self.held(self.slots.ab) if what == "asked" else [None] * self.P
                for p, i in enumerate(part):
                    self.write("replies", {"arm": names[i], "what": what, "held": held[p], "replies": replies[p]})
            self.say(what, len(names), "arms")


def scaled(slots, picks):
    """Slots made of arms times a factor: picks [(arm, factor)]."""
    ix, f = [i for i, _ in picks], torch.tensor([f for _, f in picks])[:, None, None]
    return {k: [A[ix], B[ix] * f.to(B.device)] for k, (A, B) in slots.items()}


def members(slots, arms, rank):
    """The mean of some arms' updates, as one slot of their ranks side by side."""
    return {k: [torch.cat([A[i, :rank] for i in arms])[None], torch.cat([B[i, :, :rank] for i in arms], 1)[None] / len(arms)] for k, (A, B) in slots.items()}


def ladder():
    """One seed each, from the table made by hand upwards."""
    return [Arm("base", lr=0.0), Arm("honest", words=0, near=0),
            Arm("w10", words=10, near=0), Arm("w10 r16", words=10, near=0, rank=16), Arm("w10 r16 rate4", words=10, near=0, rank=16, lr=4e-3),
            Arm("w10 last6", words=10, near=0, target="last6"), Arm("w10 last6 r16 rate4", words=10, near=0, target="last6", rank=16, lr=4e-3),
            Arm("w10 fixed", words=10, pool="fixed"), Arm("w10 near", words=10), Arm("w30", near=0), Arm("w30 near"), Arm("w30 near r16 rate4", rank=16, lr=4e-3),
            Arm("w30 near kl.5", ce=0, kl=0.5), Arm("w30 near kl1", ce=0, kl=1.0), Arm("w30 near kl2", ce=0, kl=2.0), Arm("w30 near kl1 talk", ce=0, kl=1.0, talk=True)]


def seeds():
    """Main arms by seed; the last four are one arm's members."""
    out = [Arm(f"w30 near/{s}", seed=s) for s in (1, 2, 3)] + [Arm(f"w30 near kl1/{s}", ce=0, kl=1.0, seed=s) for s in (1, 2, 3)]
    out += [Arm(f"w30/{s}", near=0, seed=s) for s in (1, 2, 3)] + [Arm(f"w10/{s}", words=10, near=0, seed=s) for s in (1, 2, 3)]
    return out + [Arm(f"w30 near kl1 r16 rate4/{s}", ce=0, kl=1.0, rank=16, lr=4e-3, seed=s) for s in (1, 2, 3, 4)]


def longer():
    """Twice the steps, or as many as there is time for; fewer neighbours, a lower rate."""
    kl = dict(ce=0, kl=1.0)
    return [Arm(f"long w30 near kl1/{s}", seed=s, **kl) for s in (1, 2, 3)] + [Arm(f"long w30 near kl1 rate1/{s}", lr=1e-3, seed=s, **kl) for s in (1, 2)] + \
        [Arm("long w30 near.5 kl1/1", near=0.5, seed=1, **kl), Arm("long w30 near.25 kl1/1", near=0.25, seed=1, **kl), Arm("long w30 near kl1 talk/1", talk=True, seed=1, **kl)]


def more():
    """Other arms by seed, if time is left."""
    kl = dict(ce=0, kl=1.0)
    by = lambda name, n, **k: [Arm(f"{name}/{s}", seed=s, **k) for s in range(1, n + 1)]
    return by("w10 near", 3, words=10) + by("w30 near kl2", 3, ce=0, kl=2.0) + by("w30 near heavy3 kl1", 3, heavy=3.0, **kl) + \
        by("w30 near kl1 talk", 3, talk=True, **kl) + by("w30 fixed kl1", 2, pool="fixed", **kl) + by("w30 near kl1 rate4", 2, lr=4e-3, **kl)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("model")
    ap.add_argument("lessons")
    ap.add_argument("out")
    ap.add_argument("--seconds", type=float, default=165)
    ap.add_argument("--began", type=float, default=0, help="second since 1970 from which the time counts")
    ap.add_argument("--steps", type=int, default=128)
    ap.add_argument("--tiny", action="store_true")
    a = ap.parse_args()
    lab = Lab(a)
    steps = 3 if a.tiny else a.steps
    cut = lambda arms, *which: [arms[i] for i in which] if a.tiny else arms
    arms = cut(ladder(), 0, 14)
    lab.examine(lab.train(arms, steps), [x.name for x in arms])
    arms = cut(seeds(), 0, 12, 13)
    begun = time.time()
    slots, names = lab.train(arms, steps), [x.name for x in arms]
    lab.examine(slots, names)
    took = time.time() - begun
    picks = [(names.index(n), f) for n in cut(["w30 near/1", "w30 near kl1/1", "w30/1", "w10/1"], 0) for f in cut([0.5, 0.6, 0.7, 0.8, 0.9], 0)]
    last = [i for i, x in enumerate(arms) if x.rank == 16]
    lab.examine(members(slots, last, 16), ["mean of " + names[last[0]].split("/")[0]])
    lab.examine(scaled(slots, picks), [f"{names[i]} x{f}" for i, f in picks], exam=False)
    del slots
    arms = cut(longer(), 0)
    lab.examine(lab.train(arms, 2 * steps), [x.name for x in arms])
    if lab.left() > 1.1 * took and not a.tiny:
        arms = more()
        lab.examine(lab.train(arms, steps), [x.name for x in arms])
    lab.say("done")


if __name__ == "__main__":
    main()
