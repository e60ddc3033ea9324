"""Nano's own answers: sampled on a GPU, kept as one line each, and made into cases by the exact checks.

A line names the question (an exam and its place there, or a family and a seed of the training side) and holds the reply, so that
thousands of answers are a small file and the same question can be made again.
"""
import json
import lzma
import random
import time

from tasks.exam import load as exam_items
from train.chat import render
from train.decode import Decoder

from . import labels

TOKENS_MAX = 320
PROMPT_MAX = 1200
# What is asked: questions of the training side; others of it and as many in the held-out phrasings and words of `slice` (no item of that
# exam) for the calibration; the exams for the report.
HEATS = {"train": (0.0, 0.8, 0.8, 1.1), "familiar": (0.0, 0.8), "unseen": (0.0, 0.8), "slice": (0.0, 0.8), "golden": (0.0, 0.8)}
FIRST = {"train": 5_000_000_000, "familiar": 9_000_000_000, "unseen": 9_000_000_000}
EXAMS = ("slice", "golden")
_EXAMS = {}


def key(line):
    return line["set"], line.get("seed", line.get("at")), line["heat"]


def in_usual_order(tool):
    """A definition as the daemon prints it (core/src/engine/tool_schema.rs): the exam files sort the keys, which nano never saw."""
    first = lambda d, keys: {**{k: d[k] for k in keys if k in d}, **d}
    f = first(tool["function"], ("name", "description", "parameters"))
    if "parameters" in f:
        p = first(f["parameters"], ("type", "properties", "required"))
        p["properties"] = {k: first(v, ("type", "description", "enum")) for k, v in p.get("properties", {}).items()}
        f["parameters"] = p
    return {**first(tool, ("type",)), "function": f}


def item_of(line, words, exams):
    """The item that a line answers."""
    if line["set"] not in EXAMS:
        return labels.make("slice" if line["set"] == "unseen" else "train", line["family"], line["seed"], words)
    if line["set"] not in _EXAMS:
        _EXAMS[line["set"]] = exam_items(exams, line["set"])
    return _EXAMS[line["set"]][line["at"]]


def questions(name, seed, n, words, exams):
    """Lines without replies: n generated questions, or a whole exam once for each heat (n: every n-th item)."""
    r, out = random.Random(f"own {name} {seed}"), []
    if name in EXAMS:
        count = len(exam_items(exams, name))
        return [{"set": name, "at": at, "heat": h, "mode": "think"} for h in HEATS[name] for at in range(0, count, n)]
    names = labels.family_stream(r)
    first = FIRST[name] + seed * 100_000
    for k in range(n):
        out.append({"set": name, "family": next(names), "seed": first + k, "heat": r.choice(HEATS[name]), "mode": "think" if r.random() < 0.8 else "direct"})
    return out


def prompt(line, tk, words, exams):
    """(line, prompt ids, ids that the reference answer takes, whether tools are offered); None where the family has no such question."""
    try:
        item = item_of(line, words, exams)
    except RuntimeError:
        return None
    tools = [in_usual_order(t) for t in item.get("tools") or []]
    ids = tk.encode(render(item["messages"], tools, line["mode"]), add_special_tokens=False).ids
    said = (item["think"] if line["mode"] == "think" else "") + item.get("answer", "") + json.dumps(item.get("tool_calls", ""))
    return line, ids, len(tk.encode(said, add_special_tokens=False).ids) + 8, bool(tools)


def sample(model, tk, asked, batch, until):
    """asked: what `prompt` gives. Yields lists of lines with replies; batches of about one length and one heat, in random order,
    as long as the clock is before `until`. A reply that does not end by itself is left out."""
    groups = {}
    for q in asked:
        if len(q[1]) <= PROMPT_MAX:
            groups.setdefault(q[0]["heat"], []).append(q)
    parts = []
    for g in groups.values():
        g.sort(key=lambda q: len(q[1]) + q[2])
        parts += [g[i:i + batch] for i in range(0, len(g), batch)]
    random.Random(len(asked)).shuffle(parts)
    for part in parts:
        if time.time() > until:
            return
        room = min(TOKENS_MAX, 40 + max(q[2] for q in part) * 3 // 2)
        dec = Decoder(model, len(part), max(len(q[1]) for q in part) + room)
        said = zip(part, *dec.run([q[1] for q in part], room, part[0][0]["heat"], [q[3] for q in part]))
        yield [{**q[0], "reply": tk.decode(ids, skip_special_tokens=False)} for q, ids, ended in said if ended]


def save(path, lines):
    with lzma.open(path, "wt", encoding="utf-8", preset=1) as f:
        f.writelines(json.dumps(x, ensure_ascii=False, separators=(",", ":")) + "\n" for x in lines)


def load(path):
    with lzma.open(path, "rt", encoding="utf-8") as f:
        return [json.loads(x) for x in f]


def cases(lines, words, exams, attack=0.0):
    """The cases of lines, each with its set and heat."""
    tasks, _ = labels.load_tasks()
    out = []
    for line in lines:
        c = labels.own(item_of(line, words, exams), line["reply"], tasks, attack, random.Random(line["reply"]))
        if c:
            out.append({**c, "set": line["set"], "heat": line["heat"], "mode": line["mode"]})
    return out


def rigid_families(cases_, share=0.97, least=12):
    """Families in which (nearly) every right answer with a thought takes the generator's own steps."""
    seen = {}
    for c in cases_:
        if c["good"] and c["thought"] and c["same"] is not None and c["kind"] == "own":
            seen.setdefault(c["family"], []).append(c["same"])
    return {f for f, x in seen.items() if len(x) >= least and sum(x) >= share * len(x)}
