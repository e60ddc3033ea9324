"""What every generator stands on: splits, template pools, items and the stream that mixes families.

A split is a share of three spaces that never meet: templates (each pool names which phrasings
are held out), entities (names of people, places and things, by hash) and numbers (the key of a
problem, by hash). So train and the three exams are disjoint by construction.
"""

import random
import zlib

SPLITS = ("train", "slice", "golden", "week")
DOMAINS = ("chat", "arithmetic", "tools", "code", "kine", "cyber", "research")
# Share of training items a domain takes; families divide it by their weights.
TRAIN_SHARE = {"arithmetic": 30, "code": 16, "chat": 14, "tools": 13, "kine": 9, "cyber": 9, "research": 9}
# Share of hash space a split owns, in hundredths: train 0-84, then 5 each.
_NUMBER_EDGE = {"train": (0, 85), "slice": (85, 90), "golden": (90, 95), "week": (95, 100)}
_ENTITY_EDGE = {"train": (0, 70), "slice": (70, 80), "golden": (80, 90), "week": (90, 100)}

SYSTEM = {
    "": ["You are a helpful assistant.", "You are nano, a small assistant.", "Answer briefly.",
         "You are a careful assistant. Think step by step, then answer shortly.", "Be concise and exact."],
    "code": ["You are a programming assistant.", "You help with code. Be exact."],
    "kine": ["You are an assistant for training and physiotherapy facts.", "You answer questions on exercise and anatomy."],
    "cyber": ["You are a security assistant.", "You help a security team. Answer exactly."],
    "research": ["You answer only from the given sources and cite them.", "You are a research assistant. Use the sources and cite them."],
    "tools": ["You can call functions.", "Use the tools when they help."],
}

FAMILIES = {}  # name -> (domain, weight, function)


class Pool:
    """Phrasings of one question: those of training and those held out, dealt to the three exams in turn."""

    def __init__(self, name, train, held):
        if len(held) < 3:
            raise ValueError(f"pool {name}: needs at least 3 held-out phrasings, one for each exam")
        self.of = {"train": [(f"{name}.t{i}", t) for i, t in enumerate(train)]}
        for k, split in enumerate(SPLITS[1:]):
            self.of[split] = [(f"{name}.h{i}", t) for i, t in enumerate(held) if i % 3 == k]


def bucket(text):
    """A number 0-99 that depends on nothing but the text."""
    return zlib.crc32(("nano/1:" + text).encode()) * 2654435761 % 4294967296 // 65536 % 100


def entities(split, pool):
    """The part of a list of names that belongs to a split."""
    lo, hi = _ENTITY_EDGE[split]
    got = [e for e in pool if lo <= bucket("e:" + (e if isinstance(e, str) else e[0])) < hi]
    return got or [sorted(pool, key=str)[SPLITS.index(split)]]


class Ctx:
    """One stream's random source together with its split."""

    def __init__(self, split, seed, family=""):
        if split not in SPLITS:
            raise ValueError(f"unknown split {split!r}: use one of {', '.join(SPLITS)}")
        self.split, self.train = split, split == "train"
        self.r = random.Random(f"{split}/{seed}/{family}")
        self._names = {}
        self.random, self.choice, self.sample, self.shuffle = self.r.random, self.r.choice, self.r.sample, self.r.shuffle
        self._lo, self._hi = _NUMBER_EDGE[split]

    def int(self, a, b):
        """A whole number from a to b, both included."""
        return a + int(self.random() * (b - a + 1))

    def chance(self, p):
        return self.random() < p

    def phr(self, pool):
        """(template id, phrasing) of this split."""
        opts = pool.of[self.split]
        return opts[int(self.random() * len(opts))]

    def mine(self, key):
        """Whether the problem with this key belongs to this split."""
        return self._lo <= bucket(key) < self._hi

    def draw(self, make, tries=400):
        """Calls make() -> (key, value) until the key is of this split."""
        for _ in range(tries):
            key, value = make()
            if self.mine(key):
                return value
        raise RuntimeError("no problem of this split found: the number space of the family is too small")

    def of(self, pool, name=None):
        """One entity of this split; pools are module-level lists, cached by identity."""
        k = id(pool)
        if k not in self._names:
            self._names[k] = (pool, entities(self.split, pool))
        return self.choice(self._names[k][1])

    def some(self, pool, n):
        """n different entities of this split."""
        self.of(pool)
        return self.sample(self._names[id(pool)][1], n)

    def item(self, template, ask, think, answer, check, level="easy", max_tokens=256, **more):
        """An item without the fields that the family's stream adds."""
        msgs = ask if isinstance(ask, list) else [{"role": "user", "content": ask}]
        return {"level": level, "template": template, "messages": msgs, "think": think, "answer": answer,
                "check": check, "max_tokens": max_tokens, **more}

    def number(self, template, ask, value, think, level="easy", unit="", **more):
        """An item whose answer is a number; the wording of the answer varies a little in training."""
        v = str(value)
        plain = v + (" " + unit if unit else "")
        if self.random() < 0.2:
            ask += self.choice(ONLY_NUMBER[self.split])
            answer = v
        elif self.train and self.random() < 0.12:
            answer = self.choice((plain, f"The result is {plain}.", f"It is {plain}.", f"Answer: {plain}"))
        else:
            answer = f"The answer is {plain}."
        return self.item(template, ask, think, answer, {"kind": "number", "value": v}, level, **more)

    def options(self, right, wrong):
        """(lines, letter, texts): the choices in random order under A, B, C ..."""
        texts = [right, *wrong]
        self.shuffle(texts)
        letter = "ABCDEF"[texts.index(right)]
        return "\n".join(f"{'ABCDEF'[i]}. {t}" for i, t in enumerate(texts)), letter, texts

    def choose(self, template, ask, right, wrong, because="", level="easy", domain="", **more):
        """A choice item: the question, the lettered options, the letter as answer."""
        lines, letter, texts = self.options(right, wrong)
        end = self.choice(CHOOSE[self.split])
        think = (because + " " if because else "") + f"That is option {letter}."
        answer = letter
        if self.train and self.random() < 0.15:
            answer = self.choice((f"{letter}.", f"{letter}. {right}", f"The answer is {letter}."))
        return self.item(template, f"{ask}\n{lines}\n{end}", think, answer,
                         {"kind": "choice", "value": letter, "among": list("ABCDEF"[:len(texts)])}, level, **more)


ONLY_NUMBER = {
    "train": [" Give only the number.", " Reply with the number only.", " Just the number, please.", " Answer with a number."],
    "slice": [" Only the number, please."], "golden": [" Write just the number."], "week": [" The number alone is enough."],
}
CHOOSE = {
    "train": ["Answer with the letter.", "Reply with one letter.", "Give the letter only.", "Which letter is right?"],
    "slice": ["Write the letter of the right option."], "golden": ["Answer with one letter only."],
    "week": ["State the letter of the correct option."],
}


def family(domain, name, weight=1.0):
    """Registers a generator function (Ctx -> item) as a family of a domain."""
    def keep(f):
        if name in FAMILIES:
            raise ValueError(f"family {name} is registered twice")
        FAMILIES[name] = (domain, weight, f)
        return f
    return keep


BEFORE = ["Question: ", "Please: ", "Hi, ", "Hello! ", "I have a question. ", "Can you help? ", "Quick question: ", "Please answer: ", "Next: ", "Hey nano, ",
          "I would like to know: ", "A small task: ", "OK. ", "So, ", "Now, "]
AFTER = [" Thanks.", " Thank you!", " Please.", " Thanks in advance.", " I need it soon.", "\n"]


def _wrap(c, it):
    """In training, words around the question that change nothing: the exams have other phrasings, not these."""
    last = it["messages"][-1]
    if last["role"] == "user" and c.chance(0.2):
        text = last["content"]
        if c.chance(0.7):
            head = c.choice(BEFORE)
            text = (head.rstrip() + "\n" if "\n" in text else head) + text
        else:
            text += c.choice(AFTER)
        it["messages"][-1] = {"role": "user", "content": text}


def _finish(c, it, name, domain, n, seed):
    if c.train and name != "greeting":
        _wrap(c, it)
    if c.random() < 0.35 and it["messages"][0]["role"] != "system":
        pool = SYSTEM[""] + SYSTEM.get(domain, [])
        it["messages"] = [{"role": "system", "content": c.choice(pool)}, *it["messages"]]
    # One character is at most one token, so a full thought always fits.
    it["max_tokens"] = max(it["max_tokens"], 64 + len(it["think"]) + len(it["answer"]))
    return {"id": f"{c.split}-{name}-{seed}-{n}", "domain": domain, "family": name, **it}


def generate(split, seed, n, families=None, corpus=None, balanced=None):
    """Streams n items, the same for the same (split, seed, families).

    Exams take domains evenly and families of a domain evenly; training takes families by weight.
    `corpus` is accepted and not used: the facts travel with the package.
    """
    names = sorted(families or FAMILIES)
    unknown = [f for f in names if f not in FAMILIES]
    if unknown:
        raise ValueError(f"unknown families {unknown}: see `python3 -m tasks families`")
    c = Ctx(split, seed, ",".join(names))
    if split == "train" and not balanced:
        total = {d: sum(FAMILIES[f][1] for f in names if FAMILIES[f][0] == d) for d in DOMAINS}
        weights = [TRAIN_SHARE[FAMILIES[f][0]] * FAMILIES[f][1] / total[FAMILIES[f][0]] for f in names]
        order = None
    else:
        by = {d: [f for f in names if FAMILIES[f][0] == d] for d in DOMAINS}
        order = [by[d] for d in DOMAINS if by[d]]
    for i in range(n):
        if order is None:
            name = c.r.choices(names, weights)[0]
        else:
            fams = order[i % len(order)]
            name = fams[i // len(order) % len(fams)]
        domain, _, make = FAMILIES[name]
        yield _finish(c, make(c), name, domain, i, seed)
