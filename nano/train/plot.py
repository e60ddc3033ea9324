"""Loss curves of one or more runs as a PNG, from their log.jsonl.

usage: python3 -m train.plot OUT.png LOG.jsonl [LOG.jsonl ...]
"""
import json
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def main():
    out, logs = sys.argv[1], sys.argv[2:]
    fig, (top, low) = plt.subplots(2, 1, figsize=(9, 7), sharex=True, height_ratios=[3, 1])
    base = 0.0
    for i, path in enumerate(logs):
        with open(path) as f:
            rows = [json.loads(line) for line in f]
        steps = [r for r in rows if "loss" in r]
        x = [base + r["tokens"] / 1e6 for r in steps]
        label = f"run {i + 1}: " if len(logs) > 1 else ""
        top.plot(x, [r["loss"] for r in steps], color=f"C{2 * i}", label=label + "next token")
        top.plot(x, [r["mtp"] for r in steps], color=f"C{2 * i + 1}", label=label + "token after next (MTP)", alpha=.7)
        low.plot(x, [r["lr"] for r in steps], color=f"C{2 * i}")
        per = steps[-1]["tokens"] / steps[-1]["step"]
        for e in (r for r in rows if r.get("event") == "phase"):
            top.axvline(base + e["step"] * per / 1e6, color="0.7", lw=.8)
            top.annotate(f"phase {e['index'] + 1}, rows of {e['length']}", (base + e["step"] * per / 1e6, 1), xycoords=("data", "axes fraction"),
                         rotation=90, va="top", ha="right", fontsize=7, color="0.4")
        base = x[-1]
    lows = [r["loss"] for path in logs for r in map(json.loads, open(path)) if "loss" in r]
    top.set_ylim(0.9 * min(lows), 4.5 if max(lows) > 2 else None)
    top.set_ylabel("training loss, nats a token (weighted)")
    top.legend()
    low.set_ylabel("learning-rate factor")
    low.set_xlabel("tokens, millions")
    fig.tight_layout()
    fig.savefig(out, dpi=110)


if __name__ == "__main__":
    main()
