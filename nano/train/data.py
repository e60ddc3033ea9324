"""Batches of packed rows from token files: documents drawn by domain weight, whole where they fit, never mixed across a border.

A row is filled with documents. A conversation that would not fit waits for a later row, because its reply stands at its end; what
meets the end of a row all the same is cut there and its rest dropped. Documents longer than a row start at their beginning or, half of the time, at a random place. Drawing is
without replacement: each worker walks its own shuffled share of a domain and starts over when it is used up. Everything follows
from the seed.

Weights of target tokens: 1 for plain text and for what the assistant writes, `prompt_weight` for system, user and tool turns
(the model must understand those, not imitate them), 0 for the first token of a document.
"""
import numpy as np
import torch
import torch.nn.functional as F

from .tokenizer import IM_START

MISSES, WAITING = 6, 64         # conversations put off before a row is closed by a cut one; most that may wait


class Domain:
    def __init__(self, paths, share, rng, worker, workers):
        self.ids = [np.memmap(p, np.uint16, "r") for p in paths]
        spans = []
        for i, a in enumerate(self.ids):
            ends = np.flatnonzero(np.asarray(a) == 0) + 1
            spans.append(np.stack([np.full(len(ends), i), np.concatenate([[0], ends[:-1]]), ends], 1))
        spans = np.concatenate(spans)
        self.mean, self.share, self.rng = float((spans[:, 2] - spans[:, 1]).mean()), share, rng
        spans = spans[rng.permutation(len(spans))]                              # same order in all workers: one seed
        self.spans = spans[worker::workers]
        self.order, self.at, self.epochs = np.arange(len(self.spans)), 0, 0

    def next(self, limit):
        if self.at == len(self.order):
            self.rng.shuffle(self.order)
            self.at, self.epochs = 0, self.epochs + 1
        f, s, e = self.spans[self.order[self.at]]
        self.at += 1
        if e - s > limit and self.rng.random() < 0.5:
            s += self.rng.integers(0, e - s - limit // 2)
        return self.ids[f][s:e]


def rows(files, mix, length, seed, worker=0, workers=1, even=()):
    """Endless rows [2,length] int64: ids, and where the token is of a domain of `even` 1, or what `even` says if it is a dict.
    files: domain -> list of token files; mix: domain -> share of tokens."""
    even = even if isinstance(even, dict) else dict.fromkeys(even, 1)
    names = [n for n in mix if mix[n] > 0 and files.get(n)]
    domains = [Domain(files[n], mix[n], np.random.default_rng([seed, i]), worker, workers) for i, n in enumerate(names)]
    p = np.array([d.share / min(d.mean, length) for d in domains])
    rng = np.random.default_rng([seed, 1000 + worker])
    cdf, waiting = np.cumsum(p / p.sum()), []
    while True:
        row, n, misses = np.empty((2, length), np.int64), 0, 0
        while n < length:
            fits = next((i for i, (_, d) in enumerate(waiting) if len(d) <= length - n), None)
            if fits is not None:
                k, d = waiting.pop(fits)
            else:
                k = min(int(np.searchsorted(cdf, rng.random(), side="right")), len(domains) - 1)
                d = domains[k].next(length)
                if length - n < len(d) <= length and d[0] == IM_START and misses < MISSES and len(waiting) < WAITING:
                    waiting.append((k, d))
                    misses += 1
                    continue
                d = d[:length - n]
            row[0, n:n + len(d)], row[1, n:n + len(d)] = d, even.get(names[k], 0)
            n += len(d)
        yield row


class Rows(torch.utils.data.IterableDataset):
    def __init__(self, files, mix, batch, length, seed, even):
        self.args, self.even, self.batch = (files, mix, length, seed), even, batch

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        it = rows(*self.args, *((info.id, info.num_workers) if info else (0, 1)), self.even)
        while True:
            yield torch.from_numpy(np.stack([next(it) for _ in range(self.batch)], 1))


def loader(files, mix, batch, length, seed, workers=4, pin=False, even=()):
    """Endless batches [2, batch, length] as `rows` makes them."""
    return iter(torch.utils.data.DataLoader(Rows(files, mix, batch, length, seed, even), batch_size=None, num_workers=workers,
                                            pin_memory=pin, prefetch_factor=8 if workers else None))


def target_weights(ids, im_start, assistant, prompt_weight):
    """Weight of each token as a target [B,T] f32, from the control tokens of the chat form."""
    at = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
    new = F.pad(ids[:, :-1] == 0, (1, 0))                       # first token of a document
    opened = torch.where(ids == im_start, at, -1).cummax(1).values
    begun = torch.where(new, at, 0).cummax(1).values
    role = ids.gather(1, (opened + 1).clamp(0, ids.shape[1] - 1))
    in_prompt = (opened >= begun) & (role != assistant)
    w = torch.where(in_prompt, prompt_weight, 1.0)
    w = torch.where(at - opened < 3, prompt_weight, w)          # "<|im_start|>", role and newline are given, never written by the model
    return torch.where(new, 0.0, w)
