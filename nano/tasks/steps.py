"""Worked steps of the four operations, digit by digit, as the thoughts of arithmetic items show them.

Every function returns (result, text). Each step carries the digits found so far, so that the
last line already holds the answer and nothing has to be remembered across lines.
"""


def add(a, b):
    """Column addition of two whole numbers >= 0, from the right."""
    if a < 10 and b < 10:
        return a + b, f"{a} + {b} = {a + b}"
    x, y = str(a)[::-1], str(b)[::-1]
    out, carry, lines = "", 0, []
    for i in range(max(len(x), len(y))):
        p, q = int(x[i]) if i < len(x) else 0, int(y[i]) if i < len(y) else 0
        s = p + q + carry
        out = str(s % 10) + out
        lines.append(f"{p} + {q}" + (" + 1" if carry else "") + f" = {s}" + (", carry 1" if s > 9 else "") + f": {out}")
        carry = s // 10
    if carry:
        out = "1" + out
        lines.append(f"carry 1: {out}")
    return a + b, f"{a} + {b}\n" + "\n".join(lines)


def sub(a, b):
    """Column subtraction; when b > a the difference is found and negated."""
    if b > a:
        d, text = sub(b, a)
        return -d, f"{b} is larger than {a}, so the result is negative.\n{text}\nnegative: -{d}"
    if a < 20 and b < 10:
        return a - b, f"{a} - {b} = {a - b}"
    x, y = str(a)[::-1], str(b)[::-1]
    out, borrow, lines = "", 0, []
    for i in range(len(x)):
        p, q = int(x[i]), int(y[i]) if i < len(y) else 0
        d = p - q - borrow
        head = f"{p} - {q}" + (" - 1" if borrow else "")
        out = str(d % 10) + out
        lines.append(f"{head} = {d}" + (f", borrow, {d} + 10 = {d + 10}" if d < 0 else "") + f": {out}")
        borrow = 1 if d < 0 else 0
    res = out.lstrip("0") or "0"
    if res != out:
        lines.append(f"so {res}")
    return a - b, f"{a} - {b}\n" + "\n".join(lines)


def mul1(a, d):
    """A number times one digit."""
    if a < 13 or d < 2:
        return a * d, f"{a} * {d} = {a * d}"
    if a % 10 == 0:  # the zeros are set aside and put back
        z = len(str(a)) - len(str(a).rstrip("0"))
        v, text = mul1(a // 10 ** z, d)
        return a * d, f"{text}\n{a} * {d} = {a * d}"
    out, carry, lines = "", 0, []
    for c in str(a)[::-1]:
        s = int(c) * d + carry
        out = str(s % 10) + out
        lines.append(f"{c} * {d}" + (f" + {carry}" if carry else "") + f" = {s}" + (f", carry {s // 10}" if s > 9 else "") + f": {out}")
        carry = s // 10
    if carry:
        out = str(carry) + out
        lines.append(f"carry {carry}: {out}")
    res = out.lstrip("0") or "0"
    if res != out:
        lines.append(f"so {res}")
    return a * d, f"{a} * {d}\n" + "\n".join(lines)


def mul(a, b):
    """Long multiplication: one line of digits for each digit of b, then the sums."""
    if a < 10 and b >= 10:
        a, b = b, a
    if b < 10 or (a < 13 and b < 13):
        return mul1(a, b) if b < 13 and (b < 10 or a < 13) else (a * b, f"{a} * {b} = {a * b}")
    lines, total = [], None
    for k, c in enumerate(str(b)[::-1]):
        d = int(c)
        if d == 0:
            continue
        p, text = mul1(a, d)
        lines.append(text)
        if k:
            lines.append(f"{a} * {d}{'0' * k} = {p}{'0' * k}")
        p *= 10 ** k
        if total is None:
            total = p
        else:
            total, text = add(total, p)
            lines.append(text)
    return a * b, "\n".join(lines)


def div(a, b):
    """Long division a / b with remainder: (quotient, text); the text ends with quotient and remainder."""
    rest, q, lines = 0, "", []
    for c in str(a):
        rest = rest * 10 + int(c)
        d = rest // b
        if not q and not d:
            continue
        q += str(d)
        lines.append(f"{rest} / {b} = {d}" + (f", {d} * {b} = {d * b}" if d else "") + f", left {rest - d * b}: {q}")
        rest -= d * b
    if not q:
        q, lines = "0", [f"{a} is smaller than {b}: 0"]
    return a // b, f"{a} / {b}\n" + "\n".join(lines) + (f"\nremainder {rest}" if rest else "")


def calc(op, a, b):
    """(result, text) of one operation written with its sign."""
    return {"+": add, "-": sub, "*": mul, "/": div}[op](a, b)
