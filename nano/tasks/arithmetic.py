"""Plain arithmetic: the four operations by column steps, comparisons, order of operations, sequences."""

from . import steps
from .core import Pool, family

ADD = Pool("add", [
    "What is {a} + {b}?", "{a} + {b} = ?", "Calculate {a} + {b}.", "Compute {a} plus {b}.", "Add {a} and {b}.",
    "How much is {a} plus {b}?", "What do you get when you add {b} to {a}?", "Find the sum of {a} and {b}.", "{a}+{b}",
    "Please work out {a} + {b}.", "Can you add {a} and {b} for me?", "what's {a} + {b}", "Solve: {a} + {b}",
], ["What is the sum of {a} and {b}?", "What does {a} plus {b} make?", "Evaluate {a} + {b}.",
    "Tell me {a} + {b}.", "Work out the total of {a} and {b}.", "I need {a} plus {b}."])
SUB = Pool("sub", [
    "What is {a} - {b}?", "{a} - {b} = ?", "Calculate {a} - {b}.", "Compute {a} minus {b}.", "Subtract {b} from {a}.",
    "How much is {a} minus {b}?", "Take {b} away from {a}.", "Find {a} - {b}.", "{a}-{b}", "what's {a} minus {b}",
    "What is left when {b} is taken from {a}?", "Solve: {a} - {b}",
], ["What is the difference {a} - {b}?", "What does {a} minus {b} make?", "Evaluate {a} - {b}.",
    "Tell me {a} - {b}.", "Reduce {a} by {b}.", "I need {a} minus {b}."])
MUL = Pool("mul", [
    "What is {a} * {b}?", "{a} x {b} = ?", "Calculate {a} * {b}.", "Compute {a} times {b}.", "Multiply {a} by {b}.",
    "How much is {a} times {b}?", "Find the product of {a} and {b}.", "{a}*{b}", "what's {a} times {b}", "Solve: {a} * {b}",
], ["What is the product of {a} and {b}?", "What does {a} times {b} make?", "Evaluate {a} * {b}.",
    "Tell me {a} x {b}.", "What is {a} multiplied by {b}?", "I need {a} times {b}."])
DIV = Pool("div", [
    "What is {a} / {b}?", "{a} / {b} = ?", "Calculate {a} divided by {b}.", "Divide {a} by {b}.", "How much is {a} divided by {b}?",
    "How many times does {b} go into {a}?", "{a}/{b}", "Solve: {a} / {b}", "Find {a} ÷ {b}.",
], ["What is the quotient of {a} and {b}?", "Evaluate {a} / {b}.", "Work out {a} divided by {b}.",
    "Tell me {a} / {b}.", "Split {a} into {b} equal parts: how big is each?", "I need {a} over {b}."])
REM = Pool("rem", [
    "What is the remainder of {a} divided by {b}?", "What is {a} mod {b}?", "What is left over when {a} is divided by {b}?",
    "Find the remainder: {a} / {b}.", "Compute {a} modulo {b}.",
], ["Divide {a} by {b}. What remains?", "What remainder does {a} leave when divided by {b}?", "Give the remainder of {a} over {b}."])

LEVELS = ("easy", "medium", "hard")


def _pair(c, op, name, ranges):
    """An operand pair of this split; small tables belong to training alone."""
    (alo, ahi), (blo, bhi) = ranges
    if c.train and c.chance(0.08) and op in "+-*":
        alo, blo, ahi, bhi = 0, 0, 12, 12
    for _ in range(1000):
        a, b = c.int(alo, ahi), c.int(blo, bhi)
        small = a < 13 and b < 13
        if (small and c.train) or (not small and c.mine(f"{op}{min(a, b)},{max(a, b)}")):
            return a, b
    raise RuntimeError(f"{name}: no operands")


def _plain(c, op, pool, ranges, level):
    a, b = _pair(c, op, pool, ranges)
    if op == "-" and level != "hard" and b > a:
        a, b = b, a
    value, think = steps.calc(op, a, b)
    t, ask = c.phr(pool)
    if c.train and level == "easy" and c.chance(0.1):
        think = ""
    it = c.number(t, ask.format(a=a, b=b), value, think, level)
    if c.train and c.chance(0.1):
        sign = {"*": "x"}.get(op, op)
        it["answer"] = f"{a} {sign} {b} = {value}." if c.chance(0.5) else f"{a} {sign} {b} = {value}"
    return it


def _register():
    ranges = {
        "add": ("+", ADD, (((10, 99), (1, 99)), ((100, 9999), (100, 9999)), ((10000, 9999999), (10000, 9999999)))),
        "sub": ("-", SUB, (((10, 99), (1, 99)), ((100, 9999), (10, 9999)), ((10000, 9999999), (10000, 9999999)))),
        "mul": ("*", MUL, (((11, 99), (2, 9)), ((11, 99), (11, 99)), ((100, 9999), (11, 99)))),
    }
    for name, (op, pool, by_level) in ranges.items():
        for level, rs in zip(LEVELS, by_level):
            weight = {"easy": 4.0, "medium": 3.5, "hard": 2.5}[level]
            family("arithmetic", f"{name}_{level}", weight)(
                lambda c, op=op, pool=pool, rs=rs, level=level: _plain(c, op, pool, rs, level))


_register()


def _exact_division(c, qs, bs, level):
    def make():
        q, b = c.int(*qs), c.int(*bs)
        return f"/{q * b},{b}", (q * b, b)
    a, b = c.draw(make)
    value, think = steps.div(a, b)
    t, ask = c.phr(DIV)
    return c.number(t, ask.format(a=a, b=b), value, think, level)


@family("arithmetic", "div_easy", 3)
def div_easy(c):
    return _exact_division(c, (2, 99), (2, 9), "easy")


@family("arithmetic", "div_medium", 2.5)
def div_medium(c):
    return _exact_division(c, (11, 999), (3, 25), "medium")


@family("arithmetic", "div_hard", 1.5)
def div_hard(c):
    return _exact_division(c, (101, 9999), (13, 99), "hard")


@family("arithmetic", "remainder", 1.5)
def remainder(c):
    def make():
        a, b = c.int(11, 999), c.int(2, 12)
        return f"%{a},{b}", (a, b)
    a, b = c.draw(make)
    _, think = steps.div(a, b)
    if a % b == 0:
        think += "\nremainder 0"
    t, ask = c.phr(REM)
    return c.number(t, ask.format(a=a, b=b), a % b, think, "medium")


BIG = Pool("larger", ["Which is larger, {a} or {b}?", "Which number is bigger: {a} or {b}?", "Compare {a} and {b}: which is greater?",
                      "What is the maximum of {a} and {b}?"],
           ["Of {a} and {b}, which is the larger?", "Pick the greater number: {a} or {b}.", "Give the bigger of {a} and {b}."])
SMALL = Pool("smaller", ["Which is smaller, {a} or {b}?", "Which number is less: {a} or {b}?", "What is the minimum of {a} and {b}?",
                         "Compare {a} and {b}: which is lower?"],
             ["Of {a} and {b}, which is the smaller?", "Pick the lower number: {a} or {b}.", "Give the lesser of {a} and {b}."])


def _decimal(c):
    return f"{c.int(0, 30)}.{c.int(1, 99 if c.chance(0.5) else 9)}"


def _cmp_think(a, b):
    """Compares two decimals written as text, whole part first, then digits."""
    (aw, _, af), (bw, _, bf) = a.partition("."), b.partition(".")
    if len(aw) != len(bw):
        more = a if len(aw) > len(bw) else b
        return f"{aw} has {len(aw)} digits, {bw} has {len(bw)}: {more} is larger."
    if aw != bw:
        return f"{aw} against {bw}: {a if int(aw) > int(bw) else b} is larger."
    n = max(len(af), len(bf))
    af, bf = af.ljust(n, "0"), bf.ljust(n, "0")
    return f"Equal before the point. After it {af} against {bf}: {a if af > bf else b} is larger."


@family("arithmetic", "compare", 1.5)
def compare(c):
    kind = c.int(0, 2)

    def make():
        if kind == 0:
            a, b = str(c.int(10, 9999)), str(c.int(10, 9999))
        elif kind == 1:
            a = c.int(100, 99999)
            a, b = str(a), str(max(1, a + c.int(-50, 50)))
        else:
            a, b = _decimal(c), _decimal(c)
        if float(a) == float(b):
            b = str(int(float(b)) + 1)
        return f"cmp{min(a, b)},{max(a, b)}", (a, b)
    a, b = c.draw(make)
    want_big = c.chance(0.6)
    t, ask = c.phr(BIG if want_big else SMALL)
    value = (max if want_big else min)((a, b), key=float)
    think = _cmp_think(a, b) + ("" if want_big else f" So {value} is smaller.")
    return c.number(t, ask.format(a=a, b=b), value, think, "medium" if kind == 2 else "easy")


ORDER = Pool("order", ["What is {e}?", "Calculate {e}.", "Compute {e}", "{e} = ?", "Evaluate the expression {e}.", "Work out {e}.", "Solve {e}"],
             ["What is the value of {e}?", "Simplify {e} to a number.", "Find the result of {e}."])


def _short(op, a, b):
    return {"+": a + b, "-": a - b, "*": a * b}[op]


def _line(op, a, b):
    """One line when small, the column steps when not."""
    v = _short(op, a, b)
    if a < 0 or b < 0 or (a < 13 and b < 13) or (op in "+-" and a < 100 and b < 10 and v >= 0):
        return v, f"{a} {op} {b} = {v}"
    return steps.calc(op, a, b)


@family("arithmetic", "order_of_operations", 2)
def order_of_operations(c):
    form = c.int(0, 4)

    def make():
        x, y, z = c.int(2, 30), c.int(2, 12), c.int(2, 12)
        w = c.int(2, 40)
        e = (f"{x} + {y} * {z}", f"({x} + {y}) * {z}", f"{y} * {z} - {x}", f"{y} * {z} + {x} - {w}", f"({x} + {w}) - {y} * {z}")[form]
        return "ord" + e, (e, x, y, z, w)
    e, x, y, z, w = c.draw(make)
    if form == 0:
        p, s1 = _line("*", y, z)
        v, s2 = _line("+", x, p)
    elif form == 1:
        p, s1 = _line("+", x, y)
        v, s2 = _line("*", p, z)
    elif form == 2:
        p, s1 = _line("*", y, z)
        v, s2 = _line("-", p, x)
    elif form == 3:
        p, s1 = _line("*", y, z)
        q, s3 = _line("+", p, x)
        v, s2 = _line("-", q, w)
        s2 = s3 + "\n" + s2
    else:
        p, s1 = _line("+", x, w)
        q, s3 = _line("*", y, z)
        v, s2 = _line("-", p, q)
        s2 = s3 + "\n" + s2
    first = "Brackets first." if form in (1, 4) else "Multiply first."
    t, ask = c.phr(ORDER)
    return c.number(t, ask.format(e=e), v, f"{first}\n{s1}\n{s2}", "easy" if form < 3 else "medium")


CHAIN = Pool("chain", ["What is {e}?", "Add up: {e}", "Calculate {e} step by step.", "{e} = ?", "Compute {e}."],
             ["Find the running total of {e}.", "What does {e} come to?", "Evaluate {e} from left to right."])


@family("arithmetic", "chain", 1.5)
def chain(c):
    def make():
        xs = [c.int(2, 99) for _ in range(c.int(3, 5))]
        ops = ["+"] + [c.choice("++-") for _ in xs[1:]]
        total = xs[0]
        for i in range(1, len(xs)):
            if ops[i] == "-" and total < xs[i]:
                ops[i] = "+"
            total += xs[i] if ops[i] == "+" else -xs[i]
        e = str(xs[0]) + "".join(f" {o} {x}" for o, x in zip(ops[1:], xs[1:]))
        return "chain" + e, (e, xs, ops)
    e, xs, ops = c.draw(make)
    total, lines = xs[0], []
    for o, x in zip(ops[1:], xs[1:]):
        total, text = _line(o, total, x)
        lines.append(text)
    t, ask = c.phr(CHAIN)
    return c.number(t, ask.format(e=e), total, "\n".join(lines), "medium" if len(xs) < 5 else "hard")


SEQ = Pool("sequence", ["What comes next: {s}?", "Continue the sequence: {s}, ...", "What is the next number in {s}?", "Find the next term: {s}",
                        "{s}, ? What number follows?"],
           ["Which number follows in the sequence {s}?", "Give the term after the last one: {s}.", "Extend by one number: {s}."])


@family("arithmetic", "sequence", 1.5)
def sequence(c):
    def make():
        n, kind = c.int(4, 5), c.int(0, 3)
        if kind == 0:
            a, d = c.int(1, 60), c.int(2, 15)
            xs = [a + d * i for i in range(n + 1)]
        elif kind == 1:
            d = c.int(2, 12)
            a = c.int(d * 6, 150)
            xs = [a - d * i for i in range(n + 1)]
        elif kind == 2:
            a, d = c.int(1, 15), c.int(2, 5)
            xs = [a * d ** i for i in range(n)]
        else:
            a, d = c.int(1, 20), c.int(1, 6)
            xs = [a]
            for i in range(n):
                xs.append(xs[-1] + d + i)
        return "seq" + str(xs), (kind, xs)
    kind, xs = c.draw(make)
    s, nxt = xs[:-1], xs[-1]
    t, ask = c.phr(SEQ)
    if kind == 2:
        k = xs[1] // xs[0]
        think = f"{s[1]} / {s[0]} = {k}, {s[2]} / {s[1]} = {k}. Each term is times {k}.\n{s[-1]} * {k} = {nxt}"
    elif kind == 3:
        ds = [b - a for a, b in zip(s, s[1:])]
        think = f"Differences: {', '.join(map(str, ds))}. The next difference is {ds[-1] + 1}.\n{s[-1]} + {ds[-1] + 1} = {nxt}"
    else:
        d = xs[1] - xs[0]
        think = f"{s[1]} - {s[0]} = {d}, {s[2]} - {s[1]} = {d}. Each step is {'+' if d > 0 else '-'}{abs(d)}.\n{s[-1]} {'+' if d > 0 else '-'} {abs(d)} = {nxt}"
    return c.number(t, ask.format(s=", ".join(map(str, s))), nxt, think, ("easy", "easy", "medium", "medium")[kind])


PARITY = Pool("parity", ["Is {a} even or odd?", "Tell me whether {a} is even or odd.", "{a}: even or odd?", "Is the number {a} odd or even?"],
              ["Would you call {a} even or odd?", "State if {a} is even or odd.", "Even or odd: {a}?"])


@family("arithmetic", "parity", 0.6)
def parity(c):
    def make():
        a = c.int(10, 99999)
        return f"par{a}", a
    a = c.draw(make)
    t, ask = c.phr(PARITY)
    v = "odd" if a % 2 else "even"
    return c.item(t, ask.format(a=a), f"The last digit of {a} is {a % 10}, which is {v}.", f"{a} is {v}.",
                  {"kind": "contains", "any": [v], "none": ["even" if v == "odd" else "odd"]})


POWER = Pool("power", ["What is {a} squared?", "Compute {a}^2.", "What is {a} to the power of 2?", "Square {a}."],
             ["Give the square of {a}.", "{a} times itself is what?", "Raise {a} to the power 2."])


@family("arithmetic", "square", 0.8)
def square(c):
    def make():
        a = c.int(3, 99)
        return f"sq{a}", a
    a = c.draw(make)
    t, ask = c.phr(POWER)
    v, think = steps.mul(a, a)
    return c.number(t, ask.format(a=a), v, think, "easy" if a < 20 else "medium")
