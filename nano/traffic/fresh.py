"""Fresh phrasings: for a while, the training side of the task generators speaks in wordings of its own.

`wordings.json.gz` (and that of `effect`) names, for every place in `tasks` that holds phrasings, others to use. The names, numbers and
facts stay those of the training side. Imports nothing but `tasks`, so that the traffic can be made and checked by a plain Python.
"""
import gzip
import json
import os
import re
import sys

import tasks
from tasks.core import SPLITS
from tasks.leaks import JACCARD, grams, tokens

HERE = os.path.dirname(os.path.abspath(__file__))
EFFECT = os.path.join(HERE, "..", "effect", "wordings.json")
PATCHES = ("who", "small", "recall", "questions", "log", "missing", "requests", "problems", "only_number", "choose", "polite", "before", "after")


def _module(name):
    return sys.modules["tasks." + name]


def _with(row, at, value):
    return (*row[:at], value, *row[at + 1:])


def _plain(text):
    """A phrasing's words, its blanks as words of their own."""
    return tuple(tokens(re.sub(r"\{(\w+)\}", r" blank\1 ", text)))


def held_out():
    """Every phrasing that an exam may use, as (place, text)."""
    out = []
    for name, mod in sorted(sys.modules.items()):
        if name.startswith("tasks."):
            for var, pool in sorted(vars(mod).items()):
                if type(pool).__name__ == "Pool":
                    out += [(f"{name[6:]}.{var}", t) for s in SPLITS[1:] for _, t in pool.of[s]]
    chat, reading, cyber, tools, apis, problems = (_module(m) for m in ("chat", "reading", "cyber", "tools", "apis", "problems"))
    out += [("who", t) for row in chat.WHO.values() for t in row[1]] + [("small", t) for row in chat.SMALL for t in row[1]]
    out += [("recall", t) for row in chat.RECALL for t in (*row[3], *row[5])] + [("questions", t) for row in reading.PERSON + reading.PLACE for t in row[4]]
    out += [("log", t) for row in cyber.L_ASK.values() for t in row[1]] + [("missing", t) for row in tools.MISSING.values() for t in row[1]]
    out += [("requests", t) for row in apis.APIS for t in row[4]] + [("problems", t) for s in problems.STRUCTURES.values() for t in s[3][:2]]
    return out


def trained():
    """Every phrasing of nano's training, as (place, text); the generators must be in their usual state."""
    from train.wording import CLOSERS, MORE, OPENERS
    out = [(place, t) for place, texts in MORE.items() for t in texts]
    for place in load():
        if "." in place:
            mod, var = place.split(".")
            out += [(place, t) for _, t in getattr(_module(mod), var).of["train"]]
    chat, reading, cyber, tools, apis, core = (_module(m) for m in ("chat", "reading", "cyber", "tools", "apis", "core"))
    out += [("who", t) for row in chat.WHO.values() for t in row[0]] + [("small", t) for row in chat.SMALL for t in row[0]]
    out += [("recall", t) for row in chat.RECALL for t in (*row[2], *row[4])] + [("questions", t) for row in reading.PERSON + reading.PLACE for t in row[3]]
    out += [("log", t) for row in cyber.L_ASK.values() for t in row[0]] + [("missing", t) for row in tools.MISSING.values() for t in row[0]]
    out += [("requests", t) for row in apis.APIS for t in row[3]]
    out += [("only_number", t) for t in core.ONLY_NUMBER["train"]] + [("choose", t) for t in core.CHOOSE["train"]]
    return out + [("before", t) for t in core.BEFORE + OPENERS] + [("after", t) for t in core.AFTER + CLOSERS]


def own():
    """The phrasings of this folder's file."""
    with gzip.open(os.path.join(HERE, "wordings.json.gz"), "rt", encoding="utf-8") as f:
        return json.load(f)


def load():
    """{place: phrasings or a dict or list of them}; pools by "module.VARIABLE", with those of the effect experiment."""
    mine = own()
    with open(EFFECT, encoding="utf-8") as f:
        others = json.load(f)
    pools = mine.pop("pools")
    return {**{p: pools.get(p, []) + others.get(p, []) for p in sorted({*pools, *others})}, **mine}


def flat(place, value):
    """(place, phrasing) of one entry of `load`."""
    if isinstance(value, str):
        return [(place, value)]
    parts = value.values() if isinstance(value, dict) else value
    return [x for v in parts for x in flat(place, v)]


class Known:
    """Phrasings not to be used: equal to one of training, or equal or near to one of an exam."""

    def __init__(self):
        held, old = held_out(), trained()
        self.same = {_plain(t) for _, t in held + old}
        self.near = {}
        for place, t in held:
            self.near.setdefault(place, []).append(grams(_plain(t)))

    def has(self, place, text):
        p = _plain(text)
        mine = grams(p)
        return p in self.same or any(len(mine & g) / len(mine | g) >= JACCARD for g in self.near.get(place, ()))


class fresh_wordings:
    """While open, the training side of the generators has the fresh phrasings alone."""

    def _patches(self):
        """(container, key, value) to set."""
        known, w = Known(), load()
        for place in [p for p in w if "." in p]:
            mod, var = place.split(".")
            texts = list(dict.fromkeys(t for t in w[place] if not known.has(place, t)))
            yield getattr(_module(mod), var).of, "train", [(f"{place}.f{i}", t) for i, t in enumerate(texts)]
        chat, reading, cyber, tools, apis, core, problems = (_module(m) for m in ("chat", "reading", "cyber", "tools", "apis", "core", "problems"))
        for k, texts in w["who"].items():
            yield chat.WHO, k, _with(chat.WHO[k], 0, texts)
        for i, texts in enumerate(w["small"]):
            yield chat.SMALL, i, _with(chat.SMALL[i], 0, texts)
        for i, row in enumerate(chat.RECALL):
            say, ask = w["recall"][row[0]]
            yield chat.RECALL, i, _with(_with(row, 2, say), 4, ask)
        for rows in (reading.PERSON, reading.PLACE):
            for i, row in enumerate(rows):
                yield rows, i, _with(row, 3, w["questions"][row[0]])
        for k, texts in w["log"].items():
            yield cyber.L_ASK, k, _with(cyber.L_ASK[k], 0, texts)
        for k, texts in w["missing"].items():
            yield tools.MISSING, k, _with(tools.MISSING[k], 0, texts)
        for i, api in enumerate(apis.APIS):
            yield apis.APIS, i, _with(_with(api, 3, w["requests"][api[0][0]]), 0, _names(api[0]))
        for name, texts in w["problems"].items():
            level, numbers, solve, wordings = problems.STRUCTURES[name]
            yield problems.STRUCTURES, name, (level, numbers, solve, wordings + texts)
            yield problems.TEMPLATES["train"], name, [(i, len(wordings) + k) for i in range(len(problems.SCENES)) for k in range(len(texts))]
        for holder, key, place in ((core.ONLY_NUMBER, "train", "only_number"), (core.CHOOSE, "train", "choose"), (tools.POLITE, "train", "polite"),
                                   (vars(core), "BEFORE", "before"), (vars(core), "AFTER", "after")):
            yield holder, key, w[place]

    def __enter__(self):
        self.saved = []
        for holder, key, value in list(self._patches()):
            self.saved.append((holder, key, holder[key]))
            holder[key] = value
        return self

    def __exit__(self, *_):
        for holder, key, old in reversed(self.saved):
            holder[key] = old


def _names(names):
    """Names for a function: the one of training in other spellings, then the three that the exams have."""
    base = names[0]
    head, *rest = base.split("_")
    own = [base, head + "".join(r.capitalize() for r in rest), "_".join([*rest, head]), "do_" + base, base + "_now", "api_" + base]
    return [n for n in dict.fromkeys(own) if n not in names[-3:]] + names[-3:]


assert tasks.FAMILIES  # the generators are registered by importing the package
