"""Word problems: scenes times structures times wordings; a (scene, structure, wording) triple is a template."""

from . import steps
from .arithmetic import _line
from .core import _ENTITY_EDGE, bucket, family
from .names import PEOPLE

# one, many, container one, container many, gets, loses, makes (each fits "{N} ... n things")
SCENES = [
    ("apple", "apples", "basket", "baskets", "picks", "gives away", "picks"),
    ("book", "books", "shelf", "shelves", "buys", "lends out", "reads"),
    ("stamp", "stamps", "album", "albums", "finds", "sells", "collects"),
    ("cookie", "cookies", "tray", "trays", "bakes", "eats", "bakes"),
    ("marble", "marbles", "bag", "bags", "wins", "loses", "wins"),
    ("pencil", "pencils", "box", "boxes", "buys", "gives away", "sharpens"),
    ("flower", "flowers", "vase", "vases", "plants", "sells", "plants"),
    ("egg", "eggs", "carton", "cartons", "collects", "breaks", "collects"),
    ("card", "cards", "pack", "packs", "gets", "trades away", "draws"),
    ("brick", "bricks", "pallet", "pallets", "orders", "uses", "lays"),
    ("ticket", "tickets", "bundle", "bundles", "buys", "gives away", "sells"),
    ("shell", "shells", "bucket", "buckets", "finds", "throws back", "finds"),
    ("candle", "candles", "crate", "crates", "makes", "burns", "makes"),
    ("photo", "photos", "folder", "folders", "takes", "deletes", "takes"),
    ("toy car", "toy cars", "case", "cases", "receives", "gives away", "repairs"),
    ("orange", "oranges", "sack", "sacks", "buys", "squeezes", "peels"),
    ("letter", "letters", "pile", "piles", "receives", "throws out", "writes"),
    ("sticker", "stickers", "sheet", "sheets", "wins", "uses", "prints"),
    ("bottle", "bottles", "rack", "racks", "fills", "returns", "fills"),
    ("chair", "chairs", "row", "rows", "adds", "takes away", "paints"),
    ("coin", "coins", "jar", "jars", "saves", "spends", "saves"),
    ("tile", "tiles", "stack", "stacks", "orders", "breaks", "sets"),
    ("button", "buttons", "tin", "tins", "finds", "sews on", "sorts"),
    ("page", "pages", "notebook", "notebooks", "writes", "tears out", "writes"),
    ("lamp", "lamps", "carton", "cartons", "buys", "sells", "builds"),
    ("plate", "plates", "cupboard", "cupboards", "washes", "breaks", "washes"),
    ("ball", "balls", "net", "nets", "buys", "loses", "pumps up"),
    ("nail", "nails", "packet", "packets", "buys", "uses", "hammers in"),
]


def _s(a, b):
    return _line("+", a, b)


def _d(a, b):
    return _line("-", a, b)


def _m(a, b):
    return _line("*", a, b)


def _q(a, b):
    return steps.div(a, b)


def _two(first, second):
    """Two lines of thought one after the other."""
    return second[0], f"{first[1]}\n{second[1]}"


def _n(c, a, b):
    return c.int(a, b)


# name -> (level, numbers(c) -> tuple, solve(*numbers) -> (value, thought), wordings)
STRUCTURES = {
    "join": ("easy", lambda c: (_n(c, 5, 90), _n(c, 3, 60)), lambda a, b: _s(a, b), [
        "{N} has {0} {things}. {N} {gets} {1} more. How many {things} does {N} have now?",
        "There were {0} {things}. Then {N} {gets} {1} more {things}. How many {things} are there now?"]),
    "separate": ("easy", lambda c: (lambda a: (a, _n(c, 2, a - 1)))(_n(c, 8, 95)), lambda a, b: _d(a, b), [
        "{N} has {0} {things} and {loses} {1} of them. How many {things} are left?",
        "Out of {0} {things}, {N} {loses} {1}. How many {things} does {N} still have?"]),
    "more_than": ("easy", lambda c: (_n(c, 4, 80), _n(c, 2, 40)), lambda a, b: _s(a, b), [
        "{N} has {0} {things}. {M} has {1} more {things} than {N}. How many {things} does {M} have?",
        "{M} owns {1} {things} more than {N}, who owns {0}. How many does {M} own?"]),
    "fewer_than": ("easy", lambda c: (lambda a: (a, _n(c, 2, a - 2)))(_n(c, 10, 90)), lambda a, b: _d(a, b), [
        "{N} has {0} {things}. {M} has {1} fewer. How many {things} does {M} have?",
        "{M} has {1} {things} less than {N}. If {N} has {0}, how many does {M} have?"]),
    "groups": ("easy", lambda c: (_n(c, 3, 40), _n(c, 2, 12)), lambda a, b: _m(a, b), [
        "{N} has {0} {boxes} with {1} {things} in each. How many {things} is that?",
        "There are {1} {things} in every {box} and {N} has {0} {boxes}. How many {things} are there in all?"]),
    "share": ("easy", lambda c: (lambda k, q: (k * q, k))(_n(c, 2, 9), _n(c, 2, 40)), lambda a, b: _q(a, b), [
        "{N} shares {0} {things} equally among {1} friends. How many {things} does each friend get?",
        "{0} {things} are put into {1} {boxes} so that all have the same number. How many {things} are in each {box}?"]),
    "rate": ("easy", lambda c: (_n(c, 3, 40), _n(c, 3, 12)), lambda a, b: _m(a, b), [
        "{N} {makes} {0} {things} a day. How many {things} is that in {1} days?",
        "Every hour {N} {makes} {0} {things}. How many {things} after {1} hours?"]),
    "rate_days": ("medium", lambda c: (lambda k, q: (k * q, k))(_n(c, 3, 15), _n(c, 3, 30)), lambda a, b: _q(a, b), [
        "{N} {makes} {1} {things} a day. How many days does it take for {0} {things}?",
        "At {1} {things} an hour, how many hours does {N} need for {0} {things}?"]),
    "price": ("easy", lambda c: (_n(c, 2, 30), _n(c, 2, 12)), lambda a, b: _m(a, b), [
        "One {thing} costs ${0}. {N} buys {1}. How many dollars does {N} pay?",
        "{N} buys {1} {things} at ${0} each. What is the total in dollars?"]),
    "lost": ("easy", lambda c: (lambda a: (a, _n(c, 2, a - 2)))(_n(c, 10, 99)), lambda a, b: _d(a, b), [
        "{N} had {0} {things} and now has {1}. How many {things} are gone?",
        "Yesterday there were {0} {things}; today {N} counts {1}. How many {things} are missing?"]),
    "start": ("medium", lambda c: (_n(c, 3, 60), _n(c, 3, 60)), lambda a, b: _s(b, a), [
        "After {N} {loses} {0} {things}, {1} {things} are left. How many {things} were there at first?",
        "{N} {loses} {0} {things} and still has {1}. How many did {N} have before?"]),
    "together": ("medium", lambda c: (_n(c, 5, 60), _n(c, 2, 30)), lambda a, b: _two(_s(a, b), _s(a + b, a)), [
        "{N} has {0} {things}. {M} has {1} more than {N}. How many {things} do they have together?",
        "{M} has {1} {things} more than {N}, and {N} has {0}. What is the total number of {things}?"]),
    "times_together": ("medium", lambda c: (_n(c, 3, 40), _n(c, 2, 6)), lambda a, b: _two(_m(a, b), _s(a * b, a)), [
        "{N} has {0} {things}. {M} has {1} times as many. How many {things} do they have together?",
        "{M} has {1} times as many {things} as {N}. {N} has {0}. How many {things} have both in total?"]),
    "groups_plus": ("medium", lambda c: (_n(c, 3, 20), _n(c, 3, 12), _n(c, 2, 40)), lambda a, b, x: _two(_m(a, b), _s(a * b, x)), [
        "{N} has {0} {boxes} of {1} {things} and {2} loose {things}. How many {things} is that in total?",
        "There are {0} {boxes} with {1} {things} each. {N} {gets} {2} more {things}. How many {things} are there?"]),
    "groups_minus": ("medium", lambda c: (lambda a, b: (a, b, _n(c, 2, a * b - 2)))(_n(c, 3, 20), _n(c, 3, 12)), lambda a, b, x: _two(_m(a, b), _d(a * b, x)), [
        "{N} buys {0} {boxes} of {1} {things} and {loses} {2} of the {things}. How many {things} remain?",
        "From {0} {boxes} with {1} {things} each, {N} {loses} {2}. How many {things} are left?"]),
    "price_change": ("medium", lambda c: (lambda p, k: (p, k, (p * k // 50 + 1) * 50))(_n(c, 2, 20), _n(c, 2, 9)), lambda p, k, n: _two(_m(p, k), _d(n, p * k)), [
        "{N} buys {1} {things} at ${0} each and pays with ${2}. How many dollars of change does {N} get?",
        "Each {thing} costs ${0}. {N} takes {1} and hands over ${2}. What is the change in dollars?"]),
    "gain_loss": ("medium", lambda c: (lambda a, b: (a, b, _n(c, 2, a + b - 2)))(_n(c, 5, 70), _n(c, 5, 50)), lambda a, b, x: _two(_s(a, b), _d(a + b, x)), [
        "{N} has {0} {things}, {gets} {1} more and then {loses} {2}. How many {things} does {N} have?",
        "Starting with {0} {things}, {N} {gets} {1} and {loses} {2}. How many {things} does {N} end with?"]),
    "left_over": ("medium", lambda c: (_n(c, 20, 150), _n(c, 3, 12)), lambda a, b: (a % b, _q(a, b)[1] + ("" if a % b else "\nremainder 0")), [
        "{N} packs {0} {things} into {boxes} of {1}. How many {things} are left over?",
        "{0} {things} go into {boxes} that hold {1} each. How many {things} do not fill a {box}?"]),
    "three": ("medium", lambda c: (_n(c, 5, 60), _n(c, 5, 60), _n(c, 5, 60)), lambda a, b, x: _two(_s(a, b), _s(a + b, x)), [
        "{N} has {0} {things}, {M} has {1} and {K} has {2}. How many {things} do the three have?",
        "{N}, {M} and {K} bring {0}, {1} and {2} {things}. How many {things} is that in total?"]),
    "share_after": ("hard", lambda c: (lambda k, q: (lambda a: (a, k * q - a, k))(_n(c, 2, k * q - 2)))(_n(c, 3, 9), _n(c, 4, 25)), lambda a, b, k: _two(_s(a, b), _q(a + b, k)), [
        "{N} has {0} {things} and {gets} {1} more, then shares all equally among {2} friends. How many {things} does each get?",
        "{0} {things} and another {1} {things} are divided into {2} equal {boxes}. How many {things} does each {box} hold?"]),
    "two_prices": ("hard", lambda c: (_n(c, 2, 12), _n(c, 3, 25), _n(c, 2, 12), _n(c, 3, 25)), lambda a, p, b, q: (a * p + b * q, f"{_m(a, p)[1]}\n{_m(b, q)[1]}\n{_s(a * p, b * q)[1]}"), [
        "{N} buys {0} {things} at ${1} each and {2} {boxes} at ${3} each. How many dollars is that?",
        "A {thing} costs ${1} and a {box} costs ${3}. What do {0} {things} and {2} {boxes} cost together, in dollars?"]),
    "week_rest": ("hard", lambda c: (lambda r, d: (r, d, _n(c, 5, r * d - 3)))(_n(c, 6, 30), _n(c, 3, 12)), lambda r, d, x: _two(_m(r, d), _d(r * d, x)), [
        "{N} wants {2} {things}. {N} {makes} {0} {things} a day for {1} days. How many more than wanted is that?",
        "For {1} days {N} {makes} {0} {things} a day and in the end {loses} {2} of them. How many {things} remain?"]),
    "half_rest": ("hard", lambda c: (lambda h: (2 * h, _n(c, 2, h - 1)))(_n(c, 5, 60)), lambda a, b: _two((a // 2, f"half of {a} is {a // 2}"), _d(a // 2, b)), [
        "{N} has {0} {things}, gives half of them to {M} and {loses} {1} more. How many {things} does {N} have left?",
        "Half of {0} {things} go to {M}. Of the rest {N} {loses} {1}. How many {things} remain with {N}?"]),
    "twice_more": ("hard", lambda c: (_n(c, 4, 40), _n(c, 2, 5), _n(c, 2, 30)), lambda a, k, x: (a * k + x + a, f"{_m(a, k)[1]}\n{_s(a * k, x)[1]}\n{_s(a * k + x, a)[1]}"), [
        "{N} has {0} {things}. {M} has {1} times as many and then {gets} {2} more. How many {things} do they have together?",
        "{M} has {1} times the {things} of {N} plus {2}. {N} has {0}. How many {things} do both have?"]),
}

TEMPLATES = {}


def _deal():
    """Gives each (scene, structure, wording) to the split that its hash names."""
    for split, (lo, hi) in _ENTITY_EDGE.items():
        TEMPLATES[split] = {name: [(i, w) for i in range(len(SCENES)) for w in range(len(s[3]))
                                   if lo <= bucket(f"wp/{SCENES[i][1]}/{name}/{w}") < hi]
                            for name, s in STRUCTURES.items()}


_deal()


def _problem(c, level):
    names = [n for n, s in STRUCTURES.items() if s[0] == level and TEMPLATES[c.split][n]]
    name = c.choice(names)
    _, numbers, solve, wordings = STRUCTURES[name]
    scene, w = c.choice(TEMPLATES[c.split][name])

    def make():
        xs = numbers(c)
        return f"wp{name}{xs}", xs
    xs = c.draw(make)
    value, think = solve(*xs)
    one, many, box, boxes, gets, loses, makes = SCENES[scene]
    n, m, k = c.some(PEOPLE, 3)
    ask = wordings[w].format(*xs, N=n, M=m, K=k, thing=one, things=many, box=box, boxes=boxes, gets=gets, loses=loses, makes=makes)
    unit = many if c.chance(0.5) and "price" not in name else ""
    return c.number(f"wp.{name}.{w}.{many.replace(' ', '_')}", ask, value, think, level, unit=unit)


for _level, _weight in (("easy", 4), ("medium", 4), ("hard", 2.5)):
    family("arithmetic", f"word_{_level}", _weight)(lambda c, level=_level: _problem(c, level))
