"""Training documents whose answer stands in the prompt: one note, passage, tool result or example among others that look alike.

What they teach is copying by content: find the place that is about what was asked, then write what stands there. The stages are
files of their own, so that a plan can mix them: `pairs` (lists of random keys and values, many keys asked in one reply), `notes`
(2 to 8 facts in sentences) and `evidence` (1 to 24 facts in the forms that the daemon shows). About a quarter of the questions
has no answer there, and the reply says so. In `aside` the evidence has nothing to do with a task that needs none.

The value follows a space in every reply ("It is Torvale."), as it does where it stands: without it the pieces would be others and
there would be nothing to copy.

usage: python3 -m train.evidence TOKENIZER OUT [--files 16] [--items 4000] [--jobs N] [--stages pairs,notes,evidence,aside]
"""
import argparse
import json
import os
import random

from .chat import NO_THOUGHT, NO_THOUGHT_SPLIT, item_text, render
from .facts import FIRST, WORDS, board, entity, fact, name, value

REFUSED = 0.23
LEAD = "Answer from this note if it answers the question."          # as in src/lessons/note.rs
LEADS = [LEAD] * 6 + ["", "Notes:", "From my notebook:", "What I was told before:", "Use the notes if they help.", "Here is what I noted before.", "Some notes first.", "These notes may answer the question."]
PASSAGES = ["Sources:\n{s}\n\nQuestion: {q}", "{s}\n\n{q}", "Answer from the sources and cite.\n{s}\n\n{q}", "{q}\n\nSources:\n{s}", "Use only these passages:\n{s}\n\n{q}", "Documents:\n{s}\n\n{q} Cite the source.", "These passages were found:\n{s}\n\nPlease answer: {q}",
            "I searched and got this.\n\n{s}\n\n{q}", "<documents>\n{s}\n</documents>\n\n{q}", "{s}\n---\n{q}", "Search results:\n{s}\nAsked by a user: {q}", "Read this first.\n{s}\n\nThen tell me: {q}", "Q: {q}\n\n{s}"]
PLAIN = ["{s}\n\n{q}", "Read the text and answer.\n\n{s}\n\nQuestion: {q}", "{q}\n\n{s}", "Text: {s}\nQuestion: {q}", "Context:\n{s}\n\n{q}"]
SYSTEMS = ["", "", "", "You are a helpful assistant.", "Answer briefly.", "You are nano, a small assistant.", "Use the notes."]
MORE = ["It was written down on Monday.", "This was checked twice.", "Nobody has changed it since.", "The list is kept up to date.", "That is all we know.", "More will follow soon.", "The old entry is no longer valid.",
        "It was confirmed by phone.", "The office knows about it.", "There is nothing else to say about it."]
TOOLS = ["search", "search_documents", "recall", "lookup", "find_notes", "search_memory", "query_records", "get_passages", "retrieve", "web_search"]
ABOUT = ["Search what is stored.", "Find passages.", "Look for notes about something.", "Returns the entries that fit.", "Searches the files of the user.", "Get facts.", "Recall what was said before.", "Searches the web."]
PARAMS = "query q text question words topic about keywords name search what term".split()
TEXT = "text content snippet passage body note entry value summary line data".split()
EXTRA = "id title source file page score date url path rank section".split()
NOTED = ["Noted.", "All right.", "I will remember that.", "Thank you, noted."]
SAID = ["It is {v}."] * 6 + ["{v}", "The answer is {v}."]
SAYS = ["{v}.", "It was {v}.", "This is {v}.", "I have {v} here.", "{v}, as far as I know.", "Here you are: {v}", "It should be {v}.", "Answer: {v}", "You want {v}.", "I would say {v}."]
FORMS = ("note", "note", "note", "passages", "passages", "tool", "tool", "tool", "examples", "examples", "examples", "system", "plain", "told")
NOTHING = {"note": "The notes do not say.", "system": "The notes do not say.", "passages": "The sources do not say.", "tool": "The results do not say.", "examples": "I do not know that.",
           "plain": "The text does not say.", "told": "You did not tell me that."}


def style(rng):
    """How an exchange says its value: often in words that stand nowhere else, so that they too must be copied."""
    k = rng.random()
    if k < 0.45:
        return rng.choice(SAID + SAYS)
    some = lambda n: " ".join(rng.choice(WORDS) for _ in range(rng.randint(0, n)))
    s = " ".join(x for x in (some(3), "{v}", some(2) if k > 0.7 else "") if x) + rng.choice((".", ".", "", "!"))
    return s if s[0] == "{" else s[0].upper() + s[1:]


def passage(rng, f, alone=False):
    """A fact in one to three sentences."""
    s = [f.state(rng)]
    for _ in range(rng.choice((0, 0, 1, 2)) if not alone else 0):
        s.insert(rng.randrange(len(s) + 1), rng.choice(MORE))
    return " ".join(x if x[-1] in ".?!" else x + "." for x in s)


def schema(rng, tool, p):
    return {"type": "function", "function": {"name": tool, "description": rng.choice(ABOUT), "parameters": {
        "type": "object", "properties": {p: {"type": "string", "description": rng.choice(("What to look for", "Words", "The question", f"The {p}"))}}, "required": [p]}}}


def record(rng, i, f, text, extra):
    """One result as an object, with some of the fields that results have."""
    fill = {"id": i + 1, "title": f.e, "source": f"{rng.choice(WORDS)}.{rng.choice(('md', 'pdf', 'txt'))}", "file": f"{rng.choice(WORDS)} {i + 1}", "page": rng.randint(1, 90), "score": round(rng.random(), 2),
            "date": f"2026-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}", "url": f"https://{rng.choice(WORDS)}.example/{i}", "path": f"/{rng.choice(WORDS)}/{rng.choice(WORDS)}", "rank": i + 1, "section": rng.choice(WORDS)}
    return {**{k: fill[k] for k in extra}, text: passage(rng, f)}


def results(rng, facts):
    """The text of a tool's result that holds the facts, in one of the usual shapes."""
    k = rng.random()
    if k < 0.6:
        text, extra = rng.choice([*TEXT, rng.choice(WORDS)]), rng.sample(EXTRA, rng.choice((0, 0, 1, 1, 2, 3)))
        found = [record(rng, i, f, text, extra) for i, f in enumerate(facts)]
        if k < 0.3:
            return json.dumps(found, ensure_ascii=False)
        if k < 0.5:
            return json.dumps({rng.choice(("results", "hits", "items", "documents", rng.choice(WORDS))): found}, ensure_ascii=False)
        return "\n".join(json.dumps(x, ensure_ascii=False) for x in found)
    if k < 0.75:
        return "\n".join(f"[{i + 1}] {passage(rng, f)}" for i, f in enumerate(facts))
    if k < 0.88:
        return rng.choice(("\n", "\n\n", " ")).join(passage(rng, f) for f in facts)
    return "\n\n".join(f"{f.e}\n{passage(rng, f)}" for f in facts)


def conversation(rng, form, facts, question):
    """(messages up to the question, tools, the replies that copy each fact) of `facts` shown in a form."""
    system = rng.choice(SYSTEMS)
    ms = [{"role": "system", "content": system}] if system else []
    said, tools = rng.choice(SAID), None
    end = [said.format(v=f.v) for f in facts]
    u = lambda c: {"role": "user", "content": c}
    a = lambda c, **k: {"role": "assistant", "content": c, **k}
    if form == "note":
        lines = []
        for f in facts:
            k = rng.random()
            lines.append("Note: " + (f"{f.ask(rng, question)} {rng.choice((f.v, f.v, 'It is ' + f.v + '.'))}" if k < 0.75 else f.state(rng)))
        ms.append(u(f"{rng.choice(LEADS)}\n" + "\n".join(lines) + f"\n\n{question}"))
    elif form == "system":
        mark = rng.choice(("- ", "Note: ", "", "* "))
        ms = [{"role": "system", "content": (system + "\n\n" if system else "") + rng.choice(("Notes:\n", "What you know:\n", "")) + "\n".join(mark + f.state(rng) for f in facts)}, u(question)]
    elif form == "passages":
        ms.append(u(rng.choice(PASSAGES).format(s="\n".join(f"[{i + 1}] {passage(rng, f)}" for i, f in enumerate(facts)), q=question)))
        end = [f"{s[:-1]} [{i + 1}]." if s[-1] == "." and said[-1] == "." else f"{s} [{i + 1}]" for i, s in enumerate(end)]
    elif form == "plain":
        ms.append(u(rng.choice(PLAIN).format(s=rng.choice((" ", "\n", "\n\n")).join(passage(rng, f) for f in facts), q=question)))
    elif form == "tool":
        t, p = rng.choice([*TOOLS, f"{rng.choice(WORDS)}_{rng.choice(WORDS)}"]), rng.choice([*PARAMS, rng.choice(WORDS)])
        tools = [schema(rng, t, p)] if rng.random() < 0.6 else None
        if tools and rng.random() < 0.2:
            tools.insert(rng.randrange(2), schema(rng, rng.choice(WORDS), rng.choice(WORDS)))
        said_of = rng.choice((question, question, facts[0].e, rng.choice(WORDS)))
        ms += [u(question), a("", tool_calls=[{"name": t, "arguments": {p: said_of}}])]
        parts = [facts] if rng.random() < 0.8 else [facts[:1], facts[1:]]
        ms += [{"role": "tool", "content": results(rng, x)} for x in parts if x]
    elif form == "examples":
        one = style(rng) if rng.random() < 0.6 else None
        end = [(one or style(rng)).format(v=f.v) for f in facts]
        for f, s in zip(facts, end):
            ms += [u(f.ask(rng, question)), a(s)]
        ms.append(u(question))
    else:
        for f in facts:
            ms += [u(f.state(rng)), a(rng.choice(NOTED))]
        ms.append(u(question))
    return ms, tools, end


def document(rng, sizes, forms=FORMS):
    """Facts in a form and one to five questions; each reply copies a value or says that it is not there."""
    n, form = rng.choice(sizes), rng.choice(forms)
    told, absent = board(rng, "train", n, rng.choice((0.2, 0.5, 0.8)), (0.5, 0.64))
    wanted = rng.sample(range(n), min(n, rng.choice((1, 1, 2, 3, 5))))
    ms, tools, replies = [], None, []
    refused = 0.17 if form in ("examples", "tool") else REFUSED
    for k, i in enumerate(wanted):
        f = told[i] if rng.random() >= refused else rng.choice(absent)
        q = f.ask(rng)
        if k == 0:
            ms, tools, replies = conversation(rng, form, told, q)
        else:
            ms.append({"role": "user", "content": q})
        reply = replies[i] if f is told[i] else NOTHING[form]
        ms.append({"role": "assistant", "content": reply})
    return shown(rng, render(ms, tools))


def shown(rng, text):
    """The reply without a thought, as one that was left empty or as one that was switched off."""
    return text.replace(NO_THOUGHT, NO_THOUGHT_SPLIT) if rng.random() < 0.5 else text


def key(rng):
    k = rng.random()
    if k < 0.3:
        return rng.choice(WORDS)
    if k < 0.6:
        return name(rng, "train", rng.choice((1, 2, 2)))
    if k < 0.8:
        return f"{rng.choice(FIRST + WORDS)} {rng.choice(WORDS)}"
    return value(rng, "train", "c")


def pairs(rng):
    """A list of random keys and values, many keys asked at once: the densest form of copying by content."""
    n = rng.choice((2, 3, 4, 6, 8, 10, 12, 16, 20, 24))
    entries = {}
    while len(entries) < n:
        entries.setdefault(key(rng), value(rng, "train", rng.choice("ncwwpl")))
    join = rng.choice((": ", " = ", " is ", " - ", " -> ", " has "))
    text = rng.choice(("\n", "\n", ". ", "; ")).join(k + join + v for k, v in entries.items())
    if rng.random() < 0.12:                                   # plain copying
        ms = [{"role": "user", "content": rng.choice(("Repeat:\n", "Copy this:\n")) + text}, {"role": "assistant", "content": text}]
        return shown(rng, render(ms))
    missing = lambda: next(k for k in iter(lambda: key(rng), None) if k not in entries)
    pick = lambda m: [missing() if rng.random() < REFUSED / 2 else k for k in rng.sample(sorted(entries), min(n, m))]
    ms = []
    if rng.random() < 0.5:
        asked = pick(rng.choice((2, 4, 8, 16)))
        ms.append({"role": "user", "content": f"{text}\n\n{rng.choice(('Give the values of', 'Look up', 'Read out', 'Find'))}: {', '.join(asked)}"})
        ms.append({"role": "assistant", "content": "\n".join(k + join + entries.get(k, "not there") for k in asked)})
    else:
        for i, k in enumerate(pick(rng.choice((1, 3, 6, 10)))):
            q = rng.choice(("{k}?", "What is {k}?", "Value of {k}?", "What goes with {k}?")).format(k=k)
            ms += [{"role": "user", "content": f"{text}\n\n{q}" if i == 0 else q}, {"role": "assistant", "content": f"It is {entries[k]}." if k in entries else "It is not there."}]
    return shown(rng, render(ms))


def aside(rng, item):
    """A task that needs no evidence, with some in front: the reply is the task's own."""
    told, _ = board(rng, "train", rng.choice((1, 2, 3, 6)))
    ms, last = list(item["messages"]), item["messages"][-1]["content"]
    if rng.random() < 0.6:
        lines = "\n".join("Note: " + (f"{f.ask(rng)} {f.v}" if rng.random() < 0.75 else f.state(rng)) for f in told)
        ms[-1] = {"role": "user", "content": f"{rng.choice(LEADS)}\n{lines}\n\n{last}"}
    else:
        at = 1 if ms[0]["role"] == "system" else 0
        ms[at:at] = [m for f in told for m in ({"role": "user", "content": f.ask(rng)}, {"role": "assistant", "content": rng.choice(SAID).format(v=f.v)})]
    return {**item, "messages": ms}


def asides(rng, seed, n):
    import sys
    from .wording import extended_tasks, vary
    tasks = sys.modules["tasks"] if getattr(sys.modules.get("tasks"), "extended", False) else extended_tasks()
    for item in tasks.generate("train", f"aside {seed}", n):
        item = vary(item, rng, WORDS)
        if item["messages"][-1]["role"] == "user":
            yield item_text(aside(rng, item), "direct" if rng.random() < 0.15 else "think")


def stage(rng, which, n, seed=0):
    """`n` documents of a stage (`aside` leaves out the tasks that end in a tool's result)."""
    if which == "aside":
        return list(asides(rng, seed, n))
    make = {"pairs": lambda: pairs(rng), "notes": lambda: document(rng, (1, 2, 2, 3, 4, 5, 6, 8)), "evidence": lambda: document(rng, (1, 2, 4, 6, 6, 8, 10, 12, 16, 20, 20, 24))}[which]
    return [make() for _ in range(n)]


def make(job):
    from .pack import encode, flatten, load_tokenizer
    which, seed, n, tokenizer, out = job
    ids = flatten(encode(load_tokenizer(tokenizer), stage(random.Random(f"{which} {seed}"), which, n, seed)))
    path = f"{out}/{which}.{seed:03d}.bin"
    ids.tofile(path + ".part")
    os.replace(path + ".part", path)
    return len(ids)


def main():
    import multiprocessing as mp
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("tokenizer")
    ap.add_argument("out")
    ap.add_argument("--files", type=int, default=16)
    ap.add_argument("--items", type=int, default=4000)
    ap.add_argument("--first", type=int, default=0)
    ap.add_argument("--jobs", type=int, default=os.cpu_count())
    ap.add_argument("--stages", default="pairs,notes,evidence,aside")
    a = ap.parse_args()
    os.makedirs(a.out, exist_ok=True)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    for which in a.stages.split(","):
        with mp.Pool(a.jobs) as pool:
            total = sum(pool.imap_unordered(make, [(which, s, a.items, a.tokenizer, a.out) for s in range(a.first, a.first + a.files)], chunksize=1))
        print(f"{which}: {total / 1e6:.1f} M tokens", flush=True)


if __name__ == "__main__":
    main()
