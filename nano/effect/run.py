"""The experiment: one process, most important arms first, every result written at once.

usage: python3 -m effect.run nano.gguf HELD_OUT_TEXT OUT --plan first,zeroth [--seconds 560] [--tiny]
OUT/results.jsonl gets one line an arm, OUT/facts.json what they share. Plans are in `plans.py`.
"""
import argparse
import json
import os
import time

import torch

from . import data, grade, learn
from . import net as N
from .day import Day


class Lab:
    def __init__(self, a):
        self.a, self.t0 = a, time.time()
        self.dev = "cuda" if torch.cuda.is_available() else "cpu"
        torch.set_float32_matmul_precision("high")
        self.small = a.tiny
        self.coder = data.Coder(data.tokenizer(a.model))
        exam, tune = data.exams(*((14, 7) if a.tiny else (a.exam, 400)))
        self.net, _ = N.load(a.model, self.dev)
        self.grader = grade.Grader(self.net, self.coder, exam, tune, data.text_rows(a.text, 1 if a.tiny else 6)[:2], self.dev, P=2 if a.tiny else 5,
                                   workers=1 if a.tiny else 10)
        self.log = open(os.path.join(a.out, "results.jsonl"), "w", encoding="utf-8")
        self.pending, self.sets, self.moments, self.day = [], {}, None, None
        self.facts = {"exam": [[i["domain"], i["family"]] for i in exam], "absent": [f for f in sorted({i["family"] for i in exam}) if data.absent(f)]}
        self.say("ready")

    def left(self):
        return self.a.seconds - (time.time() - self.t0)

    def say(self, *what):
        print(f"{time.time() - self.t0:6.1f} s", *what, flush=True)

    def write(self, line, exam=None):
        """A result line; with an exam still being checked it is written when that is done."""
        self.pending.append((line, exam))
        if exam is None or len(self.pending) > 60:
            self.flush()

    def flush(self):
        for line, exam in self.pending:
            if exam is not None:
                line["exam"] = exam()
                line["points"] = round(100 * line["exam"].count("1") / len(line["exam"]), 2)
            self.log.write(json.dumps(line) + "\n")
        self.log.flush()
        self.pending = []
        with open(os.path.join(self.a.out, "facts.json"), "w") as f:
            json.dump(self.facts, f)

    def feed(self, name, seed, first):
        key = (name, seed, first)
        if key not in self.sets:
            pairs = self.day.pairs(name, seed)
            if not pairs:
                raise ValueError("no pairs in " + name)
            self.sets[key] = learn.Feed(self.net, *data.pack(pairs, seed), first, self.dev)
            self.sets[key].pairs = len(pairs)
        return self.sets[key]

    def inputs(self):
        """Second moments of every target's inputs over the first rows of the day."""
        if self.moments is None:
            f = self.feed("fresh:1000", 0, 0)
            self.net.tap = {}
            with torch.no_grad():
                ids, w = f.ids[:40], f.weight[:40]
                learn.losses(self.net, self.net.start(ids, 1), N.Rows(ids), w, None, 0)
            self.moments, self.net.tap = self.net.tap, None
        return self.moments

    def base(self):
        self.grader.slots.put(None, [])
        got = self.grader.full({}, list(range(2)))
        self.write({"method": "base", **got[0]}, got[0].pop("exam"))
        self.flush()
        self.say("base", {k: v for k, v in got[0].items()})

    def train(self, arms, steps, rows=2, exams=(), quick=8, clock=None, show=None):
        """Trains arms in lockstep; the exam at `exams` (steps), tuning losses at `quick` even checkpoints. Returns the last losses."""
        begun, first = time.time(), min(learn.first_layer(self.net, a.target) for a in arms)
        feeds = [self.feed(a.data, a.seed, first) for a in arms]
        full, every = set(exams), max(1, steps // quick)
        last = []

        def report(t, slots):
            which, cost = list(range(len(arms))), time.time() - begun
            if t in full:
                got = self.grader.full(slots, which)
                last[:] = [g["tune"] for g in got]
            else:
                got = [{"tune": x} for x in self.grader.quick(slots, which)]
                last[:] = [g["tune"] for g in got]
            for a, g, f in zip(arms, got, feeds):
                forwards = a.n or 1
                per = f.tokens / len(f.ids) * rows
                self.write({**a.facts(), "step": t, "steps": steps, "rows": rows, "pairs": f.pairs, "first_layer": first, "token_forwards": round(per * forwards * t),
                            "params": self.size(a), "wall": round(cost, 1), **{k: v for k, v in g.items() if k != "exam"}}, g.get("exam"))
        points = full | set(range(every, steps + 1, every))
        if arms[0].method == "adam":
            slots = learn.adam(self.net, arms, feeds, first, steps, rows, points, report, self.dev)
        else:
            slots = learn.zeroth(self.net, arms, feeds, first, steps, rows, points, report, self.dev, self.inputs() if arms[0].frozen_a == "pca" else None, clock)
        self.flush()
        self.say(arms[0].method, len(arms), "arms", show or arms[0].target, steps, "steps:", round(time.time() - begun, 1), "s; tune", min(last, default=0), max(last, default=0))
        return last, slots

    def size(self, a):
        shapes = self.net.shapes()
        return sum(shapes[k][0] * a.rank + (0 if a.frozen_a else shapes[k][1] * a.rank) for k in learn.target_keys(self.net, a.target))


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("model")
    ap.add_argument("text")
    ap.add_argument("out")
    ap.add_argument("--plan", default="first,zeroth")
    ap.add_argument("--seconds", type=float, default=560)
    ap.add_argument("--exam", type=int, default=1500)
    ap.add_argument("--tiny", action="store_true")
    a = ap.parse_args()
    from . import plans
    lab = Lab(a)
    lab.base()
    lab.day = Day(lab.net, lab.coder, lab.grader, lab.dev, a.tiny)
    lab.facts["day"] = lab.day.facts
    lab.say("day: right", lab.day.facts["right"], "any", lab.day.facts["any"])
    for name in a.plan.split(","):
        try:
            getattr(plans, name)(lab)
        except Exception as e:                       # one plan's failure must not cost the others their time
            import traceback
            traceback.print_exc()
            lab.say("plan", name, "failed:", e)
        lab.flush()
        lab.sets.clear()
        if lab.dev == "cuda":
            lab.say("peak", round(torch.cuda.max_memory_allocated() / 2 ** 30, 1), "GiB")
            torch.cuda.empty_cache()
    lab.say("done")


if __name__ == "__main__":
    main()
