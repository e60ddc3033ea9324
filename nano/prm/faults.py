"""Column calculations with exactly one wrong step.

The item is made twice from one seed; the second time one of the column calculations makes one mistake (a digit miscopied, a
carry dropped or invented, the wrong operator, a wrong sum), and the generator itself computes everything that follows from it.
The first line that differs from the correct solution is the wrong step. Mistakes of other kinds are in `slips`.
"""
import contextlib
import re

LEAVES = ("add", "sub", "mul1", "div")


def other_digit(r, d):
    return (d + r.choice((1, 1, 2, 3, 5, 7, 9))) % 10


def add(a, b, r):
    x, y = str(a)[::-1], str(b)[::-1]
    n = max(len(x), len(y))
    if a < 10 and b < 10:
        kind = r.randrange(3)
        v = abs(a - b) if kind == 0 else a + b + r.choice((-1, 1)) if kind == 1 else a + b + 10
        return v, f"{a} + {b} = {v}"
    at, kind = r.randrange(n), r.choice(("digit", "sum", "carry", "operator", "copy"))
    out, carry, lines = "", 0, []
    for i in range(n):
        p, q = int(x[i]) if i < len(x) else 0, int(y[i]) if i < len(y) else 0
        here = i == at
        if here and kind == "digit":
            p = other_digit(r, p)
        if here and kind == "carry":
            carry = 1 - carry
        s = p + q + carry
        if here and kind == "sum":
            s = max(0, s + r.choice((-2, -1, 1, 2)))
        if here and kind == "operator":
            s = abs(p - q) + carry
        out = str(s % 10) + (out if not (here and kind == "copy" and out) else str(other_digit(r, int(out[0]))) + out[1:])
        lines.append(f"{p} + {q}" + (" + 1" if carry else "") + f" = {s}" + (", carry 1" if s > 9 else "") + f": {out}")
        carry = 1 if s > 9 else 0
    if carry:
        out = "1" + out
        lines.append(f"carry 1: {out}")
    return int(out), f"{a} + {b}\n" + "\n".join(lines)


def sub(a, b, r):
    if b > a:
        d, text = sub(b, a, r)
        return -d, f"{b} is larger than {a}, so the result is negative.\n{text}\nnegative: -{d}"
    if a < 20 and b < 10:
        v = a + b if r.random() < 0.4 else max(0, a - b + r.choice((-2, -1, 1, 2)))
        return v, f"{a} - {b} = {v}"
    x, y = str(a)[::-1], str(b)[::-1]
    at, kind = r.randrange(len(x)), r.choice(("digit", "sum", "borrow", "operator", "copy"))
    out, borrow, lines = "", 0, []
    for i in range(len(x)):
        p, q = int(x[i]), int(y[i]) if i < len(y) else 0
        here = i == at
        if here and kind == "digit":
            p = other_digit(r, p)
        if here and kind == "borrow":
            borrow = 1 - borrow
        d = p - q - borrow
        if here and kind == "sum":
            d = max(-9, min(9, d + r.choice((-2, -1, 1, 2))))
        if here and kind == "operator":
            d = p + q - borrow if p + q < 10 else q - p
        out = str(d % 10) + (out if not (here and kind == "copy" and out) else str(other_digit(r, int(out[0]))) + out[1:])
        lines.append(f"{p} - {q}" + (" - 1" if borrow else "") + f" = {d}" + (f", borrow, {d} + 10 = {d + 10}" if d < 0 else "") + f": {out}")
        borrow = 1 if d < 0 else 0
    res = out.lstrip("0") or "0"
    if res != out:
        lines.append(f"so {res}")
    return int(res), f"{a} - {b}\n" + "\n".join(lines)


def mul1(a, d, r):
    if a < 13 or d < 2 or a % 10 == 0:
        v = a + d if r.random() < 0.3 else max(0, a * d + r.choice((-10, -1, 1, 10, a, -a, d, -d)))
        return v, f"{a} * {d} = {v}"
    digits = str(a)[::-1]
    at, kind = r.randrange(len(digits)), r.choice(("digit", "product", "carry", "operator", "copy"))
    out, carry, lines = "", 0, []
    for i, c in enumerate(digits):
        c, here = int(c), i == at
        if here and kind == "digit":
            c = other_digit(r, c)
        if here and kind == "carry":
            carry = 0 if carry else r.randint(1, 3)
        s = c * d + carry
        if here and kind == "product":
            s = max(0, s + r.choice((-10, -d, -1, 1, d, 10)))
        if here and kind == "operator":
            s = c + d + carry
        out = str(s % 10) + (out if not (here and kind == "copy" and out) else str(other_digit(r, int(out[0]))) + out[1:])
        lines.append(f"{c} * {d}" + (f" + {carry}" if carry else "") + f" = {s}" + (f", carry {s // 10}" if s > 9 else "") + f": {out}")
        carry = s // 10
    if carry:
        out = str(carry) + out
        lines.append(f"carry {carry}: {out}")
    res = out.lstrip("0") or "0"
    if res != out:
        lines.append(f"so {res}")
    return int(res), f"{a} * {d}\n" + "\n".join(lines)


def div(a, b, r):
    n = max(1, len(str(a)) - len(str(b)) + 1)
    at, kind = r.randrange(n), r.choice(("quotient", "product", "left", "digit"))
    rest, q, lines, row = 0, "", [], 0
    for c in str(a):
        rest = rest * 10 + int(c)
        d = rest // b
        if not q and not d:
            continue
        if row == at and kind == "digit":
            rest = rest // 10 * 10 + other_digit(r, rest % 10)
            d = rest // b
        if row == at and kind == "quotient":
            d = d - 1 if d and r.random() < 0.6 else d + 1
        d = min(d, 9) if q else d
        product = d * b + (r.choice((-10, -1, 1, 10, b)) if row == at and kind == "product" and d else 0)
        left = max(0, rest - product + (r.choice((-1, 1, 2)) if row == at and kind == "left" else 0))
        q += str(d)
        lines.append(f"{rest} / {b} = {d}" + (f", {d} * {b} = {product}" if d else "") + f", left {left}: {q}")
        rest, row = left, row + 1
    if not q:
        q, lines = "1", [f"{a} is smaller than {b}: 1"]
    return int(q), f"{a} / {b}\n" + "\n".join(lines) + (f"\nremainder {rest}" if rest else "")


FAULTY = {"add": add, "sub": sub, "mul1": mul1, "div": div}


@contextlib.contextmanager
def broken(modules, at, r):
    """Within: the `at`-th column calculation goes wrong (None: none does). Yields the list of the calls made."""
    calls = []
    kept = [(m, n, getattr(m, n)) for m in modules for n in (*LEAVES, "mul") if hasattr(m, n)]

    def leaf(name, right):
        def run(a, b):
            calls.append(name)
            return FAULTY[name](a, b, r) if len(calls) - 1 == at else right(a, b)
        return run

    def product(right):
        """Long multiplication returns what its own lines say."""
        def run(a, b):
            before = len(calls)
            value, text = right(a, b)
            hit = at is not None and before <= at < len(calls)
            return int(re.findall(r"\d+", text)[-1]) if hit else value, text
        return run
    try:
        for m, n, right in kept:
            setattr(m, n, product(right) if n == "mul" else leaf(n, right))
        yield calls
    finally:
        for m, n, right in kept:
            setattr(m, n, right)
