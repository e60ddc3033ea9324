"""Reading: short made-up passages about made-up people and places; one question that the text answers, or does not."""

from .core import SPLITS, Pool, family
from .names import CITIES, INVENTED, PEOPLE, SURNAMES, THINGS

JOBS = "baker carpenter teacher nurse painter pilot farmer engineer librarian plumber lawyer singer gardener tailor chemist dentist fisher florist jeweller judge mason mechanic miner potter sailor smith surgeon weaver".split()
LANDMARKS = "bridge tower museum library castle harbour market stadium theatre garden station school mill chapel lighthouse fountain observatory aqueduct".split()
PERSON = [
    ("job", "{n} works as a {v}.", "{n} is a {v} by trade.", ["What is the job of {n}?", "What does {n} do for a living?"], ["As what does {n} work?", "Name the trade of {n}.", "Which profession has {n}?"], "{n} is a {v}."),
    ("city", "{n} lives in {v}.", "The home of {n} is in {v}.", ["Where does {n} live?", "In which city does {n} live?"], ["Which city is home to {n}?", "Name the city of {n}.", "{n} has a home in what city?"], "{n} lives in {v}."),
    ("born", "{n} was born in {v}.", "The year of birth of {n} is {v}.", ["When was {n} born?", "In which year was {n} born?"], ["What is the birth year of {n}?", "Which year saw {n} born?", "Give the year of birth of {n}."], "{n} was born in {v}."),
    ("collects", "{n} collects old {vs}.", "In the evening {n} looks after a collection of {vs}.", ["What does {n} collect?", "What are the things {n} collects?"], ["Which objects does {n} collect?", "The collection of {n} holds what?", "Say what {n} collects."], "{n} collects {vs}."),
    ("children", "{n} has {v} children.", "There are {v} children in the family of {n}.", ["How many children does {n} have?", "What is the number of children of {n}?"], ["Count the children of {n}.", "{n} is the parent of how many children?", "Give the number of children {n} has."], "{n} has {v} children."),
]
PLACE = [
    ("founded", "{n} was founded in {v}.", "The first houses of {n} were built in {v}.", ["When was {n} founded?", "In which year was {n} founded?"], ["What is the founding year of {n}?", "How long ago, which year, did {n} begin?", "Give the year {n} was founded."], "{n} was founded in {v}."),
    ("people", "{n} has {v} inhabitants.", "About {v} people live in {n}.", ["How many people live in {n}?", "What is the population of {n}?"], ["How many inhabitants has {n}?", "Give the population of {n}.", "Count the people of {n}."], "{n} has {v} inhabitants."),
    ("landmark", "{n} is known for its {v}.", "Visitors come to {n} to see the {v}.", ["What is {n} known for?", "Why do visitors come to {n}?"], ["For what is {n} famous?", "What do people go to see in {n}?", "Name the sight of {n}."], "{n} is known for its {v}."),
    ("river", "The river {v} flows through {n}.", "{n} lies on the river {v}.", ["Which river flows through {n}?", "On which river is {n}?"], ["Name the river of {n}.", "What river does {n} lie on?", "Which water passes {n}?"], "The river {v} flows through {n}."),
    ("mayor", "The mayor of {n} is {v}.", "{v} was elected mayor of {n}.", ["Who is the mayor of {n}?", "What is the name of the mayor of {n}?"], ["Who leads {n} as mayor?", "Name the mayor of {n}.", "Which person is mayor in {n}?"], "The mayor of {n} is {v}."),
]


def value(c, key):
    if key == "job":
        return c.of(JOBS)
    if key == "city":
        return c.of(CITIES)
    if key in ("born", "founded"):
        return str(c.draw(lambda: (lambda y: (f"yr{y}", y))(c.int(1930, 2005) if key == "born" else c.int(900, 1950))))
    if key == "collects":
        return c.of(THINGS)
    if key == "children":
        return str(c.int(2, 9))
    if key == "people":
        return str(c.draw(lambda: (lambda y: (f"pop{y}", y))(c.int(210, 98000))))
    if key == "landmark":
        return c.of(LANDMARKS)
    if key == "river":
        return c.of(INVENTED)
    return f"{c.of(PEOPLE)} {c.of(SURNAMES)}"


def subject(c):
    """(name, facts) of a person or a place; facts are rows of PERSON or PLACE with a value."""
    if c.chance(0.5):
        n, rows = f"{c.of(PEOPLE)} {c.of(SURNAMES)}", PERSON
    else:
        n, rows = c.of(INVENTED), PLACE
    return n, [(r, value(c, r[0])) for r in c.sample(rows, c.int(3, 4))]


def sentences(c, n, facts):
    return [(r[1] if c.chance(0.6) else r[2]).format(n=n, v=v, vs=plural(v)) for r, v in facts]


def plural(word):
    """The regular English plural."""
    if word.endswith("y") and word[-2:-1] not in "aeou":
        return word[:-1] + "ies"
    return word + ("es" if word.endswith(("s", "sh", "ch", "x")) else "s")


def question(c, row, n):
    """(template id, text) of a question on one fact in this split's wording."""
    if c.train:
        i = c.int(0, len(row[3]) - 1)
        return f"{row[0]}.t{i}", row[3][i].format(n=n)
    k = SPLITS[1:].index(c.split)
    return f"{row[0]}.h{k}", row[4][k].format(n=n)


FRAME = Pool("read", ["{p}\n\n{q}", "Read the text and answer.\n\n{p}\n\nQuestion: {q}", "Text: {p}\nQuestion: {q}", "{q}\n\n{p}", "Passage:\n{p}\n\n{q}"],
             ["Here is a passage.\n{p}\nNow answer: {q}", "Use the text below to answer: {q}\n---\n{p}", "Given: {p}\nAsked: {q}"])


@family("chat", "reading", 2.5)
def reading(c):
    subjects = [subject(c) for _ in range(c.int(1, 3))]
    text = []
    for n, facts in subjects:
        text.append(" ".join(sentences(c, n, facts)))
    n, facts = c.choice(subjects)
    row, v = c.choice(facts)
    tq, q = question(c, row, n)
    t, frame = c.phr(FRAME)
    line = row[1].format(n=n, v=v, vs=plural(v))
    return c.item(f"{t}.{tq}", frame.format(p=" ".join(text), q=q), f"The text says: {line}", row[5].format(n=n, v=v, vs=plural(v)), {"kind": "contains", "any": [v, plural(v)] if row[0] == "collects" else [v]},
                  "easy" if len(subjects) == 1 else "medium", max_tokens=96)


@family("chat", "reading_missing", 1)
def reading_missing(c):
    n, facts = subject(c)
    rows = PERSON if facts[0][0] in PERSON else PLACE
    absent = [r for r in rows if r[0] not in {f[0][0] for f in facts}]
    tq, q = question(c, c.choice(absent), n)
    t, frame = c.phr(FRAME)
    return c.item(f"{t}.missing.{tq}", frame.format(p=" ".join(sentences(c, n, facts)), q=q), "The text does not say this.", "The text does not say.",
                  {"kind": "contains", "any": ["does not say", "not stated", "not say"]}, "medium", max_tokens=64)


SUMMARY = Pool("lead", ["Summarise in one sentence:\n{p}", "Give a one-sentence summary.\n{p}", "What is this text about? One sentence.\n{p}", "Sum up the text with its main sentence:\n{p}"],
               ["Shorten this to one sentence:\n{p}", "{p}\nIn one sentence, please.", "Tell me the main point of this in one sentence:\n{p}"])


@family("chat", "summary", 1)
def summary(c):
    """The lead sentence says the whole; the others give details."""
    n, facts = subject(c)
    person = facts[0][0] in PERSON
    year, thing, city = value(c, "founded"), c.of(LANDMARKS), c.of(CITIES)
    lead = (f"{n} built the {thing} of {city} in {year}." if person else f"{n} is a town near {city} with an old {thing}.")
    rest = sentences(c, n, facts[:3])
    t, ask = c.phr(SUMMARY)
    return c.item(t, ask.format(p=" ".join([lead, *rest])), "The first sentence says the most.", lead, {"kind": "exact", "value": lead}, "medium", max_tokens=96)
