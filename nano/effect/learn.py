"""The learners: Adam on low-rank slots by backpropagation, and zeroth-order steps from populations of perturbed slots.

Many arms (method setting x seed) run in lockstep, each in a slot of its own with its own rows. Layers below the first trained one
never change, so their output is computed once per row (`Feed.x`).
"""
import math
from dataclasses import dataclass, field

import torch

from . import net as N

GROUP = 160                                  # rows of one forward pass without gradients
TARGETS = {                                  # name -> (first layer from the end, short names or None for all, head too)
    "all": (8, None, False), "mixers6": (6, ("qkv", "gate", "out", "q", "k", "v", "o"), False), "all+head": (8, None, True), "last6": (6, None, False), "last4": (4, None, False), "last3": (3, None, False), "last2": (2, None, False), "last": (1, None, False), "last+head": (1, None, True),
    "ffn+head": (1, ("o", "sg", "su", "sd"), True), "shared": (1, ("sg", "su", "sd"), False), "shared+head": (1, ("sg", "su", "sd"), True), "head": (0, (), True)}


def target_keys(net, name):
    back, short, head = TARGETS[name]
    L = net.c.layers
    return [k for k in net.shapes() if (k[0] == L and head) or (L - back <= k[0] < L and (short is None or k[1] in short))]


def first_layer(net, name):
    return max(0, net.c.layers - TARGETS[name][0])


@dataclass
class Arm:
    """One run: what is trained, how, on which rows."""
    target: str
    data: str
    seed: int
    lr: float
    rank: int = 8
    method: str = "adam"
    sigma: float = 0.0
    n: int = 0                               # population
    frozen_a: str = ""                       # "random" or "pca": only B moves
    curve: list = field(default_factory=list)

    def facts(self):
        return {k: v for k, v in self.__dict__.items() if k != "curve"}


class Feed:
    """Rows of a data set with the hidden states at a layer; draws follow the arm's seed, epoch by epoch."""

    def __init__(self, net, ids, weight, first, device):
        self.ids, self.weight, self.tokens = ids.to(device), weight.to(device), int((ids != 0).sum())
        self.x = torch.cat([net.trunk(net.start(p), N.Rows(p), None, 0, first).view(len(p), p.shape[1], -1)
                            for p in N.padded(self.ids, GROUP)])[:len(ids)] if first else None

    def order(self, seed, steps, rows):
        g, out = torch.Generator().manual_seed(1000 + seed), []
        while sum(map(len, out)) < steps * rows:
            out.append(torch.randperm(len(self.ids), generator=g))
        return torch.cat(out)[:steps * rows].view(steps, rows)


def losses(net, x, rows, weight, slots, first):
    """Mean loss of each slot over its scored tokens [P]; x [P,n*T,h] the states at `first`."""
    P = x.shape[0]
    h, target, w = N.gather(net.trunk(x, rows, slots, first), weight, rows.ids, P)
    lo = net.head(h, slots)
    nll = lo.logsumexp(-1) - lo.gather(-1, target[..., None])[..., 0]
    return (nll * w).sum(1) / w.sum(1).clamp(min=1)


def fresh_slots(net, arms, device, moments=None):
    """A and B of every target of every arm: {key: [A, B]}; A random of unit output (or the main directions of its inputs), B zero."""
    rank, shapes, out = max(a.rank for a in arms), net.shapes(), {}
    for key in sorted({k for a in arms for k in target_keys(net, a.target)}, key=str):
        o, i = shapes[key]
        A, B = torch.zeros(len(arms), rank, i), torch.zeros(len(arms), o, rank)
        for j, a in enumerate(arms):
            if key in target_keys(net, a.target):
                if a.frozen_a == "pca" and moments is not None:
                    A[j, :a.rank] = directions(moments, key, i)[:a.rank]
                else:
                    g = torch.Generator().manual_seed(a.seed * 7919 + key[0] * 101 + sum(map(ord, key[1])))
                    A[j, :a.rank] = torch.randn(a.rank, i, generator=g) / math.sqrt(i)
        out[key] = [A.to(device), B.to(device)]
    return out


def directions(moments, key, i):
    """The main directions of a matrix's inputs, each scaled to outputs of unit size, largest first [i,i]."""
    if not isinstance(moments[key], tuple):
        m = moments[key].double()
        val, vec = torch.linalg.eigh(m / m.diagonal().sum() * i)
        moments[key] = ((vec / val.clamp(min=1e-4).sqrt()).mT.flip(0).float().cpu(),)
    return moments[key][0]


def live(net, arms, slots):
    """1 where an arm trains a target: {key: [P,1,1]}."""
    dev = next(iter(slots.values()))[0].device
    return {k: torch.tensor([float(k in target_keys(net, a.target)) for a in arms], device=dev)[:, None, None] for k in slots}


def schedule(t, steps):
    return min(1.0, (t + 1) / max(1, steps // 20)) * (1 - t / steps)


def batch(feeds, orders, t, P):
    pick = [o[t].to(f.ids.device) for f, o in zip(feeds, orders)]
    ids = torch.cat([f.ids[p] for f, p in zip(feeds, pick)])
    w = torch.cat([f.weight[p] for f, p in zip(feeds, pick)])
    x = None if feeds[0].x is None else torch.cat([f.x[p] for f, p in zip(feeds, pick)]).view(P, -1, feeds[0].x.shape[-1])
    return ids, w, x


def adam(net, arms, feeds, first, steps, rows, checkpoints, report, device):
    """All arms in lockstep; `report(step, slots)` at the checkpoints. Returns the slots."""
    slots, P = fresh_slots(net, arms, device), len(arms)
    on = live(net, arms, slots)
    lr = torch.tensor([a.lr for a in arms], device=device)[:, None, None]
    params = [p for ab in slots.values() for p in ab]
    mask = [on[k] for k in slots for _ in (0, 1)]
    m, v = [torch.zeros_like(p) for p in params], [torch.zeros_like(p) for p in params]
    orders = [f.order(a.seed, steps, rows) for f, a in zip(feeds, arms)]
    for t in range(steps):
        for p in params:
            p.requires_grad_(True)
        ids, w, x = batch(feeds, orders, t, P)
        loss = losses(net, net.start(ids, P) if x is None else x, N.Rows(ids), w, slots, first)
        grads = torch.autograd.grad(loss.sum(), params, allow_unused=True)
        with torch.no_grad():
            for p, g, mm, vv, k in zip(params, grads, m, v, mask):
                if g is None:
                    continue
                mm.lerp_(g, 0.1)
                vv.lerp_(g.square(), 0.01)
                step = mm / (1 - 0.9 ** (t + 1)) / ((vv / (1 - 0.99 ** (t + 1))).sqrt() + 1e-8)
                p.requires_grad_(False).sub_(lr * schedule(t, steps) * step * k)
        for p in params:
            p.requires_grad_(False)
        if t + 1 in checkpoints:
            report(t + 1, slots)
    return slots


@torch.no_grad()
def zeroth(net, arms, feeds, first, steps, rows, checkpoints, report, device, moments=None, clock=None):
    """Zeroth-order steps, arms in lockstep, all with the same population and method.

    one: population of one-sided perturbations, weights (L_i - mean) / std (FZOO's normalised step with the mean as its base)
    anti: the same with mirrored pairs; mezo: n = 2 mirrored, g = (L+ - L-) / (2 sigma) z, plain SGD; sign: as one, +-1 noise.
    """
    slots, P, n = fresh_slots(net, arms, device, moments), len(arms), arms[0].n
    on, method = live(net, arms, slots), arms[0].method
    lr, sigma = (torch.tensor([getattr(a, k) for a in arms], device=device)[:, None, None] for k in ("lr", "sigma"))
    only_b = bool(arms[0].frozen_a)
    orders = [f.order(a.seed, steps, rows) for f, a in zip(feeds, arms)]
    gen = torch.Generator(device).manual_seed(sum(a.seed for a in arms) + 17 * n)
    per = max(1, GROUP // rows)                                                  # slots of one forward pass
    half = method in ("anti", "mezo")
    rankmask = torch.tensor([[float(j < a.rank) for j in range(max(b.rank for b in arms))] for a in arms], device=device)
    for t in range(steps):
        if clock and clock():
            break
        ids, w, x = batch(feeds, orders, t, P)
        x = net.start(ids, P) if x is None else x
        noise = {}
        for k, (A, B) in slots.items():
            draw = lambda s, rm: (torch.randn(P, n // 2 if half else n, *s, device=device, generator=gen) if method != "sign" else
                                  torch.randint(0, 2, (P, n, *s), device=device, generator=gen) * 2.0 - 1) * rm * on[k][:, None]
            zb = draw(B.shape[1:], rankmask[:, None, None, :])
            za = None if only_b else draw(A.shape[1:], rankmask[:, None, :, None]) / math.sqrt(A.shape[-1])
            noise[k] = [None if z is None else torch.cat([z, -z], 1) if half else z for z in (za, zb)]
        flat = {k: [(p[:, None].expand(-1, n, -1, -1) if z is None else p[:, None] + sigma[:, None] * z).flatten(0, 1) for p, z in zip(ab, noise[k])]
                for k, ab in slots.items()}
        owner = torch.arange(P, device=device).repeat_interleave(n)
        got = []
        for s in range(0, P * n, per):
            own = owner[s:s + per]
            ix = (own[:, None] * rows + torch.arange(rows, device=device)).flatten()
            part = {k: (A[s:s + per], B[s:s + per]) for k, (A, B) in flat.items()}
            got.append(losses(net, x[own], N.Rows(ids[ix]), w[ix], part, first))
        L = torch.cat(got).view(P, n)
        if method == "mezo":
            c = (L[:, :1] - L[:, 1:]) / (2 * sigma[:, :, 0])
            c = torch.cat([c / 2, -c / 2], 1) * 2                               # noise[1] = -noise[0]
        else:
            c = (L - L.mean(1, keepdim=True)) / L.std(1, keepdim=True).clamp(min=1e-9)
        f = schedule(t, steps) / n
        for k, ab in slots.items():
            for p, z in zip(ab, noise[k]):
                if z is not None:
                    p.sub_(lr * f * torch.einsum("pn,pn...->p...", c, z))
        if t + 1 in checkpoints:
            report(t + 1, slots)
    return slots
