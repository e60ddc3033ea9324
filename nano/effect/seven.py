"""Tables of seven nights from the results of `effect.week`.

usage: python3 -m effect.seven RUN...    keeps the runs packed under results/week/ (exam outcomes as hexadecimal bits), prints the tables
       python3 -m effect.seven           the tables again from results/week/
Intervals: 95 %, bootstrap over items and seeds, paired with the base model.
"""
import collections
import json
import os
import sys

import numpy as np

from tasks.packed import unpacked, write

from .table import interval, lines, outcomes

HERE = os.path.dirname(os.path.abspath(__file__))
KEEP = os.path.join(HERE, "results", "week")
FACTS = os.path.join(KEEP, "facts.json.gz")


def kept(n):
    """The file of run N."""
    return os.path.join(KEEP, f"run{n}.jsonl.gz")


def keep(runs):
    os.makedirs(KEEP, exist_ok=True)
    for n, d in enumerate(runs):
        rows = lines(os.path.join(d, "week.jsonl"))
        for r in rows:
            for k in ("exam", "right"):
                if k in r:
                    r[k] = np.packbits(np.array(list(r[k])) == "1").tobytes().hex()
        write(kept(n + 1), "".join(json.dumps(r, separators=(",", ":")) + "\n" for r in rows))
    # What was asked is the same in all runs, or their tables could not stand side by side.
    facts = []
    for d in runs:
        with open(os.path.join(d, "week.json")) as f:
            facts.append({k: v for k, v in json.load(f).items() if k != "days"})
    assert all(other == facts[0] for other in facts), "the runs asked different things"
    write(FACTS, json.dumps(facts[0], separators=(",", ":")) + "\n")


def load(n):
    return json.loads(unpacked(FACTS)), lines(kept(n))


def table(facts, rows):
    """Markdown lines: an arm (over its seeds) and exam night in each."""
    n, rng = len(facts["exam"]), np.random.default_rng(0)
    base = next(r for r in rows if r["night"] == 0)
    b, arms = outcomes(base, n), collections.defaultdict(list)
    for r in rows:
        if r["night"]:
            arms[r["name"], r["night"]].append(r)
    day = {t: np.mean([r["day"] / r["items"] for r in arms["no learning", t]]) for t in range(1, 8) if arms.get(("no learning", t))}
    out = [f"base model: {base['points']} % of {n}; loss {base['held']}, text {base['text']}", "",
           "| arm | night | seeds | points | that day's questions, against the base model | loss | KL | update rms | text |", "|---|---|---|---|---|---|---|---|---|"]
    for (name, t), v in arms.items():
        if "exam" not in v[0]:
            continue
        g = np.array([outcomes(r, n) - b for r in v])
        lo, hi = interval(g, rng)
        m = lambda q: np.mean([r[q] for r in v])
        today = f"{100 * (np.mean([r['day'] / r['items'] for r in v]) - day[t]):+.1f}" if t in day else ""
        out.append(f"| {name} | {t} | {len(v)} | {100 * g.mean():+.1f} [{lo:.1f}, {hi:.1f}] | {today} | {m('held'):.4f} | {m('kl'):.3f} | {m('rms'):.4f} | {m('text'):.3f} |")
    return out


def families(facts, rows, name):
    """Gain of an arm after the last night by domain, and the families that gained or lost most (at least 8 items)."""
    n, base = len(facts["exam"]), next(r for r in rows if r["night"] == 0)
    last = max(r["night"] for r in rows if "exam" in r)
    g = np.mean([outcomes(r, n) - outcomes(base, n) for r in rows if r["night"] == last and r["name"] == name], axis=0)
    by = collections.defaultdict(list)
    for (d, f), x in zip(facts["exam"], g):
        by[d].append(x)
        by[d + "/" + f].append(x)
    ranked = sorted(((100 * np.mean(v), k, len(v)) for k, v in by.items() if len(v) >= 8))
    show = lambda part: ", ".join(f"{k} {x:+.0f} ({c})" for x, k, c in part)
    return [f"{name}, by domain: " + show([x for x in ranked[::-1] if "/" not in x[1]]), "most: " + show([x for x in ranked[::-1] if "/" in x[1]][:12]), "least: " + show([x for x in ranked if "/" in x[1]][:12])]


def pooled(runs):
    """The gain after seven nights over all arms that learn from right replies and corrections with working: no arm was chosen by its result."""
    facts, rows = runs[0]
    n, rng, base = len(facts["exam"]), np.random.default_rng(0), next(r for r in rows if r["night"] == 0)
    g = np.array([outcomes(r, n) - outcomes(base, n) for _, rows in runs for r in rows if r["night"] == 7 and "exam" in r and r["pairs_kind"] in ("earned", "even")])
    domain = np.array([d for d, _ in facts["exam"]])
    show = lambda x: "{:+.1f} [{:.1f}, {:.1f}]".format(100 * x.mean(), *interval(x, rng))
    return [f"{len(g)} arms, seven nights: {show(g)}; " + ", ".join(f"{d} {show(g[:, domain == d])}" for d in sorted(set(domain)))]


def main():
    if sys.argv[1:]:
        keep(sys.argv[1:])
    n, runs = 1, []
    while os.path.exists(kept(n)):
        facts, rows = load(n)
        runs.append((facts, rows))
        print("\n".join(table(facts, rows)), "\n")
        best = max((r for r in rows if r["night"] and "points" in r), key=lambda r: r["points"])
        print("\n".join(families(facts, rows, best["name"])), "\n")
        n += 1
    print("\n".join(pooled(runs)))


if __name__ == "__main__":
    main()
