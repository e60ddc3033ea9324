"""Facts to be learned by weights alone: the household of `chimere eval lessons`, wordings to teach it in, and its neighbours.

Asked are the 40 facts in six wordings each (60 clusters, a kind and a wording) and the 160 neighbours of `src/eval/lessons.rs`.
Taught are they in the wordings of `lessons.json`, none of which is one of those: the question a person corrected, eight more
questions, names of the thing in frames, statements, and questions from the value back to its owner. Neighbours to train on have
names and things of their own; the ones that ask a taught name for something else have relations of their own.

usage: python3 -m effect.lessons nano.gguf OUT.json.gz [--tiny]     tokens of everything, made without a device
"""
import argparse
import difflib
import gzip
import json
import os
import random
import re

import tasks  # noqa: F401  (registers the families)
from tasks.exam import unique_items
from train import facts

from . import data

HERE = os.path.dirname(os.path.abspath(__file__))
REFUSAL = "I don't know."                    # nano's own words for most of these questions before it is taught
PLAIN, ALL = 10, 30                          # wordings of a fact


def household():
    """(kinds, facts, neighbours) of src/eval/lessons.rs: a fact is (kind, about, answer)."""
    with open(os.path.join(HERE, "../../src/eval/lessons.rs"), encoding="utf-8") as f:
        blocks = re.findall(r"Kind \{\n(.*?)\n    \},", f.read(), re.S)
    one = lambda key, b: re.search(key + r': "(.*?)",(?:\n|$)', b).group(1)
    many = lambda key, b: re.findall(r'"(.*?)"', re.search(key + r": &\[(.*)\],(?:\n|$)", b).group(1))
    kinds = [{"taught": one("taught", b), "held": many("held_out", b), "beside": one("beside", b), "known": list(zip(*[iter(many("known", b))] * 2)), "unknown": many("unknown", b)} for b in blocks]
    told = [(k, *kinds[k]["known"][n]) for n in range(4) for k in range(len(kinds))]
    near = [said(kinds[k]["beside"], about) for k, about, _ in told]
    near += [said(w, e) for kind in kinds for e in kind["unknown"] for w in [kind["taught"], *kind["held"][:3]]]
    return kinds, told, near


def said(wording, about, v=""):
    s = wording.replace("@", about).replace("{v}", v)
    return s[0].upper() + s[1:]


class Grammar:
    """Wordings as pairs (question, reply) with @ and {v}: of each kind the first ten are plain questions, all are thirty."""

    def __init__(self, kinds):
        with open(os.path.join(HERE, "lessons.json"), encoding="utf-8") as f:
            g = json.load(f)
        self.kinds, self.types = g["kinds"], [k["type"] for k in g["kinds"]]
        self.pairs = []
        for n, (k, base) in enumerate(zip(self.kinds, kinds)):
            rng = random.Random(f"wordings {n}")
            frames = [f.format(n=name) for f, name in zip(g["frames"], k["names"] * 5)]
            rng.shuffle(frames)
            asks = [base["taught"], *k["asks"], *frames]
            plain = [(q, "It is {v}.") for q in asks]
            states = [(rng.choice(g["about"]).format(w=k["what"]), s) for s in k["states"]]
            back = [(q, f"It is {k['who']}.") for q in k["back"]]
            few = plain[:PLAIN]
            self.pairs.append(few + (plain[PLAIN:] + states + back)[:ALL - PLAIN])

    def nearest(self, kinds):
        """The most alike of a taught and a held-out wording of one kind: (share of equal words in order, taught, held out)."""
        return max((difflib.SequenceMatcher(None, q.lower().split(), h.lower().split()).ratio(), q, h)
                   for n, base in enumerate(kinds) for q, _ in self.pairs[n] for h in base["held"])


def stranger(rng, kind_type, taken):
    """Somebody or something of the type that nobody was told of."""
    while True:
        made = facts.name(rng, "train", rng.choice((2, 2, 3)))
        word = rng.choice(facts.WORDS)
        e = {"person": lambda: rng.choice((made, rng.choice(facts.FIRST))),
             "place": lambda: rng.choice((made, made, f"{rng.choice(('Lower', 'Upper', 'Sankt', 'New', 'Bad'))} {made}", made + rng.choice(("field", "beck", "ford", "berg", "see", "wick")))),
             "meeting": lambda: word, "report": lambda: rng.choice((made, word.capitalize())),
             "thing": lambda: rng.choice((word, f"{word} {rng.choice(facts.WORDS)}", f"{word} {rng.choice(('room', 'shed', 'desk', 'house', 'garden', 'gate'))}"))}[kind_type]()
        if e.lower() not in taken:
            return e


def value(rng, answer):
    """Another value of the same look."""
    if answer.isdigit():
        return str(rng.randint(1000, 9999))
    if answer.startswith("line "):
        return f"line {rng.randint(2, 299)}"
    if answer[0].isdigit():
        return f"{rng.randint(1, 28)} {rng.choice(facts.MONTHS)}"
    return rng.choice(facts.WORDS) if answer[0].islower() else facts.name(rng, "train")


def neighbour(rng, grammar, told, taken):
    """A question near the taught ones that nothing taught answers: six in ten about others, the rest asks something else of the same ones."""
    k, about, answer = rng.choice(told)
    x, mine = rng.random(), {(kk, a) for kk, a, _ in told}
    if x < 0.6:
        q, _ = rng.choice([p for p in grammar.pairs[k] if "{v}" not in p[0]])
        return said(q, stranger(rng, grammar.types[k], taken))
    if x < 0.7:
        q, _ = rng.choice([p for p in grammar.pairs[k] if "{v}" in p[0]])
        v = value(rng, answer)
        return said(q, "", v) if v.lower() not in taken else neighbour(rng, grammar, told, taken)
    others = [o for o in range(len(grammar.types)) if grammar.types[o] == grammar.types[k] and o != k and (o, about) not in mine]
    if x < 0.85 and others:
        return said(rng.choice([p for p in grammar.pairs[rng.choice(others)] if "{v}" not in p[0]])[0], about)
    e = {"meeting": f"the {about} meeting", "thing": f"the {about}", "report": f"the {about} report"}.get(grammar.types[k], about)
    nouns, verbs = facts._KINDS["train"]
    a, _, _, asks = rng.choice(nouns + verbs)
    q = rng.choice(asks).format(a=a, e=e)
    return q[0].upper() + q[1:]


def talk(rng, q):
    """The question with small talk before or behind it."""
    k = rng.random()
    q = rng.choice(facts.BEFORE_ASK).format(n=rng.randint(2, 9)) + q if k < 0.6 else q
    return q + rng.choice(facts.AFTER_ASK) if k > 0.5 else q


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("model")
    ap.add_argument("out")
    ap.add_argument("--tiny", action="store_true")
    a = ap.parse_args()
    coder = data.Coder(data.tokenizer(a.model))
    kinds, told, near = household()
    grammar = Grammar(kinds)
    taken = {x.lower() for k, about, v in told for x in (about, v)} | {e.lower() for k in kinds for e in k["unknown"]}
    prompt = lambda q: coder.prompt({"messages": [{"role": "user", "content": q}]})
    pair = lambda q, r: (prompt(q), coder.reply({"id": q, "messages": [{"role": "user", "content": q}], "answer": r}))
    rng = random.Random("neighbours")
    pool = lambda n: [pair(neighbour(rng, grammar, told, taken), REFUSAL) for _ in range(n)]
    lessons = [[pair(said(q, e, v), said(r, e, v)) for q, r in grammar.pairs[k]] for k, e, v in told]
    chat = [[pair(talk(rng, said(q, e, v)), said(r, e, v)) for q, r in grammar.pairs[k]] for k, e, v in told]
    exam, held = unique_items("slice", 9301, 14 if a.tiny else 600), unique_items("slice", 9302, 7 if a.tiny else 150)
    honest = data.traffic(14 if a.tiny else 440, 9303, fresh=False, families=list(tasks.core.FAMILIES))
    asked = ([said(w, e) for k, e, _ in told for w in kinds[k]["held"]], [said(grammar.pairs[k][i][0], e, v) for k, e, v in told for i in (0, 3, 9)], near)
    if a.tiny:
        asked = tuple(x[:8] for x in asked)
    out = {"asked": [[prompt(q) for q in part] for part in asked], "lessons": lessons, "talk": chat, "fixed": pool(160), "fresh": pool(40 if a.tiny else 4000),
           "honest": [(coder.prompt(i), coder.reply(i)) for i in honest], "held": [(coder.prompt(i), coder.reply(i)) for i in held],
           "exam": [(coder.prompt(i), len(coder.reply(i)), bool(i.get("tools"))) for i in exam]}
    with gzip.open(a.out, "wt", encoding="utf-8") as f:
        json.dump(out, f, separators=(",", ":"))
    tokens = lambda pairs: sum(len(p) + len(r) + 1 for p, r in pairs) / len(pairs)
    print("wordings of a kind", [len(p) for p in grammar.pairs], "nearest", grammar.nearest(kinds))
    print("tokens of a lesson %.1f, neighbour %.1f, honest pair %.1f" % (tokens(sum(lessons, [])), tokens(out["fresh"]), tokens(out["honest"])),
          "honest pairs longer than 511:", sum(len(p) + len(r) > 511 for p, r in out["honest"]), "asked", [len(x) for x in asked])


if __name__ == "__main__":
    main()
