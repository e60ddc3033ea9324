"""Percent, fractions, averages, money, units, clock time and calendar."""

import datetime
from fractions import Fraction
from math import gcd

from . import steps
from .arithmetic import _line
from .core import Pool, family

PERCENT = Pool("percent", ["What is {p}% of {n}?", "Calculate {p} percent of {n}.", "Find {p}% of {n}.", "How much is {p}% of {n}?", "{p}% of {n} = ?"],
               ["What does {p} percent of {n} come to?", "Work out {p}% of {n}.", "Take {p}% of {n}: what is it?"])


@family("arithmetic", "percent", 2)
def percent(c):
    def make():
        p, n = c.choice((5, 10, 15, 20, 25, 30, 40, 50, 60, 75, 80, 90)), c.int(1, 60) * 20
        return f"pct{p},{n}", (p, n)
    p, n = c.draw(make)
    t, ask = c.phr(PERCENT)
    tenth = n // 10
    v = n * p // 100
    if p % 10 == 0:
        _, s = _line("*", tenth, p // 10)
        think = f"10% of {n} is {tenth}.\n{s}"
    elif p == 5:
        think = f"10% of {n} is {tenth}. Half of it is {v}."
    elif p == 25:
        think = f"25% is a quarter.\n{steps.div(n, 4)[1]}"
    elif p == 75:
        q, s = steps.div(n, 4)
        think = f"25% is a quarter.\n{s}\n{_line('*', q, 3)[1]}"
    else:
        think = f"10% of {n} is {tenth}. 5% is {tenth // 2}.\n{_line('+', tenth, tenth // 2)[1]}"
    return c.number(t, ask.format(p=p, n=n), v, think, "medium")


DISCOUNT = Pool("discount", [
    "A {x} costs ${n}. It is {p}% off. What is the new price in dollars?", "A {x} priced at ${n} has a {p}% discount. How much do you pay?",
    "The price of a {x} is ${n} and it is reduced by {p}%. What is the sale price?", "With {p}% off, how much is a ${n} {x}?"],
    ["A shop takes {p}% off a {x} of ${n}. What must you pay?", "What does a ${n} {x} cost after a {p}% reduction?",
     "A {x} at ${n} is on sale at {p}% off. Find the price."])
GOODS = """jacket lamp chair bicycle phone table backpack camera watch radio sofa printer tent helmet keyboard guitar
coat mirror desk blender kettle monitor drill suitcase carpet bookcase toaster mattress heater speaker""".split()


@family("arithmetic", "discount", 1.2)
def discount(c):
    def make():
        p, n = c.choice((10, 20, 25, 30, 40, 50)), c.int(2, 45) * 20
        return f"dis{p},{n}", (p, n)
    p, n = c.draw(make)
    off = n * p // 100
    how = f"10% of {n} is {n // 10}, so {p}% is {off}." if p % 10 == 0 else f"25% is a quarter of {n}: {off}."
    t, ask = c.phr(DISCOUNT)
    v, s = _line("-", n, off)
    return c.number(t, ask.format(p=p, n=n, x=c.of(GOODS)), v, f"{how}\n{s}", "medium")


FRACTION = Pool("fraction", ["What is {a} + {b}? Give a fraction in lowest terms.", "Add the fractions {a} and {b}.", "Compute {a} + {b} as a reduced fraction.",
                             "{a} + {b} = ? Simplify."],
                ["Find {a} plus {b} as a simplified fraction.", "Sum {a} and {b}; reduce the fraction.", "Evaluate {a} + {b} in lowest terms."])


@family("arithmetic", "fraction_add", 1.2)
def fraction_add(c):
    def make():
        d1, d2 = c.int(2, 9), c.int(2, 9)
        n1, n2 = c.int(1, d1 - 1), c.int(1, d2 - 1)
        return f"fr{n1}/{d1},{n2}/{d2}", (n1, d1, n2, d2)
    n1, d1, n2, d2 = c.draw(make)
    L = d1 * d2 // gcd(d1, d2)
    x, y = n1 * L // d1, n2 * L // d2
    r = Fraction(x + y, L)
    v = str(r)
    g = gcd(x + y, L)
    think = f"Common denominator {L}: {n1}/{d1} = {x}/{L}, {n2}/{d2} = {y}/{L}. {x} + {y} = {x + y}, so {x + y}/{L}."
    if g > 1:
        think += f" Divide both by {g}: {v}."
    t, ask = c.phr(FRACTION)
    return c.item(t, ask.format(a=f"{n1}/{d1}", b=f"{n2}/{d2}"), think, v, {"kind": "exact", "value": v}, "medium")


REDUCE = Pool("reduce", ["Simplify the fraction {a}.", "Reduce {a} to lowest terms.", "Write {a} in lowest terms.", "What is {a} simplified?"],
              ["Bring {a} to its simplest form.", "Give {a} as a reduced fraction.", "Cancel {a} as far as possible."])


@family("arithmetic", "fraction_reduce", 0.8)
def fraction_reduce(c):
    def make():
        d, k = c.int(2, 12), c.int(2, 9)
        n = c.int(1, d - 1)
        return f"red{n * k}/{d * k}", (n * k, d * k)
    n, d = c.draw(make)
    g = gcd(n, d)
    v = str(Fraction(n, d))
    t, ask = c.phr(REDUCE)
    return c.item(t, ask.format(a=f"{n}/{d}"), f"The greatest common divisor of {n} and {d} is {g}. {n} / {g} = {n // g}, {d} / {g} = {d // g}.",
                  v, {"kind": "exact", "value": v}, "medium")


PART = Pool("part_of", ["What is {f} of {n}?", "Find {f} of {n}.", "How much is {f} of {n}?", "Calculate {f} of {n}."],
            ["Work out {f} of {n}.", "What does {f} of {n} come to?", "Take {f} of {n}."])


@family("arithmetic", "fraction_of", 1)
def fraction_of(c):
    def make():
        d = c.int(2, 9)
        n, m = c.int(1, d - 1), d * c.int(2, 40)
        return f"fo{n}/{d},{m}", (n, d, m)
    n, d, m = c.draw(make)
    q, s1 = steps.div(m, d)
    v, s2 = _line("*", q, n)
    t, ask = c.phr(PART)
    return c.number(t, ask.format(f=f"{n}/{d}", n=m), v, f"{s1}\n{s2}" if n > 1 else s1, "medium")


AVERAGE = Pool("average", ["What is the average of {xs}?", "Find the mean of {xs}.", "Calculate the average of these numbers: {xs}.", "Mean of {xs}?"],
               ["What is the arithmetic mean of {xs}?", "Average these values: {xs}.", "Give the mean value of {xs}."])


@family("arithmetic", "average", 1.2)
def average(c):
    def make():
        n = c.int(3, 5)
        xs = [c.int(2, 40) for _ in range(n - 1)]
        last = (-sum(xs)) % n + n * c.int(1, 6)
        xs.append(last)
        c.shuffle(xs)
        return "avg" + str(xs), xs
    xs = c.draw(make)
    total, lines = xs[0], []
    for x in xs[1:]:
        lines.append(f"{total} + {x} = {total + x}")
        total += x
    t, ask = c.phr(AVERAGE)
    return c.number(t, ask.format(xs=", ".join(map(str, xs))), total // len(xs),
                    f"{'. '.join(lines)}. There are {len(xs)} numbers. {total} / {len(xs)} = {total // len(xs)}", "medium")


UNITS = [("kilometres", "metres", 1000), ("metres", "centimetres", 100), ("kilograms", "grams", 1000), ("litres", "millilitres", 1000),
         ("hours", "minutes", 60), ("minutes", "seconds", 60), ("days", "hours", 24), ("weeks", "days", 7), ("centimetres", "millimetres", 10),
         ("tonnes", "kilograms", 1000), ("years", "months", 12), ("feet", "inches", 12), ("yards", "feet", 3), ("dollars", "cents", 100),
         ("dozens", "pieces", 12), ("bytes", "bits", 8), ("kilobytes", "bytes", 1000)]
CONVERT = Pool("convert", ["How many {b} are in {n} {a}?", "Convert {n} {a} to {b}.", "{n} {a} in {b}?", "What is {n} {a} in {b}?", "Change {n} {a} into {b}."],
               ["How many {b} make {n} {a}?", "Express {n} {a} in {b}.", "{n} {a} equals how many {b}?"])


@family("arithmetic", "units", 2)
def units(c):
    back = c.chance(0.4)

    def make():
        i, n = c.int(0, len(UNITS) - 1), c.int(2, 99)
        return f"unit{i},{n},{back}", (UNITS[i], n)
    (a, b, k), n = c.draw(make)
    one = a[:-1] if a != "feet" else "foot"
    t, ask = c.phr(CONVERT)
    big, s = steps.mul(n, k) if k not in (10, 100, 1000) else (n * k, f"{n} * {k} = {n * k}")
    if back:
        s = f"{big} / {k} = {n}" if k in (10, 100, 1000) else steps.div(big, k)[1]
        return c.number(t, ask.format(a=b, b=a, n=big), n, f"1 {one} is {k} {b}.\n{s}", "medium", unit=a)
    return c.number(t, ask.format(a=a, b=b, n=n), big, f"1 {one} is {k} {b}.\n{s}", "easy", unit=b)


CHANGE = Pool("change", ["You buy a {x} for ${p} and pay with ${n}. How much change do you get, in dollars?", "A {x} costs ${p}. I pay ${n}. What is my change?",
                         "How much change from ${n} for a {x} of ${p}?"],
              ["Paying ${n} for a ${p} {x}, what money comes back?", "The {x} is ${p} and I hand over ${n}. What do I get back?", "From ${n} I spend ${p} on a {x}. What is returned?"])


@family("arithmetic", "money_change", 1)
def money_change(c):
    def make():
        cents, n = c.int(105, 9900), c.choice((5, 10, 20, 50, 100))
        return f"chg{cents},{n}", (cents, n)
    cents, n = c.draw(make)
    while n * 100 <= cents:
        n *= 2
    t, ask = c.phr(CHANGE)
    d, s = steps.sub(n * 100, cents)
    v = f"{d // 100}.{d % 100:02d}"
    return c.number(t, ask.format(x=c.of(GOODS), p=f"{cents // 100}.{cents % 100:02d}", n=n), v,
                    f"In cents: {n * 100} - {cents}.\n{s}\nThat is ${v}.", "medium")


def _hm(m):
    return f"{m // 60 % 24:02d}:{m % 60:02d}"


LATER = Pool("later", ["It is {a}. What time will it be in {h} hours and {m} minutes?", "A film starts at {a} and lasts {h} h {m} min. When does it end?",
                       "What time is {h} hours {m} minutes after {a}?", "A train leaves at {a} and travels for {h} hours and {m} minutes. When does it arrive?"],
             ["Starting at {a}, what does the clock show {h} hours and {m} minutes later?", "A meeting begins at {a} and takes {h} h {m} min. When is it over?",
              "Add {h} hours and {m} minutes to {a}. What time is it?"])


@family("arithmetic", "time_later", 1.2)
def time_later(c):
    def make():
        a, h, m = c.int(0, 287) * 5, c.int(1, 6), c.int(1, 11) * 5
        return f"lat{a},{h},{m}", (a, h, m)
    a, h, m = c.draw(make)
    t, ask = c.phr(LATER)
    v = _hm(a + h * 60 + m)
    hh, mm = a // 60 + h, a % 60 + m
    think = f"Hours: {a // 60} + {h} = {hh}. Minutes: {a % 60} + {m} = {mm}."
    if mm >= 60:
        think += f" {mm} - 60 = {mm - 60}, so one hour more: {hh + 1}."
        hh, mm = hh + 1, mm - 60
    if hh >= 24:
        think += f" {hh} - 24 = {hh - 24}."
    return c.item(t, ask.format(a=_hm(a), h=h, m=m), think, f"{v}", {"kind": "contains", "any": [v, v[1:]] if v[0] == "0" else [v]}, "medium")


BETWEEN = Pool("between", ["How many minutes are there from {a} to {b}?", "How many minutes pass between {a} and {b}?", "From {a} until {b}: how many minutes?"],
               ["Give the number of minutes between {a} and {b}.", "A bus goes from {a} to {b}. How many minutes is that?", "Starting {a}, ending {b}: the length in minutes?"])


@family("arithmetic", "time_between", 1)
def time_between(c):
    def make():
        a = c.int(0, 250) * 5
        d = c.int(2, 36) * 5
        return f"btw{a},{d}", (a, d)
    a, d = c.draw(make)
    b = min(a + d, 1435)
    d = b - a
    t, ask = c.phr(BETWEEN)
    h = b // 60 - a // 60
    think = f"Hours: {b // 60} - {a // 60} = {h}, which is {h * 60} minutes. Minutes: {b % 60} - {a % 60} = {b % 60 - a % 60}. {h * 60} {'+' if b % 60 >= a % 60 else '-'} {abs(b % 60 - a % 60)} = {d}"
    return c.number(t, ask.format(a=_hm(a), b=_hm(b)), d, think, "medium", unit="minutes")


DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
WEEKDAY = Pool("weekday", ["Today is {d}. What day will it be in {n} days?", "If today is {d}, which weekday is it {n} days from now?", "What day of the week comes {n} days after {d}?"],
               ["It is {d}. Name the weekday {n} days later.", "Counting {n} days on from {d}, what day is it?", "Which day follows {d} after {n} days?"])


@family("arithmetic", "weekday", 1)
def weekday(c):
    def make():
        d, n = c.int(0, 6), c.int(2, 60)
        return f"wd{d},{n}", (d, n)
    d, n = c.draw(make)
    t, ask = c.phr(WEEKDAY)
    r = n % 7
    walk = " -> ".join(DAYS[(d + i) % 7] for i in range(r + 1))
    head = f"{n} = {n // 7} * 7 + {r}, so {r} days on. " if n >= 7 else ""
    v = DAYS[(d + n) % 7]
    return c.item(t, ask.format(d=DAYS[d], n=n), head + walk + ".", f"It will be {v}.", {"kind": "contains", "any": [v], "none": [x for x in DAYS if x != v]}, "medium")


MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December")
AFTER = Pool("date_after", ["What is the date {n} days after {d}?", "Which date is {n} days after {d}?", "Add {n} days to {d}.", "{n} days from {d} is what date?"],
             ["Counting {n} days on from {d}, what is the date?", "A parcel sent on {d} needs {n} days. On what date does it arrive?", "Give the date {n} days later than {d}."])


@family("arithmetic", "date_after", 1)
def date_after(c):
    def make():
        o, n = c.int(0, 364), c.int(2, 28)
        return f"da{o},{n}", (o, n)
    o, n = c.draw(make)
    d = datetime.date(2023, 1, 1) + datetime.timedelta(o)
    e = d + datetime.timedelta(n)
    t, ask = c.phr(AFTER)
    v = f"{e.day} {MONTHS[e.month - 1]}"
    if e.month == d.month:
        think = f"{d.day} + {n} = {e.day}, still in {MONTHS[d.month - 1]}."
    else:
        last = d.day + n - e.day
        think = f"{MONTHS[d.month - 1]} has {last} days. {d.day} + {n} = {d.day + n}. {d.day + n} - {last} = {e.day} in {MONTHS[e.month - 1]}."
    return c.item(t, ask.format(n=n, d=f"{d.day} {MONTHS[d.month - 1]}"), think, v + ".",
                  {"kind": "contains", "any": [v, f"{MONTHS[e.month - 1]} {e.day}"]}, "medium")


ROUND = Pool("rounding", ["Round {a} to the nearest {k}.", "What is {a} rounded to the nearest {k}?", "{a} to the nearest {k}?"],
             ["Give {a} to the nearest {k}.", "Approximate {a} to the nearest {k}.", "To the nearest {k}, what is {a}?"])


@family("arithmetic", "rounding", 0.8)
def rounding(c):
    def make():
        k, a = c.choice((10, 100, 1000)), c.int(15, 99999)
        return f"rnd{k},{a}", (k, max(a, k + 3))
    k, a = c.draw(make)
    low = a // k * k
    v = low if a - low < k / 2 else low + k
    t, ask = c.phr(ROUND)
    think = f"{a} lies between {low} and {low + k}. The rest is {a - low}, {'less than' if v == low else 'at least'} {k // 2}, so round {'down' if v == low else 'up'}: {v}"
    return c.number(t, ask.format(a=a, k=k), v, think, "easy")


AREA = Pool("rectangle", ["A rectangle is {a} cm long and {b} cm wide. What is its {w}?", "Find the {w} of a rectangle with sides {a} and {b}.",
                          "What is the {w} of a {a} by {b} rectangle?"],
            ["A field measures {a} m by {b} m. What is its {w}?", "The sides of a rectangle are {a} and {b}. Give the {w}.", "Work out the {w} of a rectangular plate, {a} by {b}."])


@family("arithmetic", "rectangle", 1)
def rectangle(c):
    w = c.choice(("area", "perimeter"))

    def make():
        a, b = c.int(3, 60), c.int(2, 25)
        return f"rec{a},{b}", (a, b)
    a, b = c.draw(make)
    t, ask = c.phr(AREA)
    if w == "area":
        v, s = steps.mul(a, b)
        think = f"The area is length times width.\n{s}"
    else:
        p, s1 = _line("+", a, b)
        v, s2 = _line("*", p, 2)
        think = f"The perimeter is twice the sum of the sides.\n{s1}\n{s2}"
    return c.number(t, ask.format(a=a, b=b, w=w), v, think, "medium")
