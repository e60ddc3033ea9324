"""Pairs of texts that belong together, for training nano-embed: question and answer, title and paragraph, word and definition,
neighbouring passages of one document, two questions of one family. Share-alike sets take no part.

A pair is held out by the hash of its first text, so that the same corpus always gives the same halves.
"""
import hashlib
import random
import re

from tasks import generate
from train import mix

HELD_OUT = 0.02
WORDS = 60              # of a text that are read
PASSAGES = 25_000       # pairs of neighbouring passages from each of the four rendered texts
FAMILY_ITEMS = 30_000


def share(text):
    """A number in [0, 1) that depends on the text alone."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "big") / 2 ** 32


def short(text, words=WORDS):
    return " ".join(str(text).split()[:words])


def answers():
    for r in mix.rows("medquad"):
        yield "medquad", r["q"], r["a"]
    for r in mix.rows("gsm8k", "train.jsonl"):
        yield "gsm8k", r["question"], r["answer"]
    for r in mix.rows("mbpp", "mbpp.jsonl"):
        if not 11 <= r["task_id"] <= 510:
            yield "mbpp", r["text"], r["code"]


def names():
    for r in mix.rows("wordnet"):
        yield "wordnet", " ".join(r["members"]).replace("_", " "), r["def"]
    for r in mix.rows("mitre-attack-capec"):
        if r.get("name") and r.get("description"):
            yield "mitre", r["name"], r["description"]
    for r in mix.rows("cisa-kev"):
        yield "cisa-kev", r["vulnerabilityName"], r["shortDescription"]
    for r in mix.rows("free-exercise-db"):
        yield "exercises", r["name"], " ".join(r["instructions"])
    for r in mix.rows("tldr-pages"):
        said = re.findall(r"^> ([^<\n]+)", r["md"], re.M)
        if r["lang"] == "en" and said:
            yield "tldr", said[0], " ".join(re.findall(r"^- (.+)|^`(.+)`", r["md"], re.M)[0]) + " " + r["page"]


def passages(texts, rng):
    """Two neighbouring passages of one document."""
    for table in ("kine", "code", "cyber", "general"):
        documents = (d.split() for d in open(f"{texts}/{table}.txt", encoding="utf-8").read().split("\0") if len(d) > 300)
        documents = [words for words in documents if len(words) >= 40]
        for _ in range(PASSAGES):
            words = rng.choice(documents)
            length = rng.randint(12, min(WORDS, len(words) // 2))
            at = rng.randint(0, len(words) - 2 * length)
            yield "passages", " ".join(words[at:at + length]), " ".join(words[at + length:at + 2 * length])


def families(rng):
    """Two questions of one kind in different words, with their family."""
    by = {}
    for item in generate("train", 77, FAMILY_ITEMS, None):
        by.setdefault(item["family"], []).append(question(item))
    for family, asked in by.items():
        rng.shuffle(asked)
        for a, b in zip(asked[::2], asked[1::2]):
            yield "family:" + family, a, b


def question(item):
    return [m["content"] for m in item["messages"] if m["role"] == "user"][-1]


def pairs(corpus, texts):
    """(set, text, text), each once, in a fixed order."""
    mix.ROOT = corpus
    rng, seen = random.Random("nano-embed"), set()
    for source in (answers(), names(), passages(texts, rng), families(rng)):
        for name, a, b in source:
            a, b = short(a), short(b)
            if len(a) > 3 and len(b) > 3 and a != b and (a, b) not in seen:
                seen.add((a, b))
                yield name, a, b
