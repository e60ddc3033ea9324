"""Nights in a row: what each arm makes of its own days, and the training of many arms in lockstep.

An arm answers the day's traffic with its own adapter, gets feedback on a share of it, and turns that into pairs; then it trains, either
going on from its adapter or afresh on everything so far.
"""
import random
from dataclasses import dataclass

import torch

from train.tokenizer import IM_END

from . import data, learn
from . import net as N

FEEDBACK = 0.8                              # share of the day's replies that the user judges


@dataclass
class Recipe:
    """One arm of the week."""
    name: str
    pairs: str = "earned"                   # see `choose`
    mode: str = "continue"                  # or "afresh": from zero on all pairs so far, in the nights of `trains`
    replay: float = 0.5                     # pairs of earlier nights for each pair of tonight
    rank: int = 8
    target: str = "last6"
    lr: float = 2e-3
    fade: float = 0.0                       # night t has the rate lr / (1 + fade * t)
    epochs: int = 1
    rows: int = 2                           # rows of a step, about five pairs each
    weight: float = 1.0                     # of a correction, against 1 of an own right reply
    seed: int = 0
    trains: tuple = (0, 1, 2, 3, 4, 5, 6)

    def facts(self):
        return {k: v for k, v in self.__dict__.items() if k != "trains"}


class State:
    """What an arm keeps: its adapter {key: (A, B)} and the pairs of every night."""

    def __init__(self, net, recipe, device):
        self.recipe, self.net, self.device, self.nights = recipe, net, device, []
        self.slots = self.zero()

    def zero(self):
        """An adapter that changes nothing: A random of unit output, B zero."""
        r = self.recipe
        one = learn.fresh_slots(self.net, [learn.Arm(r.target, "", r.seed, r.lr, r.rank)], self.device)
        return {k: (A[0], B[0]) for k, (A, B) in one.items()}

    def update_rms(self):
        """The largest root mean square of a matrix's change, as the gate measures it."""
        return max(float((B @ A).square().mean().sqrt()) for A, B in self.slots.values())

    def lesson(self, night):
        """Tonight's rows: (ids, weight), or None when this night does not train."""
        r, rng = self.recipe, random.Random(f"{self.recipe.seed}/{night}")
        if night not in r.trains or r.pairs == "none":
            return None
        earlier = [p for n in self.nights[:-1] for p in n]
        tonight = self.nights[-1]
        if r.mode == "afresh":
            self.slots = self.zero()
            return data.pack(tonight + earlier, night)
        return data.pack(tonight + rng.sample(earlier, min(len(earlier), round(r.replay * len(tonight)))), night)


class Day:
    """One night's items with their prompts, reference replies and corrections without working."""

    def __init__(self, coder, items):
        self.items, self.coder = items, coder
        self.prompts = [coder.prompt(i) for i in items]
        self.replies = [coder.reply(i) for i in items]
        self.bare = [coder.reply({**i, "think": ""}) for i in items]

    def judged(self, recipe):
        """Whether the user gives feedback on each item: the same for all arms of a seed."""
        rng = random.Random(f"feedback/{recipe.seed}/{self.items[0]['id']}")
        return [rng.random() < FEEDBACK for _ in self.items]

    def choose(self, recipe, own, right, sampled=None):
        """The night's pairs (prompt, reply, weight) of an arm from its own replies and their verdicts.

        earned: own right replies, corrections (with working) where wrong. bare: the corrections have no working. corrected: corrections
        only; even: and as many own right replies. found: instead of corrections the first right one of four own samples. reference:
        corrections for everything. placebo: own replies whatever the verdict.
        """
        rng = random.Random(f"pairs/{recipe.seed}/{self.items[0]['id']}")
        kind, good, bad = recipe.pairs, [], []
        for i, judged in enumerate(self.judged(recipe)):
            if not judged or kind == "none":
                continue
            mine = (self.prompts[i], own[i] + [IM_END], 1.0)
            fix = self.bare[i] if kind == "bare" else self.replies[i]
            if kind == "placebo":
                good.append(mine)
            elif kind == "reference":
                good.append((self.prompts[i], fix, 1.0))
            elif right[i]:
                good.append(mine)
            elif kind != "found":
                bad.append((self.prompts[i], fix, recipe.weight))
            elif sampled and sampled.get(i):
                bad.append((self.prompts[i], sampled[i] + [IM_END], recipe.weight))
        if kind == "corrected":
            good = []
        if kind == "even":
            good = rng.sample(good, min(len(good), len(bad)))
        return good + bad


def stacked(states):
    """{key: [A [P,rank,in], B [P,out,rank]]} of arms of any rank and target; what an arm has not is zero and stays zero."""
    rank, dev, shapes = max(s.recipe.rank for s in states), states[0].device, states[0].net.shapes()
    out = {}
    for key in sorted({k for s in states for k in s.slots}, key=str):
        o, i = shapes[key]
        A, B = torch.zeros(len(states), rank, i, device=dev), torch.zeros(len(states), o, rank, device=dev)
        for p, s in enumerate(states):
            if key in s.slots:
                a, b = s.slots[key]
                A[p, :len(a)], B[p, :, :len(a)] = a, b
        out[key] = [A, B]
    return out


def _orders(states, lessons, night):
    """For each arm the rows of its steps [steps, rows]."""
    out = []
    for s, (ids, _) in zip(states, lessons):
        r, g = s.recipe, torch.Generator().manual_seed(1000 * s.recipe.seed + night)
        order = torch.cat([torch.randperm(len(ids), generator=g) for _ in range(r.epochs)])
        short = -len(order) % r.rows
        out.append(torch.cat([order, order[:short]]).view(-1, r.rows))
    return out


def train(net, states, lessons, night):
    """Adam on all arms in lockstep, in place; arms with fewer steps leave earlier. Returns each arm's mean loss over its last ten steps."""
    orders, dev, most = _orders(states, lessons, night), states[0].device, max(s.recipe.rows for s in states)
    alive, done, last = list(range(len(states))), 0, [[] for _ in states]
    slots = stacked(states)
    adam = {k: [[torch.zeros_like(p), torch.zeros_like(p)] for p in ab] for k, ab in slots.items()}
    while alive:
        until = min(len(orders[a]) for a in alive)
        top = [states[a].recipe.lr / (1 + states[a].recipe.fade * night) for a in alive]
        for t in range(done, until):
            ids, w = zip(*(_rows(lessons[a], orders[a][t], most) for a in alive))
            ids, w = torch.cat(ids).to(dev), torch.cat(w).to(dev)
            lr = torch.tensor([x * learn.schedule(t, len(orders[a])) for x, a in zip(top, alive)], device=dev)[:, None, None]
            got = _step(net, slots, adam, ids, w, lr, t)
            for a, x in zip(alive, got):
                last[a].append(x)
        stay = [j for j, a in enumerate(alive) if len(orders[a]) > until]
        for j, a in enumerate(alive):
            if j not in stay:
                r = states[a].recipe.rank
                states[a].slots = {k: (slots[k][0][j, :r].clone(), slots[k][1][j, :, :r].clone()) for k in states[a].slots}
        pick = torch.tensor(stay, dtype=torch.long, device=dev)
        slots = {k: [p[pick] for p in ab] for k, ab in slots.items()}
        adam = {k: [[m[pick] for m in mv] for mv in pairs] for k, pairs in adam.items()}
        alive, done = [alive[j] for j in stay], until
    return [round(float(torch.stack(x[-10:]).mean()), 4) for x in last]


def _rows(lesson, at, most):
    """The rows of a step, filled up with empty ones."""
    (ids, w), gap = lesson, most - len(at)
    return torch.cat([ids[at], ids.new_zeros(gap, ids.shape[1])]), torch.cat([w[at], w.new_zeros(gap, w.shape[1])])


def _step(net, slots, adam, ids, w, lr, t):
    params = [p.requires_grad_(True) for ab in slots.values() for p in ab]
    loss = learn.losses(net, net.start(ids, lr.shape[0]), N.Rows(ids), w, slots, 0)
    grads = torch.autograd.grad(loss.sum(), params, allow_unused=True)
    with torch.no_grad():
        for p, g, (m, v) in zip(params, grads, (mv for pairs in adam.values() for mv in pairs)):
            p.requires_grad_(False)
            if g is not None:
                m.lerp_(g, 0.1)
                v.lerp_(g.square(), 0.01)
                p.sub_(lr * (m / (1 - 0.9 ** (t + 1))) / ((v / (1 - 0.99 ** (t + 1))).sqrt() + 1e-8))
    return loss.detach()
