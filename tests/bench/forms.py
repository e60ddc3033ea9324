#!/usr/bin/env python3
"""Writes JSON Schemas, each with documents that satisfy it, for `chimere bench --forms`: forms as requests bring them
(records, choices, tool arguments, trees) and others put together at random from the same parts. The same output always.

    python3 tests/bench/forms.py > target/forms.jsonl
"""

import json
import random

DOCUMENTS = 4
RANDOM_FORMS = 80
WORDS = """amber anchor basil birch canal cedar copper delta ember fennel garnet harbor indigo jasmine kettle lantern maple
nectar olive pepper quartz river saffron timber umber velvet willow yarrow zephyr""".split()
rng = random.Random(20261123)


# A part is a schema and a maker of values that satisfy it.
def text(low=None, high=None):
    schema = {"type": "string"}
    if low is not None:
        schema |= {"minLength": low, "maxLength": high}

    def make():
        if low is None:
            odd = rng.choice(["", "", "", " – “so”", "\n", " 🦀", ' \\ "x"'])
            return " ".join(rng.choice(WORDS) for _ in range(rng.randint(0, 12))) + odd
        return "".join(rng.choice("abcdefghij klm") for _ in range(rng.randint(low, high)))

    return schema, make


def one_of(values):
    return {"enum": values}, lambda: rng.choice(values)


def constant(value):
    return {"const": value}, lambda: value


def pattern(expression, make):
    return {"type": "string", "pattern": expression}, make


def formatted(name, make):
    return {"type": "string", "format": name}, make


def digits(n):
    return "".join(rng.choice("0123456789") for _ in range(n))


def integer(low=None, high=None):
    schema = {"type": "integer"}
    if low is not None:
        schema |= {"minimum": low, "maximum": high}
    return schema, lambda: rng.randint(-(10**6) if low is None else low, 10**9 if high is None else high)


def number():
    return {"type": "number"}, lambda: round(rng.uniform(-1000, 1000), rng.randint(0, 6))


def boolean():
    return {"type": "boolean"}, lambda: rng.random() < 0.5


def nothing():
    return {"type": "null"}, lambda: None


def maybe(part):
    return {"anyOf": [part[0], {"type": "null"}]}, lambda: part[1]() if rng.random() < 0.7 else None


def either(*parts):
    return {"anyOf": [p[0] for p in parts]}, lambda: rng.choice(parts)[1]()


def array(part, low=0, high=6):
    schema = {"type": "array", "items": part[0], "minItems": low, "maxItems": high}
    return schema, lambda: [part[1]() for _ in range(rng.randint(low, high))]


def pair(*parts):
    schema = {"type": "array", "prefixItems": [p[0] for p in parts], "items": False, "minItems": len(parts)}
    return schema, lambda: [p[1]() for p in parts]


def record(optional=(), **parts):
    schema = {
        "type": "object",
        "properties": {name: part[0] for name, part in parts.items()},
        "required": [name for name in parts if name not in optional],
        "additionalProperties": False,
    }

    def make():
        names = [name for name in parts if name not in optional or rng.random() < 0.6]
        return {name: parts[name][1]() for name in names}

    return schema, make


def table(part):
    schema = {"type": "object", "additionalProperties": part[0]}
    return schema, lambda: {word: part[1]() for word in rng.sample(WORDS, rng.randint(0, 5))}


def tree():
    node = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "children": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
        "required": ["name", "children"],
        "additionalProperties": False,
    }

    def make(depth=3):
        below = [make(depth - 1) for _ in range(rng.randint(0, 3))] if depth else []
        return {"name": rng.choice(WORDS), "children": below}

    return {"$ref": "#/$defs/node", "$defs": {"node": node}}, make


def expression():
    operand = {"anyOf": [{"type": "number"}, {"$ref": "#"}]}
    schema = {
        "type": "object",
        "properties": {"op": {"enum": ["+", "-", "*", "/"]}, "left": operand, "right": operand},
        "required": ["op", "left", "right"],
        "additionalProperties": False,
    }

    def make(depth=4):
        side = lambda: make(depth - 1) if depth and rng.random() < 0.5 else rng.randint(0, 99)
        return {"op": rng.choice("+-*/"), "left": side(), "right": side()}

    return schema, make


date = formatted("date", lambda: f"20{digits(2)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}")
moment = formatted("date-time", lambda: f"20{digits(2)}-0{rng.randint(1, 9)}-1{digits(1)}T1{digits(1)}:{rng.randint(10, 59)}:00Z")
uuid = formatted("uuid", lambda: f"{digits(8)}-{digits(4)}-4{digits(3)}-8{digits(3)}-{digits(12)}")
email = formatted("email", lambda: f"{rng.choice(WORDS)}@{rng.choice(WORDS)}.org")
address4 = formatted("ipv4", lambda: ".".join(str(rng.randint(0, 255)) for _ in range(4)))
code = pattern("^[A-Z]{3}-[0-9]{4}$", lambda: rng.choice(["ABC", "XYZ", "QRS"]) + "-" + digits(4))
phone = pattern(r"^\+[0-9]{1,3} [0-9 ]{6,14}$", lambda: f"+{digits(2)} {digits(3)} {digits(4)}")
colour = pattern("^#[0-9a-f]{6}$", lambda: "#" + "".join(rng.choice("0123456789abcdef") for _ in range(6)))
slug = pattern("^[a-z]+(-[a-z]+)*$", lambda: "-".join(rng.sample(WORDS, rng.randint(1, 4))))
place = record(street=text(), town=text(), zip=pattern("^[0-9]{5}$", lambda: digits(5)), country=one_of(["FR", "DE", "IT", "ES"]))
money = record(amount=number(), currency=one_of(["EUR", "USD", "CHF"]))

NAMED = [
    record(answer=text()),
    record(answer=boolean(), why=text()),
    record(sentiment=one_of(["positive", "neutral", "negative"]), confidence=number()),
    record(name=text(1, 40), age=integer(0, 130), email=email, phone=maybe(phone)),
    record(optional=("middle", "title"), title=one_of(["Dr", "Prof"]), first=text(1, 20), middle=text(1, 20), last=text(1, 20)),
    record(id=uuid, at=moment, place=place, total=money),
    record(lines=array(record(code=code, count=integer(1, 99), price=money), 1, 8), due=date),
    record(type=constant("Point"), coordinates=pair(number(), number())),
    record(type=constant("Polygon"), coordinates=array(array(pair(number(), number()), 3, 6), 1, 2)),
    either(record(kind=constant("circle"), radius=number()), record(kind=constant("square"), side=number())),
    array(record(word=text(1, 12), part=one_of(["noun", "verb", "adjective"])), 1, 12),
    array(integer(0, 9), 9, 9),
    array(array(number(), 3, 3), 3, 3),
    tree(),
    expression(),
    table(integer()),
    table(record(host=address4, port=integer(1, 65535), tls=boolean())),
    record(steps=array(record(thought=text(), action=one_of(["search", "read", "stop"])), 1, 6), result=text()),
    record(city=text(), unit=one_of(["celsius", "fahrenheit"]), days=integer(1, 14)),
    record(query=text(), filters=record(optional=("since", "tags"), since=date, tags=array(slug, 0, 5)), limit=integer(1, 100)),
    record(title=text(), authors=array(text(1, 30), 1, 5), year=integer(1900, 2100), doi=maybe(pattern("^10[.][0-9]{4}/[a-z0-9]+$", lambda: f"10.{digits(4)}/x{digits(3)}"))),
    record(theme=record(front=colour, back=colour), size=integer(8, 72), bold=boolean()),
    record(colour=one_of([f"{a} {b}" for a in WORDS[:20] for b in WORDS[:12]])),
    record(**{f"field_{n}": maybe(integer(0, 9)) for n in range(60)}),
    record(**{f"q{n}": one_of(["yes", "no", "unknown"]) for n in range(20)}),
    record(note=text(0, 400)),
    record(summary=text(), items=array(text(), 0, 10), score=integer(1, 5)),
    record(version=pattern(r"^[0-9]+[.][0-9]+[.][0-9]+$", lambda: "1.22.333"), dependencies=table(text(1, 10))),
    record(patient=record(age=integer(0, 120), sex=one_of(["f", "m", "x"])), signs=array(one_of(["pain", "fever", "swelling"]), 0, 3), urgent=boolean()),
    ({"type": "object"}, lambda: {"any": [1, "two", {"three": None}], "more": True}),
]


def anything(depth):
    """A part put together at random."""
    plain = [
        text, boolean, number, integer, nothing, lambda: text(2, 30), lambda: integer(-5, 5000),
        lambda: one_of(rng.sample(WORDS, rng.randint(2, 12))), lambda: date, lambda: moment, lambda: uuid, lambda: email,
        lambda: code, lambda: slug, lambda: colour, lambda: constant(rng.choice(WORDS)),
    ]
    if depth == 0 or rng.random() < 0.35:
        return rng.choice(plain)()
    shape = rng.random()
    if shape < 0.55:
        names = rng.sample(WORDS, rng.randint(1, 9))
        optional = {name for name in names if rng.random() < 0.3}
        return record(optional=optional, **{name: anything(depth - 1) for name in names})
    if shape < 0.8:
        return array(anything(depth - 1), 0, rng.randint(1, 6))
    if shape < 0.9:
        return table(anything(depth - 1))
    return maybe(anything(depth - 1))


forms = NAMED + [record(**{name: anything(3) for name in rng.sample(WORDS, rng.randint(1, 6))}) for _ in range(RANDOM_FORMS)]
for schema, make in forms:
    print(json.dumps({"schema": schema, "documents": [make() for _ in range(DOCUMENTS)]}, ensure_ascii=False))
