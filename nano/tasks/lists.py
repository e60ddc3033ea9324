"""Lists, strings, sorting and counting."""

from .core import Pool, family
from .names import ANIMALS, CITIES, COLOURS, FRUIT, INVENTED, PEOPLE, THINGS, TOOLS
from .store import table

_POOLS = (PEOPLE, CITIES, FRUIT, ANIMALS, COLOURS, TOOLS, THINGS)

SPELL = sorted(set(THINGS) | {r[0] for r in table("words")})
MADE_UP = [w.lower() for w in INVENTED]


def spelled(c):
    """A word to spell: a real one, or one made of syllables, so that letters and not words are learnt."""
    return c.of(SPELL) if c.chance(0.6) else c.of(MADE_UP)


def _words(c, n, sep=None):
    """n different words; in exams from the wide pool of things, since small pools are too small to hold any out."""
    pool = c.choice(_POOLS) if c.train else THINGS
    n = min(n, 8)
    return c.some(pool, n)


def _draw_words(c, key, lo, hi):
    def make():
        ws = _words(c, c.int(lo, hi))
        return f"{key}:{' '.join(sorted(ws))}", ws
    return c.draw(make)


SORT = Pool("sort_words", ["Sort these words alphabetically: {s}", "Put in alphabetical order: {s}", "Arrange the words {s} from A to Z.", "Order alphabetically: {s}"],
            ["List these words in alphabetical order: {s}", "Sort from A to Z: {s}", "Which order do {s} have in a dictionary?"])


@family("code", "sort_words", 1.2)
def sort_words(c):
    ws = _draw_words(c, "sw", 3, 6)
    t, ask = c.phr(SORT)
    out = sorted(ws, key=str.lower)
    think = "Letters " + " ".join(w[0].lower() for w in ws) + ". In order: " + ", ".join(f"{w[0].lower()} {w}" for w in out) + "."
    return c.item(t, ask.format(s=", ".join(ws)), think, ", ".join(out), {"kind": "list", "value": out, "ordered": True}, "medium" if len(ws) > 4 else "easy")


SORTN = Pool("sort_numbers", ["Sort these numbers from smallest to largest: {s}", "Put {s} in ascending order.", "Arrange in increasing order: {s}", "Sort ascending: {s}"],
             ["Order from the lowest to the highest: {s}", "Write {s} in rising order.", "List these numbers from small to big: {s}"])
SORTD = Pool("sort_down", ["Sort these numbers from largest to smallest: {s}", "Put {s} in descending order.", "Arrange in decreasing order: {s}", "Sort descending: {s}"],
             ["Order from the highest to the lowest: {s}", "Write {s} in falling order.", "List these numbers from big to small: {s}"])


@family("code", "sort_numbers", 1.5)
def sort_numbers(c):
    down = c.chance(0.35)

    def make():
        hi = c.choice((20, 99, 999))
        xs = c.sample(range(1, hi), c.int(3, 7))
        return f"sn{sorted(xs)}", xs
    xs = c.draw(make)
    t, ask = c.phr(SORTD if down else SORTN)
    out, rest, lines = [], list(xs), []
    while len(rest) > 1:
        m = max(rest) if down else min(rest)
        rest.remove(m)
        out.append(m)
        lines.append(f"{'largest' if down else 'smallest'} {m}, left {' '.join(map(str, rest))}")
    out += rest
    v = [str(x) for x in out]
    return c.item(t, ask.format(s=", ".join(map(str, xs))), "\n".join(lines), ", ".join(v), {"kind": "list", "value": v, "ordered": True},
                  "easy" if len(xs) < 5 else "medium")


STAT = Pool("list_stat", ["What is the {w} of the list {s}?", "Find the {w} of {s}.", "Give the {w} of these numbers: {s}", "In the list {s}, what is the {w}?"],
            ["Name the {w} in {s}.", "For the numbers {s}, state the {w}.", "{s}: which is the {w}?"])


@family("code", "list_stat", 1.5)
def list_stat(c):
    w = c.choice(("maximum", "minimum", "sum", "length", "first element", "last element", "largest number", "smallest number", "range"))

    def make():
        xs = [c.int(1, 60) for _ in range(c.int(3, 7))]
        return f"ls{w}{xs}", xs
    xs = c.draw(make)
    t, ask = c.phr(STAT)
    if w == "sum":
        tot, lines = xs[0], []
        for x in xs[1:]:
            lines.append(f"{tot} + {x} = {tot + x}")
            tot += x
        v, think = tot, ". ".join(lines)
    elif w == "range":
        v, think = max(xs) - min(xs), f"maximum {max(xs)}, minimum {min(xs)}: {max(xs)} - {min(xs)} = {max(xs) - min(xs)}"
    elif w == "length":
        v, think = len(xs), "Counting: " + ", ".join(f"{i + 1} is {x}" for i, x in enumerate(xs))
    elif w in ("first element", "last element"):
        v, think = (xs[0] if w[0] == "f" else xs[-1]), ""
    else:
        up = w in ("maximum", "largest number")
        best, lines = xs[0], [f"start {xs[0]}"]
        for x in xs[1:]:
            best = max(best, x) if up else min(best, x)
            lines.append(f"{x}: {best}")
        v, think = best, ", ".join(lines)
    s = "[" + ", ".join(map(str, xs)) + "]" if c.chance(0.5) else ", ".join(map(str, xs))
    return c.number(t, ask.format(w=w, s=s), v, think, "medium" if w in ("sum", "range") else "easy")


NTH = Pool("nth", ["What is the {k} item of: {s}?", "In the list {s}, which is the {k}?", "Give the {k} word of {s}.", "Which word is {k} in: {s}?"],
           ["Name the {k} entry in: {s}", "Of the words {s}, say the {k} one.", "Look at {s}. Which is the {k}?"])
ORD = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")


@family("code", "nth_item", 1)
def nth_item(c):
    ws = _draw_words(c, "nth", 4, 7)
    i = c.int(0, len(ws) - 1)
    k = ORD[i] if i < len(ws) - 1 or c.chance(0.5) else "last"
    t, ask = c.phr(NTH)
    think = ", ".join(f"{j + 1} {w}" for j, w in enumerate(ws if k == "last" else ws[:i + 1])) + "."
    return c.item(t, ask.format(k=k, s=", ".join(ws)), think, ws[i], {"kind": "exact", "value": ws[i]})


COUNT = Pool("count_letter", ["How many times does the letter {l} appear in {w}?", "Count the letter {l} in the word {w}.", "How many {l}'s are in {w}?"],
             ["In {w}, how often does {l} occur?", "What is the number of {l}'s in {w}?", "How many letters {l} does {w} contain?"])


@family("code", "count_letter", 1)
def count_letter(c):
    w = spelled(c)
    l = c.choice(w) if c.chance(0.85) else c.choice("aeiostn")
    n, steps = 0, []
    for ch in w:
        n += ch == l
        steps.append(f"{ch} {n}" if ch == l else ch)
    t, ask = c.phr(COUNT)
    return c.number(t, ask.format(l=f'"{l}"' if c.chance(0.3) else l, w=f'"{w}"'), n, " ".join(steps), "medium")


LENGTH = Pool("word_length", ["How many letters are in the word {w}?", "How long is the word {w}?", "Count the letters of {w}.", "What is the length of the string {w}?"],
              ["What number of letters does {w} have?", "{w}: how many characters?", "Of how many letters is {w} made?"])


@family("code", "word_length", 1)
def word_length(c):
    w = spelled(c)
    t, ask = c.phr(LENGTH)
    return c.number(t, ask.format(w=f'"{w}"'), len(w), " ".join(f"{ch}{i + 1}" for i, ch in enumerate(w)))


REVERSE = Pool("reverse", ["Reverse the word {w}.", "Write {w} backwards.", "Spell {w} backwards.", "What is {w} reversed?"],
               ["Give {w} with its letters in reverse order.", "Turn the word {w} around.", "Read {w} from right to left."])


@family("code", "reverse_word", 1.5)
def reverse_word(c):
    w = spelled(c)
    t, ask = c.phr(REVERSE)
    v = w[::-1]
    return c.item(t, ask.format(w=f'"{w}"'), f"{' '.join(w)} becomes {' '.join(v)}", v, {"kind": "exact", "value": v}, "medium")


CASE = Pool("case", ["Write {w} in {k}.", "Convert {w} to {k}.", "Change {w} into {k}.", "{w} in {k}, please."],
            ["Put {w} into {k}.", "Give {w} in {k}.", "How is {w} written in {k}?"])


@family("code", "letter_case", 0.6)
def letter_case(c):
    w = f"{c.of(COLOURS)} {c.of(THINGS)}" if c.chance(0.5) else c.of(THINGS)
    up = c.chance(0.6)
    src = w if up else w.upper()
    v = src.upper() if up else src.lower()
    t, ask = c.phr(CASE)
    it = c.item(t, ask.format(w=f'"{src}"', k="capital letters" if up and c.chance(0.5) else ("upper case" if up else "lower case")), "", v, {"kind": "code", "value": v})
    return it


ACRONYM = Pool("acronym", ["What do the first letters of {s} spell?", "Take the first letter of each word: {s}", "Make an acronym of: {s}"],
               ["Join the initial letters of {s}.", "Which letters start the words {s}? Join them.", "Build the acronym for {s}."])


@family("code", "acronym", 0.8)
def acronym(c):
    ws = _draw_words(c, "acr", 3, 6)
    v = "".join(w[0] for w in ws).upper()
    t, ask = c.phr(ACRONYM)
    return c.item(t, ask.format(s=" ".join(ws)), ", ".join(f"{w} {w[0].upper()}" for w in ws), v, {"kind": "exact", "value": v})


FILTER = Pool("filter", ["Which of these numbers are {k}: {s}?", "From {s}, list the numbers that are {k}.", "Keep only the numbers that are {k}: {s}"],
              ["Pick the numbers that are {k} out of {s}.", "Of {s}, which ones are {k}?", "Select every number that is {k}: {s}"])


@family("code", "filter_numbers", 1.2)
def filter_numbers(c):
    kind = c.int(0, 3)

    def make():
        xs = c.sample(range(1, 99), c.int(4, 7))
        lim = c.int(20, 80)
        return f"fil{kind}{xs}", (xs, lim)
    for _ in range(50):
        xs, lim = c.draw(make)
        name, f = (("even", lambda x: x % 2 == 0), ("odd", lambda x: x % 2 == 1),
                   (f"greater than {lim}", lambda x: x > lim), (f"less than {lim}", lambda x: x < lim))[kind]
        out = [str(x) for x in xs if f(x)]
        if out:
            break
    t, ask = c.phr(FILTER)
    think = ", ".join(f"{x} {'yes' if f(x) else 'no'}" for x in xs)
    return c.item(t, ask.format(k=name, s=", ".join(map(str, xs))), think, ", ".join(out), {"kind": "list", "value": out, "ordered": True}, "medium")


DEDUP = Pool("dedup", ["Remove the duplicates from: {s}", "List each word once, in order: {s}", "Drop repeated words: {s}"],
             ["Give the distinct words of {s} in order.", "Without repeats, what is {s}?", "Keep the first of each word: {s}"])


@family("code", "dedup", 0.8)
def dedup(c):
    ws = _draw_words(c, "ded", 3, 5)
    full = ws + [c.choice(ws) for _ in range(c.int(1, 3))]
    c.shuffle(full)
    out = list(dict.fromkeys(full))
    seen, lines = set(), []
    for w in full:
        lines.append(f"{w} {'again' if w in seen else 'new'}")
        seen.add(w)
    t, ask = c.phr(DEDUP)
    return c.item(t, ask.format(s=", ".join(full)), ", ".join(lines), ", ".join(out), {"kind": "list", "value": out, "ordered": True}, "medium")


CONTAINS = Pool("longest", ["Which word is the {k}: {s}?", "What is the {k} word in {s}?", "Find the {k} word of {s}."],
                ["Name the {k} word among {s}.", "Of {s}, which is the {k}?", "Point out the {k} word: {s}"])


@family("code", "longest_word", 0.8)
def longest_word(c):
    k = c.choice(("longest", "shortest"))
    for _ in range(100):
        ws = _draw_words(c, "lon", 3, 5)
        ls = sorted(map(len, ws))
        if (ls[-1] != ls[-2]) if k == "longest" else (ls[0] != ls[1]):
            break
    else:
        ws = ["tie", "needle"] if k == "longest" else ["needle", "tie"]
    v = (max if k == "longest" else min)(ws, key=len)
    t, ask = c.phr(CONTAINS)
    return c.item(t, ask.format(k=k, s=", ".join(ws)), ", ".join(f"{w} {len(w)}" for w in ws), v, {"kind": "exact", "value": v}, "medium")
