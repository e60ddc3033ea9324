"""Seven nights of the week's traffic under several recipes at once: days answered, pairs made, adapters trained, exams between.

usage: python3 -m effect.week nano.gguf HELD_OUT_TEXT OUT --plan screen|final [--seconds 560] [--exam 1500] [--tiny]
OUT/week.jsonl gets one line for each arm and night, OUT/week.json what they share. When time runs short the last arms of the plan are
dropped. `python3 -m effect.seven` makes the tables.
"""
import argparse
import json
import os
import time

import torch

from traffic import make

from . import data, grade, nights
from . import net as N
from .generate import Examiner
from .nights import Recipe

HEAT, SAMPLES = 0.8, 4                      # own samples where the first reply was wrong

SCREEN = [
    Recipe("base"), Recipe("replay 0", replay=0.0), Recipe("replay 1", replay=1.0), Recipe("no learning", pairs="none"), Recipe("placebo", pairs="placebo"),
    Recipe("rate 1e-3", lr=1e-3), Recipe("rate 4e-3", lr=4e-3), Recipe("rank 16", rank=16), Recipe("rank 32", rank=32),
    Recipe("two epochs", epochs=2), Recipe("two epochs, rate 1e-3", epochs=2, lr=1e-3), Recipe("corrections x3", weight=3.0),
    Recipe("corrections only", pairs="corrected"), Recipe("corrections and as many right", pairs="even"), Recipe("no working", pairs="bare"),
    Recipe("reference for all", pairs="reference"), Recipe("all layers", target="all"), Recipe("all layers and head", target="all+head"),
    Recipe("mixers", target="mixers6"), Recipe("one row a step", rows=1), Recipe("fading rate", fade=0.3), Recipe("rate 4e-3, fading", lr=4e-3, fade=0.5),
    Recipe("afresh, nights 4 and 7", mode="afresh", trains=(3, 6), rows=4), Recipe("own samples", pairs="found"),
]
_TWICE = {"rank": 16, "epochs": 2}
FINAL = [
    *(Recipe("rank 16, two epochs", seed=s, **_TWICE) for s in range(3)), Recipe("all layers, rank 16, two epochs", target="all", **_TWICE),
    Recipe("own samples, rank 16, two epochs", pairs="found", **_TWICE),
]
PLANS = {"screen": SCREEN, "final": FINAL}


class Week:
    def __init__(self, a):
        self.a, self.t0 = a, time.time()
        self.dev = "cuda" if torch.cuda.is_available() else "cpu"
        torch.set_float32_matmul_precision("high")
        self.coder = data.Coder(data.tokenizer(a.model))
        exam, tune = data.exams(*((4, 2) if a.tiny else (a.exam, 250)))
        items = [[i for i in make.read() if i["night"] == n][:4 if a.tiny else None] for n in range(2 if a.tiny else make.NIGHTS)]
        self.net, _ = N.load(a.model, self.dev)
        big = self.dev == "cuda" and torch.cuda.get_device_properties(0).total_memory > 100 * 2 ** 30
        if a.tiny:
            grade.GROUP = 2                 # rows of a forward pass without gradients
        self.P, self.group = (2, 8) if a.tiny else (8, 24) if big else (5, 12)
        arms = self.plan()
        self.P = -(-len(arms) // -(-len(arms) // self.P))       # groups of one size
        self.states = [nights.State(self.net, r, self.dev) for r in arms]
        self.grader = grade.Grader(self.net, self.coder, exam, tune, data.text_rows(a.text, 1 if a.tiny else 6)[:2], self.dev, P=self.P,
                                   rank=max(r.rank for r in arms), workers=1 if a.tiny else 8)
        self.check = grade.Checker(self.coder, [i for day in items for i in day], 1 if a.tiny else 7)
        self.days = [nights.Day(self.coder, day) for day in items]
        self.log = open(os.path.join(a.out, "week.jsonl"), "w", encoding="utf-8")
        self.facts = {"exam": [[i["domain"], i["family"]] for i in exam], "days": [[i["family"] for i in day] for day in items], "plan": a.plan,
                      "device": torch.cuda.get_device_name() if self.dev == "cuda" else "cpu"}
        with open(os.path.join(a.out, "week.json"), "w") as f:
            json.dump(self.facts, f)
        self.say("ready:", len(arms), "arms,", self.facts["device"])

    def plan(self):
        if self.a.arms:                     # arms as JSON: [{"name": ..., ...}, ...]
            with open(self.a.arms, encoding="utf-8") as f:
                return [Recipe(**x) for x in json.load(f)]
        return PLANS[self.a.plan]

    def left(self):
        return self.a.seconds - (time.time() - self.t0)

    def say(self, *what):
        print(f"{time.time() - self.t0:6.1f} s", *what, flush=True)

    def put(self, states):
        """Loads adapters into the slots that the captured graphs read."""
        self.grader.slots.put({k: tuple(ab) for k, ab in nights.stacked(states).items()} if states else None, list(range(len(states))))

    def groups(self, states):
        return [states[j:j + self.P] for j in range(0, len(states), self.P)]

    def answer(self, night):
        """Own greedy replies of every arm to the day and their verdicts; own samples for the arms that learn from them."""
        day, first = self.days[night], sum(len(d.items) for d in self.days[:night])
        ask = Examiner(self.net, self.grader.slots.ab, self.P, day.prompts, [len(r) for r in day.replies], 500)
        own, jobs = [], []
        for part in self.groups(self.states):
            self.put(part)
            for p, replies in enumerate(ask()[:len(part)]):
                own.append(replies)
                jobs.append(self.check(replies, first))
        right = [[c == "1" for c in job()] for job in jobs]
        del ask                             # and its captured graphs
        if self.dev == "cuda":
            torch.cuda.empty_cache()
        sampled = [self.samples(s, day, first, r) if s.recipe.pairs == "found" else None for s, r in zip(self.states, right)]
        return own, right, sampled

    def samples(self, state, day, first, right):
        """{item: a right reply among four samples} where the first reply was wrong."""
        wrong = [i for i, r in enumerate(right) if not r]
        self.put([state])
        one = {k: (a[:1], b[:1]) for k, (a, b) in self.grader.slots.ab.items()}
        ask = Examiner(self.net, one, 1, [day.prompts[i] for i in wrong for _ in range(SAMPLES)], [len(day.replies[i]) for i in wrong for _ in range(SAMPLES)], 700)
        replies, out = ask(HEAT)[0], {}
        for j, i in enumerate(wrong):
            for r in replies[j * SAMPLES:(j + 1) * SAMPLES]:
                if i not in out and self.coder.good(day.items[i], r):
                    out[i] = r
        return out

    def night(self, night):
        day, begun = self.days[night], time.time()
        own, right, sampled = self.answer(night)
        answered = time.time()
        for s, o, r, x in zip(self.states, own, right, sampled):
            s.nights.append(day.choose(s.recipe, o, r, x))
        lessons = [s.lesson(night) for s in self.states]
        due = sorted((j for j, x in enumerate(lessons) if x is not None and len(x[0])), key=lambda j: len(lessons[j][0]) * self.states[j].recipe.epochs / self.states[j].recipe.rows)
        loss = {}
        for j in range(0, len(due), self.group):
            part = due[j:j + self.group]
            loss.update(zip(part, nights.train(self.net, [self.states[k] for k in part], [lessons[k] for k in part], night)))
        trained = time.time()
        self.step_cost = trained - answered          # hardly less with fewer arms
        lines = []
        for j, s in enumerate(self.states):
            lines.append({**s.recipe.facts(), "pairs_kind": s.recipe.pairs, "night": night + 1, "day": sum(right[j]), "items": len(day.items), "pairs": len(s.nights[-1]), "rows": 0 if lessons[j] is None else len(lessons[j][0]),
                          "right": "".join("1" if r else "0" for r in right[j]), "loss": loss.get(j), "rms": round(s.update_rms(), 6)})
        self.measure(lines, night + 1 in self.exams)            # the tuning loss every night, all else with the exam
        self.say(f"night {night + 1}: {len(self.states)} arms; answered {answered - begun:.1f} s, trained {trained - answered:.1f} s, measured {time.time() - trained:.1f} s;",
                 "day", [x["day"] for x in lines], "tune", [x["tune"] for x in lines])
        return time.time() - begun

    def measure(self, lines, exam):
        jobs = []
        for j, part in zip(range(0, len(lines), self.P), self.groups(self.states)):
            self.put(part)
            slots = self.grader.slots.ab
            for line, t in zip(lines[j:j + self.P], self.grader.tune(slots)):
                line.update(tune=t[0])
            if exam:
                held, text = self.grader.held(slots), self.grader.text(slots) if self.grader.text else [(0, 0)] * self.P
                replies = self.grader.examine()
            for p, line in enumerate(lines[j:j + self.P]):
                if exam:
                    line.update(held=held[p][0], kl=held[p][1], text=text[p][0])
                jobs.append((line, self.grader.check(replies[p]) if exam else None))
        for line, job in jobs:
            if job:
                line["exam"] = job()
                line["points"] = round(100 * line["exam"].count("1") / len(line["exam"]), 2)
            self.log.write(json.dumps(line) + "\n")
        self.log.flush()

    def run(self):
        base = {"name": "base model", "night": 0}
        self.exams = {int(x) for x in self.a.nights.split(",")}
        saved, self.states, begun = self.states, [nights.State(self.net, Recipe("base model", pairs="none"), self.dev)], time.time()
        self.measure([base], True)
        self.states, examined = saved, time.time() - begun
        self.say("base", {k: v for k, v in base.items() if k != "exam"}, f"{examined:.1f} s")
        for n in range(len(self.days)):
            took = self.night(n)
            rest = len(self.days) - 1 - n
            later = sum(examined * len(self.groups(self.states)) for e in self.exams if e > n + 1)
            room = (self.left() - 8 - rest * self.step_cost) / max(1.0, rest * (took - self.step_cost) + later) if rest else 9
            if room < 1 and not self.a.tiny:
                keep = max(1, int(len(self.states) * room))
                self.say("time is short: arms dropped", [s.recipe.name for s in self.states[keep:]])
                self.states = self.states[:keep]
        if self.dev == "cuda":
            self.say("peak", round(torch.cuda.max_memory_allocated() / 2 ** 30, 1), "GiB")
        self.say("done")


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("model")
    ap.add_argument("text")
    ap.add_argument("out")
    ap.add_argument("--plan", default="screen")
    ap.add_argument("--arms", help="a JSON file with the arms, in place of a plan")
    ap.add_argument("--nights", default="7", help="nights after which the exam is taken")
    ap.add_argument("--seconds", type=float, default=560)
    ap.add_argument("--exam", type=int, default=1500)
    ap.add_argument("--tiny", action="store_true")
    a = ap.parse_args()
    os.makedirs(a.out, exist_ok=True)
    Week(a).run()


if __name__ == "__main__":
    main()
