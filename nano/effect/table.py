"""Tables and the curve from the results of one or more runs.

usage: python3 -m effect.table RUN... [--keep results]    RUN: a folder with results.jsonl and facts.json of `effect.run`
       python3 -m effect.table                            the tables again from results/
`--keep` writes results/arms.jsonl (graded arms, exam outcomes as hexadecimal bits), results/curves.tsv (tuning loss by step, mean over
seeds) and results/facts.json, each packed (.gz). Intervals: 95 %, bootstrap over items and seeds, paired with the base model.
"""
import argparse
import collections
import json
import os

import numpy as np

from tasks.packed import unpacked, write

HERE = os.path.dirname(os.path.abspath(__file__))
KEY = ("method", "target", "data", "lr", "sigma", "n", "frozen_a", "rank", "rows", "step")
DRAWS = 2000


def lines(path):
    return [json.loads(line) for line in unpacked(path).splitlines()]


def keep(runs, where):
    """Merges runs into the three files; exam outcomes are packed."""
    os.makedirs(where, exist_ok=True)
    rows = [r for d in runs for r in lines(os.path.join(d, "results.jsonl"))]
    with open(os.path.join(runs[0], "facts.json")) as f:
        facts = json.load(f)
    seen_base, arms = False, []
    for r in rows:
        if "exam" in r and not (r["method"] == "base" and seen_base):
            seen_base |= r["method"] == "base"
            bits = np.array(list(r["exam"])) == "1"
            arms.append(json.dumps({**r, "exam": np.packbits(bits).tobytes().hex()}, separators=(",", ":")) + "\n")
    write(os.path.join(where, "arms.jsonl.gz"), "".join(arms))
    curve = collections.defaultdict(list)
    for r in rows:
        if r["method"] != "base":
            curve[(*(r[k] for k in KEY[:-1]), r["steps"], r["step"])].append((r["tune"], r["token_forwards"], r["first_layer"]))
    points = [[*KEY[:-1], "steps", "step", "seeds", "tune_loss", "token_forwards", "first_layer"]]
    for k in sorted(curve, key=str):
        v = curve[k]
        points.append([*k, len(v), round(float(np.mean([x[0] for x in v])), 5), round(float(np.mean([x[1] for x in v]))), v[0][2]])
    write(os.path.join(where, "curves.tsv.gz"), "".join("\t".join(map(str, row)) + "\n" for row in points))
    write(os.path.join(where, "facts.json.gz"), json.dumps(facts, separators=(",", ":")) + "\n")


def outcomes(r, n):
    return np.unpackbits(np.frombuffer(bytes.fromhex(r["exam"]), np.uint8))[:n].astype(float)


def interval(gain, rng):
    """95 % of the mean of gain [seeds, items], both drawn again."""
    s, n = gain.shape
    draws = [gain[rng.integers(0, s, s)][:, rng.integers(0, n, n)].mean() for _ in range(DRAWS)]
    return 100 * np.percentile(draws, [2.5, 97.5])


def table(where):
    """Markdown lines of the graded arms, and (key, gain [seeds, items]) for other uses."""
    facts = json.loads(unpacked(os.path.join(where, "facts.json.gz")))
    families = [f for _, f in facts["exam"]]
    absent, n, rng = np.array([f in facts["absent"] for f in families]), len(families), np.random.default_rng(0)
    rows = lines(os.path.join(where, "arms.jsonl.gz"))
    base = next(r for r in rows if r["method"] == "base")
    b, groups = outcomes(base, n), collections.defaultdict(list)
    for r in rows:
        if r["method"] != "base":
            groups[tuple(r[k] for k in KEY)].append(r)
    out = [f"base: {base['points']} % of {n}; loss {base['held']}, text {base['text']}", "",
           "| method, target | pairs | seeds | points | in traffic | absent | loss | KL | text loss | forwards (M tokens) |", "|---|---|---|---|---|---|---|---|---|---|"]
    kept = []
    for k, v in groups.items():
        g = np.array([outcomes(r, n) - b for r in v])
        lo, hi = interval(g, rng)
        m = lambda q: np.mean([r[q] for r in v])
        out.append(f"| {k[0]} {k[1]}{f' N={k[5]}' if k[5] else ''} r{k[7]} lr {k[3]} | {k[2]} | {len(v)} | {100 * g.mean():+.1f} [{lo:.1f}, {hi:.1f}] | {100 * g[:, ~absent].mean():+.1f} | "
                   f"{100 * g[:, absent].mean():+.1f} | {m('held'):.4f} | {m('kl'):.4f} | {m('text'):.3f} | {m('token_forwards') / 1e6:.2f} |")
        kept.append((k, g))
    return out, kept, facts


def by_family(kept, facts, where):
    """Gains of the main arms by domain and family."""
    names = [("adam", "all", "fresh:1000"), ("adam", "last6", "fresh:1000"), ("adam", "last", "fresh:1000"), ("adam", "all", "earned:1000"),
             ("adam", "all", "sampled:1000"), ("one", "last", "fresh:1000")]
    cols = [(n, next(g for k, g in kept if k[:3] == n)) for n in names if any(k[:3] == n for k, _ in kept)]
    with open(os.path.join(where, "families.tsv"), "w", encoding="utf-8") as f:
        f.write("\t".join(["domain", "family", "items", "in_traffic", *(" ".join(n) for n, _ in cols)]) + "\n")
        items = collections.defaultdict(list)
        for i, (d, fam) in enumerate(facts["exam"]):
            items[d, fam].append(i)
            items[d, "(all)"].append(i)
        for (d, fam), ix in sorted(items.items()):
            f.write("\t".join(map(str, [d, fam, len(ix), "" if fam == "(all)" else int(fam not in facts["absent"]), *(f"{100 * g[:, ix].mean():.1f}" for _, g in cols)])) + "\n")


def plot(where, path):
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    head, *rows = [line.split("\t") for line in unpacked(os.path.join(where, "curves.tsv.gz")).decode().splitlines()]
    rows = [dict(zip(head, r)) for r in rows]
    curves = collections.defaultdict(list)
    for r in rows:
        if int(r["seeds"]) >= 3:
            name = f"{r['method']} {r['target']} {r['data']}" + (f" N={r['n']}" if int(r["n"]) else "")
            curves[name].append((float(r["token_forwards"]) * (1 if int(r["n"]) else 3) / 1e6, float(r["tune_loss"])))
    fig, ax = plt.subplots(1, 2, figsize=(13, 5), sharey=True)
    for name, c in sorted(curves.items()):
        side = ax[0] if name.endswith("fresh:1000") or "N=" in name else ax[1]
        if name.startswith("adam all") or side is ax[0]:
            x, y = zip(*sorted(c))
            side.plot(x, y, marker=".", ls="--" if "N=" in name else "-", label=name)
    for a, title in zip(ax, ("by target and method", "all layers, by pairs")):
        a.axhline(0.06126, color="grey", ls=":", label="base")
        a.set_xscale("log")
        a.set_xlabel("million token-forwards (first order: 3 x its tokens)")
        a.set_title(title)
        a.legend(fontsize=7)
    ax[0].set_ylabel("loss on held-out replies (tuning items)")
    fig.tight_layout()
    fig.savefig(path, dpi=90)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("runs", nargs="*")
    ap.add_argument("--keep", default=os.path.join(HERE, "results"))
    a = ap.parse_args()
    if a.runs:
        keep(a.runs, a.keep)
    text, kept, facts = table(a.keep)
    by_family(kept, facts, a.keep)
    plot(a.keep, os.path.join(HERE, "curve.png"))
    print("\n".join(text))


if __name__ == "__main__":
    main()
