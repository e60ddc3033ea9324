"""Training documents that ask for one entry among many: lists and tables of made-up entries, several questions each.

Why: recall from the context (needles, quoted sources, arguments of tools) is one skill, and a short list with many questions teaches
it more densely than a long text with one. Also writes the made-up tools of `toolbox.py`, the same skill in the form of calls.

usage: python3 -m train.lookup TOKENIZER OUT [--files 16] [--items 3000] [--jobs N]      (lookup.NNN.bin and toolbox.NNN.bin)
"""
import argparse
import multiprocessing as mp
import os
import random

from . import toolbox
from .chat import item_text, render
from .longdocs import PROBE_OWNERS
from .mix import open_or_closed
from .pack import encode, flatten, load_tokenizer
from .wording import syllables

# (entry in a list, title of the key, title of the value, questions for the value, questions for the key)
FORMS = [
    ("{k}: {v}", "name", "number", ["What is the number of {k}?", "{k}?", "Which number stands at {k}?", "Number of {k}?"], ["Who has the number {v}?", "{v} belongs to whom?"]),
    ("{k} - {v}", "word", "partner", ["Which word stands next to {k}?", "What goes with {k}?", "{k} goes with what?"], ["What stands before {v}?"]),
    ("| {k} | {v} |", "key", "value", ["Give the value of {k}.", "Look up {k}.", "What does the table say for {k}?"], ["Which key has the value {v}?"]),
    ("{k} lives in {v}.", "person", "town", ["Where does {k} live?", "In which town is {k}?", "Home of {k}?"], ["Who lives in {v}?"]),
    ("The price of the {k} is {v}.", "thing", "price", ["How much is the {k}?", "What does the {k} cost?", "Price of the {k}?"], ["What costs {v}?"]),
    ("[{k}] {v}", "label", "entry", ["What does [{k}] say?", "Read the entry [{k}].", "Quote [{k}]."], ["Which label has the entry {v}?"]),
    ("{k} works as {v}.", "person", "work", ["What is the work of {k}?", "What does {k} do?", "{k}: which work?"], ["Who works as {v}?"]),
    ('"{k}": "{v}"', "field", "value", ["What is the value of the field {k}?", "Read {k} from the object.", "{k} = ?"], ["Which field holds {v}?"]),
]


def token(rng, words, names):
    k = rng.random()
    if k < 0.3:
        return rng.choice(names)
    if k < 0.55:
        return rng.choice(words)
    if k < 0.7:
        return f"{rng.choice(words)} {rng.choice(words)}"
    if k < 0.85:
        return str(rng.randint(10, 99999))
    return rng.choice("ABCDEFGHKLMNPRSTUVWXZ") + rng.choice("ABCDEFGHKLMNPRSTUVWXZ") + "-" + str(rng.randint(10, 999))


def document(rng, words, names):
    """A list of 3-60 entries and one to six questions with answers."""
    line, kind, other, ask, ask_key = rng.choice(FORMS)
    n = rng.choice((3, 5, 8, 12, 20, 30, 60)) if rng.random() < 0.8 else rng.randint(3, 60)
    entries = {}
    while len(entries) < n:
        k = rng.choice(names) if kind in ("name", "person") else rng.choice(words) if kind != "label" else str(len(entries) + 1)
        entries.setdefault(k, token(rng, words, names))
    lines = {k: line.format(k=k, v=v) for k, v in entries.items()}
    values = list(entries.values())
    ms = []
    for i, k in enumerate(rng.sample(sorted(entries), min(n, rng.randint(1, 6)))):
        backwards = values.count(entries[k]) == 1 and rng.random() < 0.2
        q = rng.choice(ask_key if backwards else ask).format(k=k, v=entries[k])
        a = k if backwards else entries[k]
        if i == 0:
            text = (" " if line[-1] == "." and rng.random() < 0.6 else "\n").join(lines.values())
            q = f"{text}\n\n{q}" if rng.random() < 0.7 else f"{q}\n\n{text}"
        ms += [{"role": "user", "content": q}, {"role": "assistant", "content": a + "." if rng.random() < 0.4 else a}]
    if rng.random() < 0.6:
        ms[-1]["reasoning_content"] = lines[k]
    return open_or_closed(render(ms), rng)


def make(job):
    seed, n, tokenizer, out = job
    rng, tk = random.Random(f"lookup {seed}"), load_tokenizer(tokenizer)
    with open(os.path.join(os.path.dirname(__file__), "words.txt"), encoding="utf-8") as f:
        words = f.read().split()
    names = sorted(syllables(rng, 1500) - set(PROBE_OWNERS))
    tools = (toolbox.deliberate(toolbox.item(rng, words)) for _ in range(n))
    total = 0
    for name, docs in (("lookup", [document(rng, words, names) for _ in range(n)]),
                       ("toolbox", [item_text(t, "direct" if rng.random() < 0.2 else "think") for t in tools])):
        ids = flatten(encode(tk, docs))
        ids.tofile(f"{out}/{name}.{seed:03d}.bin.part")
        os.replace(f"{out}/{name}.{seed:03d}.bin.part", f"{out}/{name}.{seed:03d}.bin")
        total += len(ids)
    return total


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("tokenizer")
    ap.add_argument("out")
    ap.add_argument("--files", type=int, default=16)
    ap.add_argument("--items", type=int, default=3000)
    ap.add_argument("--jobs", type=int, default=os.cpu_count())
    a = ap.parse_args()
    os.makedirs(a.out, exist_ok=True)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    with mp.Pool(a.jobs) as pool:
        total = sum(pool.imap_unordered(make, [(s, a.items, a.tokenizer, a.out) for s in range(a.files)], chunksize=1))
    print(f"lookup and toolbox: {2 * a.files * a.items} documents, {total / 1e6:.1f} M tokens", flush=True)


if __name__ == "__main__":
    main()
