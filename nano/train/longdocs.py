"""Long training documents for the stage with long rows: recall over many passages and over long chats, made from the corpus.

A document hides one to four short facts (a code word, a number, a place) among passages of the wiki or among unrelated chat turns
and asks for one of them, or for the title of the passage that says something. `probe` makes the needle test of the evaluation
from held-out passages with other names and other wordings.

usage: python3 -m train.longdocs DATA TOKENIZER OUT [--files 16] [--items 600] [--jobs N] [--min 900] [--max 3900]
"""
import argparse
import multiprocessing as mp
import os
import random

import numpy as np

from .chat import render
from .pack import encode, flatten, load_tokenizer
from .mix import open_or_closed
from .wording import syllables

THINGS = ["code", "password", "locker number", "ticket number", "room number", "badge number", "order number", "key", "booking number", "pin", "seat", "account number", "phone extension",
          "licence plate", "favourite word", "table number", "serial number", "bus line", "nickname", "shelf"]
OWNERS = ["Ada", "Bruno", "Chloe", "David", "Elena", "Farid", "Grace", "Hugo", "Ines", "Jonas", "Karin", "Leo", "Mona", "Nadia", "Oscar", "Paula",
          "the north gate", "the blue house", "the archive", "the old mill", "team four", "the harbour", "the library", "the kitchen"]
PROBE_OWNERS = ["Quentin", "Rosa", "Stefan", "Tara", "Umberto", "Vera", "the south tower", "the green barn", "team nine", "the observatory"]
WORDS = "apple river stone cloud tiger lemon copper violin candle desert window garden silver button marble feather ladder pepper anchor blanket".split()
STATE = ["The {t} of {o} is {v}.", "Note: the {t} of {o} is {v}.", "Remember that {o} has the {t} {v}.", "For {o}, the {t} is {v}.", "{o} uses the {t} {v}.",
         "{v} is the {t} of {o}.", "Do not forget: {t} of {o} = {v}", "The {t} that belongs to {o} is {v}.", "{o}: {t} {v}", "As {t}, {o} was given {v}.", "It says here that the {t} of {o} is {v}."]
ASK = ["What is the {t} of {o}?", "Which {t} does {o} have?", "Please tell me the {t} of {o}.", "I need the {t} of {o}.", "{t} of {o}?", "Find the {t} of {o}.", "What did the text say is the {t} of {o}?",
       "Look up the {t} of {o} above.", "Do you remember the {t} of {o}?", "Say the {t} of {o}.", "{o} has which {t}?"]
PROBE_STATE, PROBE_ASK = "By the way, the {t} of {o} is {v}.", "Can you give me the {t} of {o}?"
assert PROBE_STATE not in STATE and PROBE_ASK not in ASK and not set(OWNERS) & set(PROBE_OWNERS), "the needle test must stay unseen"


def facts(rng, n, owners):
    seen, out = set(), []
    while len(out) < n:
        t, o = rng.choice(THINGS[:10] if owners is PROBE_OWNERS else THINGS), rng.choice(owners)
        if (t, o) not in seen:
            seen.add((t, o))
            v = rng.choice(WORDS) + "-" + str(rng.randint(10, 99)) if t in ("password", "key", "favourite word", "nickname", "shelf") else str(rng.randint(100, 99999))
            out.append({"t": t, "o": o, "v": v})
    return out


def passages(ids, rng, tokens, tk, ends):
    """Random documents of a token file, about `tokens` in all, as text."""
    out, n = [], 0
    while n < tokens:
        i = rng.randrange(len(ends) - 1)
        d = ids[ends[i] + 1:ends[i + 1]]
        if 40 < len(d) < 700:
            out.append(tk.decode(d.tolist(), skip_special_tokens=False))
            n += len(d) + 4
    return out


def recall(rng, texts, fact_list, state, ask):
    """Passages with facts in between, then a question each: [(user turn, fact as stated, value)]."""
    parts = list(texts)
    stated = []
    for f in fact_list:
        s = rng.choice(state).format(**f)
        stated.append(s)
        parts.insert(rng.randrange(len(parts) + 1), s)
    turns = [(rng.choice(ask).format(**f), s, f["v"]) for f, s in zip(fact_list, stated)]
    return [("\n\n".join(parts) + "\n\n" + turns[0][0], *turns[0][1:]), *turns[1:]]


def long_chat(rng, turns, fact, state, ask):
    s = rng.choice(state).format(**fact)
    ms = []
    at = rng.randrange(len(turns))
    for i, (u, a) in enumerate(turns):
        if i == at:
            ms += [{"role": "user", "content": s}, {"role": "assistant", "content": rng.choice(["Noted.", "I will remember that.", "All right, noted."])}]
        ms += [{"role": "user", "content": u}, {"role": "assistant", "content": a}]
    return ms + [{"role": "user", "content": rng.choice(ask).format(**fact)}], s


def which_title(rng, texts):
    t = rng.choice([x for x in texts if "\n" in x] or texts)
    title, _, body = t.partition("\n")
    sentence = rng.choice([s for s in body.split(". ") if len(s) > 30] or [body[:80]])
    return "\n\n".join(texts) + f'\n\nWhich passage says: "{sentence.strip()}"? Give its title.', title


def chat_turns(ids, ends, rng, tk, tokens):
    out, n = [], 0
    while n < tokens:
        i = rng.randrange(len(ends) - 1)
        d = ids[ends[i] + 1:ends[i + 1]]
        t = tk.decode(d.tolist(), skip_special_tokens=False)
        p = t.split("<|im_start|>")
        if len(p) == 3 and p[1].startswith("user\n") and len(d) < 250:
            out.append((p[1][5:].replace("<|im_end|>", "").strip(), p[2].split("</think>")[-1].replace("<|im_end|>", "").strip()))
            n += len(d)
    return out


def make(job):
    seed, n, data, tokenizer, path, lo, hi = job
    rng, tk = random.Random(f"long {seed} {lo} {hi}"), load_tokenizer(tokenizer)
    owners = [o for o in OWNERS + sorted(syllables(rng, 300)) if o not in PROBE_OWNERS]
    files = {k: np.fromfile(f"{data}/{k}.bin", np.uint16) for k in ("wiki", "qa")}
    ends = {k: np.flatnonzero(v == 0) for k, v in files.items()}
    docs = []
    for _ in range(n):
        size, kind = rng.randint(lo, hi), rng.random()
        if kind < 0.55:
            ms = []
            for user, quote, v in recall(rng, passages(files["wiki"], rng, size, tk, ends["wiki"]), facts(rng, rng.randint(1, 4), owners), STATE, ASK):
                ms += [{"role": "user", "content": user}, {"role": "assistant", "content": v + "." if rng.random() < .5 else f"It is {v}.", "reasoning_content": quote}]
        elif kind < 0.8:
            f = facts(rng, 1, owners)[0]
            ms, quote = long_chat(rng, chat_turns(files["qa"], ends["qa"], rng, tk, size), f, STATE, ASK)
            ms.append({"role": "assistant", "content": f"It is {f['v']}.", "reasoning_content": quote if rng.random() < .7 else ""})
        else:
            user, title = which_title(rng, passages(files["wiki"], rng, size, tk, ends["wiki"]))
            ms = [{"role": "user", "content": user}, {"role": "assistant", "content": title}]
        docs.append(open_or_closed(render(ms), rng))
    a = flatten(encode(tk, docs))
    a.tofile(path + ".part")
    os.replace(path + ".part", path)
    return len(a)


def probe(tk, held_out, lengths, n, seed=5):
    """Needle test from held-out wiki text: yields (length, depth 0-1, prompt ids, value)."""
    rng, ends = random.Random(seed), np.flatnonzero(held_out == 0)
    for length in lengths:
        for i in range(n):
            depth = (i + 0.5) / n
            f = facts(rng, 1, PROBE_OWNERS)[0]
            q = PROBE_ASK.format(**f)
            texts = passages(held_out, rng, int(length * 1.1), tk, ends)
            fixed = len(tk.encode(PROBE_STATE.format(**f) + q, add_special_tokens=False).ids) + 30
            kept, used = [], fixed
            for t in texts:
                m = len(tk.encode(t, add_special_tokens=False).ids) + 2
                if used + m > length:
                    continue
                kept.append(t)
                used += m
            kept.insert(int(depth * len(kept)), PROBE_STATE.format(**f))
            text = render([{"role": "user", "content": "\n\n".join(kept) + "\n\n" + q}], generation="think")
            yield length, depth, tk.encode(text, add_special_tokens=False).ids, f["v"]


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("data")
    ap.add_argument("tokenizer")
    ap.add_argument("out")
    ap.add_argument("--files", type=int, default=16)
    ap.add_argument("--items", type=int, default=600)
    ap.add_argument("--jobs", type=int, default=os.cpu_count())
    ap.add_argument("--min", type=int, default=900)
    ap.add_argument("--max", type=int, default=3900)
    ap.add_argument("--name", default="long")
    a = ap.parse_args()
    os.makedirs(a.out, exist_ok=True)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    with mp.Pool(a.jobs) as pool:
        total = sum(pool.imap_unordered(make, [(s, a.items, a.data, a.tokenizer, f"{a.out}/{a.name}.{s:03d}.bin", a.min, a.max) for s in range(a.files)], chunksize=1))
    print(f"{a.name}: {a.files * a.items} documents, {total / 1e6:.1f} M tokens")


if __name__ == "__main__":
    main()
