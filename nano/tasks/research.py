"""Research: answer from labelled sources with the right citation, compare, take dates, or say that it is not stated."""

from .apis import MONTHS
from .core import Pool, family
from .names import CITIES, INVENTED, PEOPLE, SURNAMES
from .reading import PERSON, PLACE, plural, question, sentences, subject, value
from .steps import add

FRAME = Pool("sources", ["Sources:\n{s}\n\nQuestion: {q}", "{s}\n\n{q} Cite the source.", "Answer from the sources and cite.\n{s}\n\n{q}", "Use only these sources:\n{s}\nQuestion: {q}"],
             ["Here are the sources.\n{s}\n\nTell me with a citation: {q}", "{q} Give the source number.\n\n{s}", "Read these notes and cite the right one.\n{s}\n{q}"])


def _labelled(parts):
    return "\n".join(f"[{i + 1}] {p}" for i, p in enumerate(parts))


def _others(n, k):
    return [f"[{i + 1}]" for i in range(n) if i != k]


def _subjects(c, n):
    out, seen = [], set()
    while len(out) < n:
        name, facts = subject(c)
        if name not in seen:
            seen.add(name)
            out.append((name, facts))
    return out


@family("research", "cite_fact", 4)
def cite_fact(c):
    subs = _subjects(c, c.int(2, 4))
    parts = [" ".join(sentences(c, n, f)) for n, f in subs]
    k = c.int(0, len(subs) - 1)
    n, facts = subs[k]
    row, v = c.choice(facts)
    tq, q = question(c, row, n)
    t, frame = c.phr(FRAME)
    said = row[5].format(n=n, v=v, vs=plural(v)).rstrip(".")
    return c.item(f"{t}.{tq}", frame.format(s=_labelled(parts), q=q), f"Source [{k + 1}] is about {n}: {row[1].format(n=n, v=v, vs=plural(v))}", f"{said} [{k + 1}].",
                  {"kind": "contains", "any": [f"{v} [{k + 1}]", f"{said} [{k + 1}]"], "none": _others(len(subs), k)}, "medium", max_tokens=128)


@family("research", "not_stated", 2)
def not_stated(c):
    subs = _subjects(c, c.int(2, 4))
    parts = [" ".join(sentences(c, n, f)) for n, f in subs]
    n, facts = c.choice(subs)
    if c.chance(0.5):
        rows = PERSON if facts[0][0] in PERSON else PLACE
        row = c.choice([r for r in rows if r[0] not in {f[0][0] for f in facts}])
        who = n
    else:
        person = c.chance(0.5)
        row = c.choice(PERSON if person else PLACE)
        who = f"{c.of(PEOPLE)} {c.of(SURNAMES)}" if person else c.of(INVENTED)
        if who in {s[0] for s in subs}:
            who += " Minor"
    tq, q = question(c, row, who)
    t, frame = c.phr(FRAME)
    think = f"No source says this of {who}."
    return c.item(f"{t}.none.{tq}", frame.format(s=_labelled(parts), q=q), think, "The sources do not say.", {"kind": "contains", "any": ["do not say", "not stated", "does not say"]}, "medium", max_tokens=64)


CMP = Pool("cite_compare", ["Which {k}, {a} or {b}?", "Of {a} and {b}, which {k}?", "{a} or {b}: which {k}?"], ["Say which {k}: {a} or {b}.", "Between {a} and {b}, which {k}?", "Name the one that {k}, {a} or {b}."])


@family("research", "compare_sources", 2)
def compare_sources(c):
    """Two numbers stand in two sources; the answer cites both in order of the question."""
    key = c.choice(("people", "founded"))
    row = next(r for r in PLACE if r[0] == key)
    n = c.int(2, 4)
    names = c.some(INVENTED, n)
    vals = []
    while len(vals) < n:
        v = value(c, key)
        if v not in vals:
            vals.append(v)
    parts = [row[1 + c.int(0, 1)].format(n=x, v=v) for x, v in zip(names, vals)]
    i, j = c.sample(range(n), 2)
    more = c.chance(0.5)
    k = (("has more inhabitants" if more else "has fewer inhabitants") if key == "people" else ("was founded later" if more else "was founded earlier"))
    win = max((i, j), key=lambda x: int(vals[x])) if more else min((i, j), key=lambda x: int(vals[x]))
    t, ask = c.phr(CMP)
    tf, frame = c.phr(FRAME)
    think = f"[{i + 1}] {names[i]}: {vals[i]}. [{j + 1}] {names[j]}: {vals[j]}. The {'larger' if more else 'smaller'} is {vals[win]}."
    return c.item(f"{tf}.{t}.{key}", frame.format(s=_labelled(parts), q=ask.format(k=k, a=names[i], b=names[j])), think, f"{names[win]} [{win + 1}].",
                  {"kind": "contains", "any": [f"{names[win]} [{win + 1}]"]}, "hard", max_tokens=128)


EVENTS = ["the contract was signed", "the bridge was opened", "the ship arrived", "the law was passed", "the school was closed", "the team won the cup", "the fire broke out", "the prize was awarded", "the first train ran", "the dam was finished",
          "the paper was published", "the vote took place", "the mine was shut", "the tunnel was reached", "the satellite was launched", "the museum was robbed"]
DATE = Pool("cite_date", ["On what date was it that {e}?", "When was it that {e}?", "Give the date on which {e}."], ["Which day was it when {e}?", "State the date when {e}.", "The day that {e}: which date?"])
DATE_FRAME = ["On {d} {e} in {p}.", "In {p}, {e} on {d}.", "It was on {d} that {e} in {p}."]


@family("research", "cite_date", 2)
def cite_date(c):
    n = c.int(2, 4)
    evs = c.sample(EVENTS, n)
    dates = [c.draw(lambda: (lambda x: (f"cd{x}", x))(f"{c.int(1, 28)} {c.choice(MONTHS)} {c.int(1850, 2024)}")) for _ in evs]
    places = c.some(CITIES, n)
    parts = [c.choice(DATE_FRAME).format(d=d, e=e, p=p) for d, e, p in zip(dates, evs, places)]
    k = c.int(0, n - 1)
    t, ask = c.phr(DATE)
    tf, frame = c.phr(FRAME)
    return c.item(f"{tf}.{t}", frame.format(s=_labelled(parts), q=ask.format(e=f"{evs[k]} in {places[k]}")), f"Source [{k + 1}] says: {parts[k]}", f"{dates[k]} [{k + 1}].",
                  {"kind": "contains", "any": [f"{dates[k]} [{k + 1}]"], "none": _others(n, k)}, "medium", max_tokens=128)


WHICH = Pool("which_source", ["Which source is about {n}?", "In which source do I find {n}?", "Give the number of the source on {n}."], ["Where is {n} treated? Source number.", "{n} appears in which source?", "Name the source that deals with {n}."])


@family("research", "which_source", 1)
def which_source(c):
    subs = _subjects(c, c.int(3, 5))
    parts = [" ".join(sentences(c, n, f[:2])) for n, f in subs]
    k = c.int(0, len(subs) - 1)
    t, ask = c.phr(WHICH)
    return c.item(t, _labelled(parts) + "\n\n" + ask.format(n=subs[k][0]), "", f"[{k + 1}]", {"kind": "contains", "any": [f"[{k + 1}]", str(k + 1)], "none": _others(len(subs), k)}, "easy", max_tokens=48)


SUM = Pool("cite_sum", ["How many people live in {a} and {b} together?", "What is the joint population of {a} and {b}?", "Add the inhabitants of {a} and {b}."], ["Taken together, how many live in {a} and {b}?", "The sum of the people of {a} and {b}?", "Both {a} and {b}: how many inhabitants in all?"])


@family("research", "sum_sources", 1.2)
def sum_sources(c):
    row = PLACE[1]
    n = c.int(2, 4)
    names = c.some(INVENTED, n)
    vals = [c.draw(lambda: (lambda x: (f"ss{x}", x))(c.int(100, 999))) for _ in names]
    parts = [row[1 + c.int(0, 1)].format(n=x, v=v) for x, v in zip(names, vals)]
    i, j = c.sample(range(n), 2)
    v, s = add(vals[i], vals[j])
    t, ask = c.phr(SUM)
    tf, frame = c.phr(FRAME)
    cite = f"[{i + 1}] [{j + 1}]"
    return c.item(f"{tf}.{t}", frame.format(s=_labelled(parts), q=ask.format(a=names[i], b=names[j])), f"[{i + 1}] {names[i]}: {vals[i]}. [{j + 1}] {names[j]}: {vals[j]}.\n{s}", f"{v} {cite}.",
                  {"kind": "contains", "any": [f"{v} {cite}", f"{v} [{j + 1}] [{i + 1}]"]}, "hard", max_tokens=192)


LATEST = Pool("conflict", ["What is the newest figure for the population of {a}?", "According to the latest source, how many people live in {a}?", "Use the most recent source: how many inhabitants has {a}?"],
              ["Which population of {a} is the most recent?", "Give the latest count of people in {a}.", "How many people live in {a} by the newest source?"])


@family("research", "latest_source", 1.2)
def latest_source(c):
    """The sources disagree; the one with the latest year counts."""
    a = c.of(INVENTED)
    n = c.int(2, 4)
    years = c.sample(range(1990, 2025), n)
    vals = [c.draw(lambda: (lambda x: (f"la{x}", x))(c.int(210, 98000))) for _ in years]
    parts = [c.choice(("In {y}, {a} had {v} inhabitants.", "The count of {y} gives {a} {v} inhabitants.")).format(y=y, a=a, v=v) for y, v in zip(years, vals)]
    k = years.index(max(years))
    t, ask = c.phr(LATEST)
    tf, frame = c.phr(FRAME)
    think = "Years: " + ", ".join(f"[{i + 1}] {y}" for i, y in enumerate(years)) + f". The latest is {years[k]}, so {vals[k]}."
    return c.item(f"{tf}.{t}", frame.format(s=_labelled(parts), q=ask.format(a=a)), think, f"{vals[k]} [{k + 1}].", {"kind": "contains", "any": [f"{vals[k]} [{k + 1}]"], "none": _others(n, k)}, "medium", max_tokens=128)
