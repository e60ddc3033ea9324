"""Finds training records that repeat or nearly repeat an exam item.

A record leaks when, after case, punctuation and white space are dropped,
  1. its prompt equals the prompt of an exam item, or
  2. the word 3-grams of both prompts have a Jaccard similarity of at least 0.7, or
  3. it holds at least 80 % of the 3-grams of an exam prompt that has 8 or more (for texts that quote an item).
"""

import json
import re
import sys

from .core import SPLITS
from .exam import load

JACCARD, CONTAINED, CONTAINED_MIN_GRAMS = 0.7, 0.8, 8
COMMON = 60  # a 3-gram in more exam items than this cannot name a candidate
_USER = re.compile(r"<\|im_start\|>user\n(.*?)<\|im_end\|>", re.S)
_TOKEN = re.compile(r"[^\W_]+|[+*/=<>%$^-]")


def tokens(text):
    return _TOKEN.findall(text.casefold())


def grams(toks):
    """The set of word 3-grams; a shorter text is one gram."""
    return {tuple(toks[i:i + 3]) for i in range(len(toks) - 2)} or {tuple(toks)}


def prompt_of(item):
    return "\n".join(str(m.get("content") or "") for m in item["messages"] if m["role"] != "system")


class Index:
    """The exam prompts by their 3-grams."""

    def __init__(self, items):
        self.ids, self.grams, self.exact, self.by_gram = [], [], {}, {}
        for n, it in enumerate(items):
            toks = tokens(prompt_of(it))
            self.ids.append(it["id"])
            self.grams.append(grams(toks))
            self.exact[tuple(toks)] = n
            for g in self.grams[-1]:
                self.by_gram.setdefault(g, []).append(n)

    def find(self, text):
        """(exam id, reason, similarity) of the nearest leak of a text; None when it is clean."""
        toks = tokens(text)
        n = self.exact.get(tuple(toks))
        if n is not None:
            return self.ids[n], "equal prompt", 1.0
        mine, hits = grams(toks), {}
        for g in mine:
            for n in self.by_gram.get(g, ()) if len(self.by_gram.get(g, ())) <= COMMON else ():
                hits[n] = hits.get(n, 0) + 1
        best = None
        for n in hits:
            theirs = self.grams[n]
            both = len(mine & theirs)
            j, inside = both / len(mine | theirs), both / len(theirs)
            if j >= JACCARD and (best is None or j > best[2]):
                best = (self.ids[n], "similar prompt", j)
            elif inside >= CONTAINED and len(theirs) >= CONTAINED_MIN_GRAMS and best is None:
                best = (self.ids[n], "prompt contained", inside)
        return best


def parts_of(text):
    """A text record and, when it is in chat form, each of its user turns by itself."""
    turns = _USER.findall(text)
    return [text, *turns] if turns else [text]


def records(path):
    """(name, text) of each training record: JSON lines of items, or texts that end with a zero byte (a chat also by its user turns)."""
    with open(path, "rb") as f:
        head = f.read(1)
        f.seek(0)
        if head == b"{":
            for line in f:
                it = json.loads(line)
                yield it.get("id", "?"), prompt_of(it)
        else:
            rest, n = b"", 0
            while True:
                block = f.read(1 << 22)
                parts = (rest + block).split(b"\0")
                rest = parts.pop()
                if not block:
                    parts.append(rest)
                for p in filter(None, parts):
                    for text in parts_of(p.decode("utf-8", "replace")):
                        yield f"record {n}", text
                    n += 1
                if not block:
                    return


def scan(index, recs):
    """(number of records, list of (record name, exam id, reason, similarity))."""
    found, n = [], 0
    for name, text in recs:
        n += 1
        hit = index.find(text)
        if hit:
            found.append((name, *hit))
    return n, found


def report(where, path):
    """Prints what was found; 1 when anything leaks."""
    index = Index([it for s in SPLITS[1:] for it in load(where, s)])
    n, found = scan(index, records(path))
    for name, exam_id, why, sim in found[:50]:
        print(f"{name}: {why} with {exam_id} ({sim:.2f})")
    print(f"{n} records, {len(found)} leaks", file=sys.stderr)
    return 1 if found else 0
