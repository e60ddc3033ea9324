"""The judge in PyTorch: many cases packed into rows, P read at the end of every step in one pass.

The daemon asks step by step; since each of its prompts is the start of the next and the judge says its label at once, one pass over
the whole case gives the same scores.
"""
import numpy as np
import torch
import torch.nn.functional as F

from train.model import Batch, rms

from . import form


class Rows:
    """Rows of one length with several cases each, kept apart by the token 0; at some places a label is to be said."""

    def __init__(self, cases, length):
        """cases: (ids, places, anything for each place)"""
        self.cases, self.length = cases, length

    def batches(self, size, order):
        """(ids [size, length], numbers of the cases in it, their offsets in the flat batch)."""
        ids, held, offsets, at = self._blank(size), [], [], 0
        for k in order:
            row = self.cases[k][0]
            if at % self.length + len(row) >= self.length:
                at = (at // self.length + 1) * self.length
            if at >= size * self.length:
                yield ids.view(size, self.length), held, offsets
                ids, held, offsets, at = self._blank(size), [], [], 0
            ids[at:at + len(row)] = torch.as_tensor(np.asarray(row, np.int64))
            held.append(k)
            offsets.append(at)
            at += len(row) + 1
        if held:
            yield ids.view(size, self.length), held, offsets

    def _blank(self, size):
        return torch.zeros(size * self.length, dtype=torch.long)


def logits_at(model, ids, places):
    """Logits [places, vocabulary] of what follows each place of the flat batch."""
    x, _, _ = model.trunk(ids, Batch(ids))
    return F.linear(rms(x[places], model.output_norm), model.token_embd.to(x.dtype)).float()


def label_loss(model, ids, places, labels, weights, good, bad):
    """Weighted cross entropy of the labels, over the whole vocabulary: nothing else is to be said."""
    target = torch.where(labels > 0, good, bad)
    nll = F.cross_entropy(logits_at(model, ids, places), target, reduction="none")
    return (nll * weights).sum() / weights.sum()


@torch.no_grad()
def judge_cases(model, enc, cases, size, length=1536):
    """Adds `scores` (per step the logit of good against bad; all None for a case that is too long) to every case; returns shares."""
    good, bad, dev = enc.control("<|good|>"), enc.control("<|bad|>"), model.token_embd.device
    rows = []
    for c in cases:
        c["scores"] = [None] * len(c["labels"])
        ids, marks = enc.marked(form.judged(c["before"], c["thought"], c["answer"], len(c["labels"]) - 1))
        if len(ids) < length:
            rows.append((ids, marks, c))
    said = total = 0
    order = sorted(range(len(rows)), key=lambda k: len(rows[k][0]))
    for ids, held, offsets in Rows(rows, length).batches(size, order):
        places = [o + m for k, o in zip(held, offsets) for m in rows[k][1]]
        lo = logits_at(model, ids.to(dev), torch.tensor(places, device=dev))
        said += int((lo.argmax(-1)[:, None] == torch.tensor([good, bad], device=dev)).any(-1).sum())
        total += len(places)
        diff = iter((lo[:, good] - lo[:, bad]).tolist())
        for k in held:
            rows[k][2]["scores"] = [next(diff) for _ in rows[k][1]]
    return {"judgements": total, "labels_said": round(said / max(total, 1), 4), "too_long": len(cases) - len(rows)}


def answer_logit(c):
    """The lowest step of a case, as a logit; None when a step could not be judged."""
    return None if not c["scores"] or any(s is None for s in c["scores"]) else min(c["scores"])
