"""What an adapter is worth: points on the exam, held-out losses, distance from the base model."""
import concurrent.futures as cf

import torch

from . import net as N
from .generate import Examiner
from .learn import GROUP

_CODER = _ITEMS = None


def _begin(coder, items):
    global _CODER, _ITEMS
    _CODER, _ITEMS = coder, items


def _work(job):
    start, replies = job
    return [_CODER.good(it, r) for it, r in zip(_ITEMS[start:start + len(replies)], replies)]


class Checker:
    """Checks replies in other processes while the device goes on."""

    def __init__(self, coder, items, workers):
        self.pool = cf.ProcessPoolExecutor(workers, initializer=_begin, initargs=(coder, items))
        list(self.pool.map(_work, [(0, [[]])] * workers))

    def __call__(self, replies, first=0):
        """A function that waits for the outcome: a string of 0 and 1, one for each item from `first` on."""
        jobs = [self.pool.submit(_work, (first + i, replies[i:i + 100])) for i in range(0, len(replies), 100)]
        return lambda: "".join("1" if g else "0" for j in jobs for g in j.result())


class Slots:
    """Fixed buffers of P adapters over every matrix, read by the captured graphs."""

    def __init__(self, net, P, rank, device):
        self.P, self.rank = P, rank
        self.ab = {k: (torch.zeros(P, rank, i, device=device, dtype=net.dt), torch.zeros(P, o, rank, device=device, dtype=net.dt))
                   for k, (o, i) in net.shapes().items()}

    def put(self, slots, which):
        """Copies the given arms of `slots` in; all else is zero."""
        for a, b in self.ab.values():
            a.zero_()
            b.zero_()
        for k, (A, B) in (slots or {}).items():
            r = A.shape[1]
            self.ab[k][0][:len(which), :r] = A[which].to(self.ab[k][0].dtype)
            self.ab[k][1][:len(which), :, :r] = B[which].to(self.ab[k][1].dtype)


class Losses:
    """Teacher-forced losses of P slots on fixed rows, and the mean KL from the base model."""

    def __init__(self, net, ids, weight, device, P, kl=False):
        self.net, self.P = net, P
        per = GROUP // P
        self.parts = [(i.to(device), w.to(device)) for i, w in zip(N.padded(ids, per), N.padded(weight, per))]
        self.base = [self._logits(i, w, None, 1)[0].log_softmax(-1).to(net.dt) for i, w in self.parts] if kl else None

    @torch.no_grad()
    def _logits(self, ids, weight, slots, P):
        ids, weight = ids.repeat(P, 1), weight.repeat(P, 1)
        h, target, w = N.gather(self.net.trunk(self.net.start(ids, P), N.Rows(ids), slots), weight, ids, P)
        return self.net.head(h, slots), target, w

    @torch.no_grad()
    def __call__(self, slots):
        """Per slot (mean loss, mean KL or 0)."""
        nll, n, kl = torch.zeros(self.P), 0.0, torch.zeros(self.P)
        for j, (i, w) in enumerate(self.parts):
            lo, target, ww = self._logits(i, w, slots, self.P)
            lp = lo.log_softmax(-1)
            nll += -(lp.gather(-1, target[..., None])[..., 0] * ww).sum(1).cpu()
            n += float(ww[0].sum())
            if self.base:
                b = self.base[j].float()
                kl += ((b.exp() * (b - lp)).sum(-1) * ww).sum(1).cpu()
        return [(round(float(a) / n, 5), round(float(k) / n, 5)) for a, k in zip(nll, kl)]


class Grader:
    def __init__(self, net, coder, exam, tune, text, device, P=5, rank=8, workers=8):
        from .data import pack
        self.P, self.net = P, net
        self.check = Checker(coder, exam, workers)
        self.slots = Slots(net, P, rank, device)
        prompts = [coder.prompt(i) for i in exam]
        replies = [coder.reply(i) for i in exam]
        self.examine = Examiner(net, self.slots.ab, P, prompts, [len(r) for r in replies])
        self.tune = Losses(net, *pack([(coder.prompt(i), coder.reply(i)) for i in tune]), device, P)
        self.held = Losses(net, *pack(list(zip(prompts, replies))[::3]), device, P, kl=True)
        self.text = Losses(net, text[0], text[1], device, P) if text[0] is not None else None

    def quick(self, slots, which):
        """Tuning loss of arms, in groups of P."""
        out = []
        for j in range(0, len(which), self.P):
            part = which[j:j + self.P]
            self.slots.put(slots, part)
            out += [a for a, _ in self.tune(self.slots.ab)][:len(part)]
        return out

    def full(self, slots, which):
        """Per arm a dict; "exam" is a function to call later."""
        out = []
        for j in range(0, len(which), self.P):
            part = which[j:j + self.P]
            self.slots.put(slots, part)
            tune, held = self.tune(self.slots.ab), self.held(self.slots.ab)
            text = self.text(self.slots.ab) if self.text else [(0, 0)] * self.P
            replies = self.examine()
            out += [{"tune": tune[p][0], "held": held[p][0], "kl": held[p][1], "text": text[p][0], "exam": self.check(replies[p])} for p in range(len(part))]
        return out
