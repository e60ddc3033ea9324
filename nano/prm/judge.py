"""The judge in PyTorch: verification thoughts decoded greedily, many at a time, and P read at the label."""
import torch
import torch.nn.functional as F

from train.decode import Decoder
from train.model import Batch

from . import form


class Judge(Decoder):
    """Decodes until a label and keeps logit(good) - logit(bad) of the place where it stood (or of the last place allowed)."""

    def __init__(self, model, batch, length, good, bad):
        super().__init__(model, batch, length)
        self.good, self.bad = good, bad
        self.diff = torch.zeros(batch, device=model.token_embd.device)
        self.wrote = torch.zeros(batch, dtype=torch.bool, device=model.token_embd.device)

    def _step(self):
        ids = self.tokens.index_select(1, self.t[None])[:, 0]
        lo = self.logits(ids)
        best = lo.argmax(-1)
        nxt = self.tokens.index_select(1, self.t[None] + 1)[:, 0]
        writing = self.t + 1 >= self.prompt_end
        open_ = writing & ~self.finished
        self.diff.copy_(torch.where(open_, lo[:, self.good] - lo[:, self.bad], self.diff))
        labelled = open_ & ((best == self.good) | (best == self.bad))
        self.wrote |= labelled
        nxt = torch.where(writing, torch.where(self.finished, 14, best), nxt)
        self.finished |= labelled
        self.tokens.index_copy_(1, self.t[None] + 1, nxt[:, None])
        self.t += 1

    @torch.no_grad()
    def judge(self, prompts):
        self.run(prompts, form.VERIFY_TOKENS_MAX)
        return self.diff[:len(prompts)].tolist(), self.wrote[:len(prompts)].tolist()


def judge_cases(model, enc, cases, batch, longest=1400):
    """Adds `scores` (per step logit of P; None where the prompt is too long) to every case; returns shares for the report."""
    jobs = []
    for c in cases:
        steps = len(c["thought"]) + len(c["answer"])
        c["scores"] = [None] * steps
        for i in range(steps):
            ids = enc.pieces(form.judged(c["before"], c["thought"], c["answer"], i))
            if len(ids) <= longest:
                jobs.append((len(ids), len(jobs), c, i, ids))
    jobs.sort(key=lambda j: j[:2])
    labelled = at = 0
    while at < len(jobs):
        size = max(16, min(batch, batch * 400 // jobs[min(at + batch, len(jobs)) - 1][0]))
        part = jobs[at:at + size]
        dec = Judge(model, len(part), part[-1][0] + form.VERIFY_TOKENS_MAX, enc.control("<|good|>"), enc.control("<|bad|>"))
        scores, wrote = dec.judge([j[4] for j in part])
        for (_, _, c, i, _), s in zip(part, scores):
            c["scores"][i] = s
        labelled += sum(wrote)
        at += size
    return {"judgements": len(jobs), "labels_written": round(labelled / max(len(jobs), 1), 4)}


def answer_logit(c):
    """The lowest step of a case, as a logit; None when a step could not be judged."""
    return None if not c["scores"] or any(s is None for s in c["scores"]) else min(c["scores"])


class Rows:
    """Training examples packed into rows of one length; documents are kept apart by the token 0."""

    def __init__(self, rows, length, verify_weight, label_weight):
        self.rows = [r for r in rows if len(r[0]) < length]
        self.length, self.weights = length, (verify_weight, label_weight)

    def batches(self, size, rng, epochs):
        ids, w = self._blank(size)
        at = 0
        for _ in range(epochs):
            for k in rng.permutation(len(self.rows)):
                row, head, _ = self.rows[k]
                if at % self.length + len(row) >= self.length:
                    at = (at // self.length + 1) * self.length
                if at >= size * self.length:
                    yield ids.view(size, self.length), w.view(size, self.length)
                    ids, w = self._blank(size)
                    at = 0
                n = len(row)
                ids[at:at + n] = torch.as_tensor(row, dtype=torch.long)
                w[at + head:at + n - 1] = self.weights[0]
                w[at + n - 1] = self.weights[1]
                at += n + 1

    def _blank(self, size):
        return torch.zeros(size * self.length, dtype=torch.long), torch.zeros(size * self.length)


def target_loss(model, ids, weight, rms):
    """Weighted cross entropy at the targets; also the label loss alone."""
    x, _, _ = model.trunk(ids, Batch(ids))
    w = F.pad(weight[:, 1:], (0, 1)).flatten()
    target = F.pad(ids[:, 1:], (0, 1)).flatten()
    at = w.nonzero()[:, 0]
    logits = F.linear(rms(x[at], model.output_norm), model.token_embd.to(x.dtype)).float()
    nll = F.cross_entropy(logits, target[at], reduction="none")
    wt = w[at]
    label = wt == wt.max()
    return (nll * wt).sum() / wt.sum(), nll[label].mean().detach()
