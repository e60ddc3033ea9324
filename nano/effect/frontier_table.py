"""Grades what `effect.frontier` wrote: recall in other words, spill on neighbours, points on ordinary items, distance from the base.

usage: python3 -m effect.frontier_table nano.gguf RAW OUT.jsonl.xz     tokens of replies to one graded line an arm and set
       python3 -m effect.frontier_table OUT.jsonl.xz                    the table of these lines
Intervals are 95 % bootstraps: of wordings by cluster (a kind and a wording, 60 of them), of neighbours by kind and wording (50), of
ordinary items paired with the base by item. Replies of an arm's seeds are in one cluster: seeds themselves are not drawn.
"""
import json
import lzma
import os
import random
import re
import sys
from collections import defaultdict

from train.reading_exam import REFUSAL

from . import lessons

ASIDE = {"the", "of", "line", "on", "in", "under", "behind", "at"}
ROUNDS = 2000


def words(text):
    out = [re.sub(r"^(\d+)(st|nd|rd|th)$", r"\1", w) for w in re.findall(r"[^\W_]+", text.lower())]
    return [w for w in out if w not in ASIDE]


def gives(reply, answer):
    """As `gives` of src/eval/lessons.rs: the answer's words in a row, a date also the other way round."""
    r, a = words(reply), words(answer)
    holds = lambda a: any(r[i:i + len(a)] == a for i in range(len(r) - len(a) + 1))
    return bool(a) and (holds(a) or (len(a) == 2 and a[0].isdigit() and holds(a[::-1])))


def questions():
    """(fact, cluster) of every question asked, in order: held-out wordings, taught ones, neighbours (no fact)."""
    kinds, told, near = lessons.household()
    held = [(i, (k, w)) for i, (k, _, _) in enumerate(told) for w in range(6)]
    taught = [(i, (k, w)) for i, (k, _, _) in enumerate(told) for w in range(3)]
    beside = [(None, (k, "beside")) for k, _, _ in told]
    others = [(None, (k, w)) for k in range(len(kinds)) for _ in range(3) for w in range(4)]
    assert len(near) == len(beside + others)
    return told, held, taught, beside + others


def grade(reply, answers, fact):
    """r right, w another taught value, n says that it does not know, o something else."""
    if fact is not None and gives(reply, answers[fact]):
        return "r"
    if any(gives(reply, a) for i, a in enumerate(answers) if i != fact):
        return "w"
    return "n" if REFUSAL.search(reply) else "o"


def graded(model, raw, out):
    import tasks
    from tasks.exam import unique_items
    from train.chat import parse_reply

    from . import data
    coder = data.Coder(data.tokenizer(model))
    items = unique_items("slice", 9301, 600)
    told, held, taught, near = questions()
    answers = [v for _, _, v in told]
    text = lambda ids: parse_reply(coder.tk.decode(ids, skip_special_tokens=False))[1]
    lines = [json.loads(x) for x in open(os.path.join(raw, "arms.jsonl"), encoding="utf-8")]
    for a in lines:
        a["curve"] = a["curve"][-1:]
    for x in open(os.path.join(raw, "replies.jsonl"), encoding="utf-8"):
        d = json.loads(x)
        if d["what"] == "asked":
            g = "".join(grade(text(r), answers, f) for r, (f, _) in zip(d["replies"], held + taught + near))
            lines.append({"arm": d["arm"], "held": g[:240], "taught": g[240:360], "near": g[360:], "loss": d["held"][0], "kl": d["held"][1]})
            for i in (0, 37, 100, 365, 420, 500):
                print(d["arm"], "|", g[i], "|", text(d["replies"][i])[:70], file=sys.stderr)
        else:
            lines.append({"arm": d["arm"], "exam": "".join("1" if coder.good(i, r) else "0" for i, r in zip(items, d["replies"]))})
    lines.append({"domains": [i["domain"] for i in items]})
    with lzma.open(out, "wt", preset=9) as f:
        f.writelines(json.dumps(x, separators=(",", ":")) + "\n" for x in lines)


def interval(groups):
    """(mean, low, high) in percent of 0 and 1 in groups, by bootstrap over groups."""
    sums, rng = [(sum(g), len(g)) for g in groups], random.Random(1)
    draw = lambda: [rng.choice(sums) for _ in sums]
    rate = lambda s: 100 * sum(a for a, _ in s) / sum(n for _, n in s)
    got = sorted(rate(draw()) for _ in range(ROUNDS))
    return rate(sums), got[ROUNDS // 40], got[-ROUNDS // 40 - 1]


def table(path):
    lines = [json.loads(x) for x in lzma.open(path, "rt")]
    told, held, _, near = questions()
    asked, exam, arms = defaultdict(dict), {}, {a["name"]: a for a in lines if "name" in a}
    for x in lines:
        if "held" in x:
            asked[re.sub(r"/\d", "", x["arm"])][x["arm"]] = x
        elif "exam" in x:
            exam[x["arm"]] = x["exam"]
    base = exam["base"]

    def clusters(members, key, which, letter, part=slice(None)):
        by = defaultdict(list)
        for m in members:
            for (_, c), g in list(zip(which, m[key]))[part]:
                by[c].append(g == letter)
        return interval(list(by.values()))
    print("arm | seeds | held-out right | another value | refused | taught | spill | of others | beside | refused | points | KL | loss")
    for name, runs in asked.items():
        m = list(runs.values())
        show = lambda t: f"{t[0]:.1f} [{t[1]:.1f}, {t[2]:.1f}]"
        mean = lambda key, letter: f"{100 * sum(x[key].count(letter) for x in m) / sum(len(x[key]) for x in m):.1f}"
        scored = [exam[a] for a in runs if a in exam]
        points = "-"
        if scored:
            points = show(interval([[int(e[i]) - int(base[i]) for e in scored] for i in range(len(base))]))
        print(" | ".join([name, str(len(m)), show(clusters(m, "held", held, "r")), mean("held", "w"), mean("held", "n"), mean("taught", "r"), show(clusters(m, "near", near, "w")),
                          f"{clusters(m, 'near', near, 'w', slice(40, None))[0]:.1f}", f"{clusters(m, 'near', near, 'w', slice(0, 40))[0]:.1f}", mean("near", "n"), points,
                          f"{sum(x['kl'] for x in m) / len(m):.3f}", f"{sum(x['loss'] for x in m) / len(m):.4f}"]))
    print("base", sum(map(int, base)) / len(base), {a["steps"] for a in arms.values()})


if __name__ == "__main__":
    graded(*sys.argv[1:4]) if len(sys.argv) > 2 else table(sys.argv[1])
