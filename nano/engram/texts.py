"""Renders the texts that the four shipped Engram tables are counted from, one domain a file, documents ended by a zero byte.

Why a step of its own: it decides which sets may take part. Share-alike sets, and sets whose licence is not plain, stay out, because a
table holds short excerpts of its texts. Of a conversation only the answer is taken, without its thought. The same 1.5 % of documents
as for the model itself are held out (`NAME.held.txt`), and a document near an exam item is dropped (`tasks/leaks.py`).

usage: python3 -m engram.texts CORPUS OUT --exams FILE ...      (run in nano/)
"""
import argparse
import hashlib
import os
import random
import re

from tasks.exam import items
from tasks.leaks import Index, parts_of
from train import mix
from train.chat import SPLIT

BYTES_MAX = 12_000_000
HELD_OUT = 0.015        # as train/pack.py, over the same bytes
_ANSWER = re.compile(r"<\|im_start\|>assistant\n(?:<think>.*?</think>\n\n)?(.*?)<\|im_end\|>", re.S)


def atomic():
    """Not part of the model's own training text."""
    for r in mix.rows("atomic-red-team"):
        yield from (mix.clean(t) for t in mix.pieces(r["text"], 5000))


BOOKS = ["openstax-" + n for n in ("college-success", "introduction-python-programming", "introduction-sociology",
                                   "introductory-statistics-bundle", "microbiology", "physics", "psychology")]
TABLES = {
    "kine": ([mix.kine, mix.medicine, mix.textbooks], ["free-exercise-db", "medquad", "pubmedqa", "openstax-anatomy-physiology"]),
    "code": ([mix.code, mix.shell], ["mbpp", "py-thealgorithms", "py-keon-algorithms", "py-geekcomputers", "py-30seconds", "py-exercism",
                                     "rust-book", "tldr-pages"]),
    "cyber": ([mix.cyber, atomic], ["mitre-attack-capec", "rustsec", "security-101", "cisa-kev", "atomic-red-team"]),
    "general": ([mix.textbooks, mix.qa, mix.books], ["african-storybook", "gutenberg-simple", "factbook", "wordnet", *BOOKS]),
}


def share(text):
    """A number in [0, 1) that depends on the document alone."""
    return int.from_bytes(hashlib.blake2b(text.replace(SPLIT, "").encode(), digest_size=4).digest(), "big") / 2 ** 32


def answers(document):
    """What a reply could hold of a document."""
    text = document.replace(SPLIT, "")
    return "\n".join(_ANSWER.findall(text)) if "<|im_start|>" in text else text


def documents(generators, allowed):
    """Rendered documents of the allowed sets alone: the others give no rows."""
    rows, blob = ROWS, BLOB
    mix.rows = lambda name, *file: rows(name, *file) if name in allowed else iter(())
    mix.blob = lambda name: blob(name) if name.split("/")[0] in allowed else {}
    mix.flan = lambda name: iter(())
    for generator in generators:
        random.seed(f"engram {generator.__name__}")
        yield from (d for d in generator() if len(d) >= 20)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("corpus")
    ap.add_argument("out")
    ap.add_argument("--exams", nargs="*", default=[])
    a = ap.parse_args()
    mix.ROOT = a.corpus
    index = Index([item for path in a.exams for item in items(path)])
    os.makedirs(a.out, exist_ok=True)
    for name, (generators, allowed) in TABLES.items():
        seen, near, kept = set(), 0, {"": [], ".held": []}
        for document in documents(generators, allowed):
            text = answers(document).strip()
            if len(text) < 20 or text in seen:
                continue
            seen.add(text)
            if any(index.find(part) for part in parts_of(document.replace(SPLIT, ""))):
                near += 1
                continue
            kept[".held" if share(document) < HELD_OUT else ""].append((share(document[::-1]), text))
        for side, texts in kept.items():
            size, lines = 0, []
            for _, text in sorted(texts):       # in an order of chance that never changes, up to the limit
                size += len(text)
                if size > BYTES_MAX:
                    break
                lines.append(text + "\0")
            with open(f"{a.out}/{name}{side}.txt", "w", encoding="utf-8") as f:
                f.writelines(lines)
            print(f"{name}{side}: {len(lines)} documents of {len(texts)}, {near} near an exam", flush=True)


ROWS, BLOB = mix.rows, mix.blob

if __name__ == "__main__":
    main()
