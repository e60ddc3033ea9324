"""Python: what a program prints (found by running it), one-function answers, and bugs to repair by choice."""

import contextlib
import io
import re

from .core import Pool, family
from .lists import spelled
from .names import ANIMALS, PEOPLE, THINGS

VARS = {"train": ["a b c", "x y z", "n m k", "p q r", "i j total", "u v w", "left right out", "first second third", "num step res"],
        "slice": ["alpha beta gamma", "s t d"], "golden": ["one two three", "g h f"], "week": ["low high mid", "e o l"]}
FUNCS = {"train": ["f", "g", "calc", "work", "apply", "run", "step", "change", "compute", "process"], "slice": ["func", "solve"],
         "golden": ["go", "convert"], "week": ["h", "handle"]}

PRINTS = Pool("prints", ["What does this Python code print?\n{p}", "What is the output of this program?\n{p}", "Give the output:\n{p}",
                         "{p}\nWhat is printed?", "Run this in your head. What does it print?\n{p}", "What will Python print here?\n{p}"],
              ["Predict the output of this code.\n{p}", "{p}\nWhat does running this show?", "Which text does this program write?\n{p}",
               "State what this Python program outputs.\n{p}", "{p}\nGive the printed result.", "What appears on the screen?\n{p}"])


def run(program):
    """What a generated program prints; the program text is ours, so it runs in this process with few builtins."""
    out = io.StringIO()
    safe = {"print": print, "range": range, "len": len, "sum": sum, "max": max, "min": min, "sorted": sorted, "str": str, "int": int,
            "abs": abs, "list": list, "enumerate": enumerate, "reversed": reversed, "zip": zip, "any": any, "all": all, "set": set}
    with contextlib.redirect_stdout(out):
        exec(program, {"__builtins__": safe})
    return out.getvalue().strip()


def _expr(c, A, B, C):
    x, y, z = c.int(2, 30), c.int(2, 12), c.int(2, 20)
    form = c.int(0, 3)
    if form == 0:
        return f"{A} = {x}\n{B} = {y}\n{C} = {A} * {B}\nprint({C} + {z})", f"{A} = {x}, {B} = {y}. {C} = {x} * {y} = {x * y}. {x * y} + {z} = {x * y + z}."
    if form == 1:
        return f"{A} = {x}\n{A} = {A} + {y}\n{B} = {A} - {z}\nprint({B})", f"{A} = {x}. {A} = {x} + {y} = {x + y}. {B} = {x + y} - {z} = {x + y - z}."
    if form == 2:
        return f"{A} = {x}\n{B} = {y}\n{A}, {B} = {B}, {A}\nprint({A} - {B})", f"After the swap {A} = {y}, {B} = {x}. {y} - {x} = {y - x}."
    return f"{A} = {x * 3}\n{B} = {y}\nprint({A} // {B}, {A} % {B})", f"{x * 3} // {y} = {x * 3 // y}, {x * 3} % {y} = {x * 3 % y}."


def _loop(c, A, B, C):
    form = c.int(0, 3)
    n, k = c.int(3, 6), c.int(2, 9)
    if form == 0:
        t, ls = 0, []
        for i in range(n):
            t += i * k
            ls.append(f"{A}={i}: {B}={t}")
        return f"{B} = 0\nfor {A} in range({n}):\n    {B} += {A} * {k}\nprint({B})", ", ".join(ls) + "."
    if form == 1:
        s = c.int(1, 5)
        t, ls = s, []
        for i in range(n):
            t += k
            ls.append(str(t))
        return f"{B} = {s}\nfor {A} in range({n}):\n    {B} = {B} + {k}\nprint({B})", f"{B}: {s}, " + ", ".join(ls) + "."
    if form == 2:
        x = c.int(15, 60)
        t, ls = x, []
        while t > k:
            t -= k
            ls.append(str(t))
        return f"{A} = {x}\nwhile {A} > {k}:\n    {A} -= {k}\nprint({A})", f"{A}: {x}, " + ", ".join(ls) + "."
    lo = c.int(1, 6)
    xs = list(range(lo, lo + n * 2, 2))
    return f"for {A} in range({lo}, {lo + n * 2}, 2):\n    print({A}, end=' ')", f"{lo} and steps of 2, below {lo + n * 2}: {' '.join(map(str, xs))}."


def _string(c, A, B, C):
    w = spelled(c)
    form = c.int(0, 6)
    if form == 0:
        return f"{A} = '{w}'\nprint({A}[::-1])", f"{' '.join(w)} reversed: {' '.join(w[::-1])}."
    if form == 1:
        i = c.int(0, min(3, len(w) - 1))
        return f"{A} = '{w}'\nprint({A}[{i}])", " ".join(f"{j}:{ch}" for j, ch in enumerate(w[:i + 1])) + "."
    if form == 2:
        j = c.int(1, len(w))
        return f"{A} = '{w}'\nprint({A}[:{j}])", f"The first {j} letters: {' '.join(w[:j])}."
    if form == 3:
        k = c.int(2, 3)
        return f"{A} = '{w[:3]}'\nprint({A} * {k})", f"{w[:3]} {k} times."
    if form == 4:
        return f"{A} = '{w}'\nprint({A}.upper())", f"{w} in capitals."
    if form == 5:
        v = c.of(ANIMALS) if c.train else c.of(THINGS)
        return f"{A} = '{w}'\n{B} = '{v}'\nprint(len({A}) + len({B}))", f"{w} has {len(w)}, {v} has {len(v)}. {len(w)} + {len(v)} = {len(w) + len(v)}."
    x, y = c.choice(w), c.choice("xyz-_")
    return f"{A} = '{w}'\nprint({A}.replace('{x}', '{y}'))", f"Each {x} becomes {y}: {' '.join(w.replace(x, y))}."


def _list(c, A, B, C):
    xs = [c.int(1, 30) for _ in range(c.int(3, 5))]
    form = c.int(0, 7)
    k = c.int(1, 20)
    if form == 0:
        return f"{A} = {xs}\n{A}.append({k})\nprint(len({A}))", f"{len(xs)} items and 1 more: {len(xs) + 1}."
    if form == 1:
        return f"{A} = {xs}\nprint({A}[-1] + {A}[0])", f"last {xs[-1]}, first {xs[0]}: {xs[-1]} + {xs[0]} = {xs[-1] + xs[0]}."
    if form == 2:
        return f"{A} = {xs}\nprint(sorted({A}))", f"In order: {', '.join(map(str, sorted(xs)))}."
    if form == 3:
        return f"{A} = {xs}\n{B} = [{C} * 2 for {C} in {A}]\nprint({B})", ", ".join(f"{x} * 2 = {2 * x}" for x in xs) + "."
    if form == 4:
        return f"{A} = {xs}\nprint([{C} for {C} in {A} if {C} > {k}])", ", ".join(f"{x} {'yes' if x > k else 'no'}" for x in xs) + "."
    if form == 5:
        return f"{A} = {xs}\n{A}.pop()\nprint(max({A}))", f"Without {xs[-1]}: {', '.join(map(str, xs[:-1]))}. The maximum is {max(xs[:-1])}."
    if form == 6:
        t, ls = 0, []
        for x in xs:
            t += x
            ls.append(str(t))
        return f"{A} = {xs}\n{B} = 0\nfor {C} in {A}:\n    {B} += {C}\nprint({B})", f"{B}: " + ", ".join(ls) + "."
    i = c.int(1, len(xs) - 1)
    return f"{A} = {xs}\nprint({A}[{i}:])", f"From index {i}: {', '.join(map(str, xs[i:]))}."


def _branch(c, A, B, C):
    x, y = c.int(1, 50), c.int(5, 45)
    w1, w2 = c.some(THINGS, 2)
    form = c.int(0, 2)
    if form == 0:
        return f"{A} = {x}\nif {A} > {y}:\n    print('{w1}')\nelse:\n    print('{w2}')", f"{x} > {y} is {x > y}, so {w1 if x > y else w2}."
    if form == 1:
        k = c.int(2, 5)
        return f"{A} = {x}\nif {A} % {k} == 0:\n    print('{w1}')\nelse:\n    print('{w2}')", f"{x} % {k} = {x % k}, so {w1 if x % k == 0 else w2}."
    hi = y + c.int(3, 15)
    w3 = c.of(PEOPLE)
    v = w1 if x < y else w2 if x < hi else w3
    return f"{A} = {x}\nif {A} < {y}:\n    print('{w1}')\nelif {A} < {hi}:\n    print('{w2}')\nelse:\n    print('{w3}')", \
        f"{x} < {y} is {x < y}" + ("" if x < y else f", {x} < {hi} is {x < hi}") + f", so {v}."


def _function(c, A, B, C):
    f = c.choice(FUNCS[c.split])
    x, y, k = c.int(2, 20), c.int(2, 12), c.int(2, 9)
    form = c.int(0, 3)
    if form == 0:
        return f"def {f}({A}):\n    return {A} * {k} + {y}\n\nprint({f}({x}))", f"{x} * {k} = {x * k}. {x * k} + {y} = {x * k + y}."
    if form == 1:
        return f"def {f}({A}, {B}):\n    return {A} - {B}\n\nprint({f}({y}, {x}))", f"{A} = {y}, {B} = {x}: {y} - {x} = {y - x}."
    if form == 2:
        return f"def {f}({A}):\n    return {A} + {k}\n\nprint({f}({f}({x})))", f"{x} + {k} = {x + k}. {x + k} + {k} = {x + 2 * k}."
    return f"def {f}({A}, {B}={k}):\n    return {A} * {B}\n\nprint({f}({x}) + {f}({x}, 2))", f"{x} * {k} = {x * k}. {x} * 2 = {2 * x}. {x * k} + {2 * x} = {x * k + 2 * x}."


def _dict(c, A, B, C):
    ks = c.some(THINGS, 3)
    vs = [c.int(1, 40) for _ in ks]
    d = "{" + ", ".join(f"'{k}': {v}" for k, v in zip(ks, vs)) + "}"
    i, j = c.sample(range(3), 2)
    form = c.int(0, 3)
    if form == 0:
        return f"{A} = {d}\nprint({A}['{ks[i]}'])", f"{ks[i]} is {vs[i]}."
    if form == 1:
        return f"{A} = {d}\nprint({A}['{ks[i]}'] + {A}['{ks[j]}'])", f"{vs[i]} + {vs[j]} = {vs[i] + vs[j]}."
    if form == 2:
        n = c.int(1, 9)
        return f"{A} = {d}\n{A}['{ks[i]}'] += {n}\nprint({A}['{ks[i]}'])", f"{vs[i]} + {n} = {vs[i] + n}."
    other = c.of(PEOPLE)
    return f"{A} = {d}\nprint({A}.get('{other}', {j}))", f"{other} is not a key, so the default {j}."


def _boolean(c, A, B, C):
    x, y, k = c.int(1, 30), c.int(1, 30), c.int(1, 30)
    form = c.int(0, 2)
    if form == 0:
        return f"{A} = {x}\n{B} = {y}\nprint({A} > {B} and {A} > {k})", f"{x} > {y} is {x > y}, {x} > {k} is {x > k}."
    if form == 1:
        return f"{A} = {x}\nprint({A} < {k} or {A} == {y})", f"{x} < {k} is {x < k}, {x} == {y} is {x == y}."
    return f"{A} = {x}\nprint(not {A} >= {y})", f"{x} >= {y} is {x >= y}."


SHAPES = {"expr": _expr, "loop": _loop, "string": _string, "list": _list, "branch": _branch, "function": _function, "dict": _dict, "boolean": _boolean}


def _prints(c, shape):
    def make():
        program, think = SHAPES[shape](c, *c.choice(VARS[c.split]).split())
        return "py" + program, (program, think)
    program, think = c.draw(make)
    out = run(program)
    t, ask = c.phr(PRINTS)
    block = f"```python\n{program}\n```" if c.chance(0.8) else program
    return c.item(f"{t}.{shape}", ask.format(p=block), think, out, {"kind": "code", "value": out},
                  "medium" if shape in ("loop", "list", "function") else "easy")


for _name in SHAPES:
    family("code", f"prints_{_name}", 1.4)(lambda c, shape=_name: _prints(c, shape))


# (name, parameters, description, expression); {k} is a number, drawn by split together with the function's name
ONE_LINERS = [
    ("add", "x", "returns x plus {k}", "x + {k}"), ("subtract", "x", "returns x minus {k}", "x - {k}"),
    ("times", "x", "returns x times {k}", "x * {k}"), ("divide", "x", "returns x divided by {k}", "x / {k}"),
    ("power", "x", "returns x to the power of {k}", "x ** {k}"), ("mod", "x", "returns the remainder of x divided by {k}", "x % {k}"),
    ("over", "x", "returns whether x is greater than {k}", "x > {k}"), ("under", "x", "returns whether x is less than {k}", "x < {k}"),
    ("multiple", "x", "returns whether x is divisible by {k}", "x % {k} == 0"), ("first", "items", "returns the first {k} items of a list", "items[:{k}]"),
    ("last", "items", "returns the last {k} items of a list", "items[-{k}:]"), ("skip", "items", "returns the list without its first {k} items", "items[{k}:]"),
    ("repeat", "s", "returns the string s repeated {k} times", "s * {k}"), ("at", "items", "returns the item at index {k}", "items[{k}]"),
    ("every", "items", "returns every {k}th item of a list", "items[::{k}]"), ("bigger", "items", "returns the items greater than {k}", "[x for x in items if x > {k}]"),
    ("scaled", "items", "returns a list with each item times {k}", "[x * {k} for x in items]"), ("shifted", "items", "returns a list with {k} added to each item", "[x + {k} for x in items]"),
    ("long_words", "words", "returns the words longer than {k} letters", "[w for w in words if len(w) > {k}]"),
    ("count_of", "items", "returns how often {k} occurs in a list", "items.count({k})"), ("has", "items", "returns whether {k} is in a list", "{k} in items"),
    ("limit", "x", "returns x but at most {k}", "min(x, {k})"), ("floor_at", "x", "returns x but at least {k}", "max(x, {k})"),
    ("sum_to", "", "returns the sum of the numbers from 1 to {k}", "sum(range(1, {k} + 1))"), ("linear", "x", "returns {k} times x plus 1", "{k} * x + 1"),
    ("floor_div", "x", "returns x divided by {k}, rounded down", "x // {k}"), ("sum_big", "items", "returns the sum of the items greater than {k}", "sum(x for x in items if x > {k})"),
    ("pad", "s", "returns the string s padded with spaces on the right to width {k}", "s.ljust({k})"), ("split_at", "s", "returns the string s from index {k} on", "s[{k}:]"),
    ("nums", "", "returns the list of numbers from 0 to below {k}", "list(range({k}))"),
]
WRITE = Pool("write_function", ["Write a Python function `{f}({a})` that {d}.", "Write a one-line Python function named {f} with arguments ({a}) that {d}.",
                                "Give me a Python function {f}({a}) which {d}.", "Define {f}({a}) in Python. It {d}.", "In Python, write {f}({a}): it {d}."],
             ["I need a Python function {f}({a}) that {d}.", "Code a Python function called {f}({a}); it {d}.", "Please implement {f}({a}) in Python so that it {d}.",
              "How would you write a Python function {f}({a}) that {d}?", "Create the function {f}({a}) in Python. It {d}.", "Show a short Python function {f}({a}) that {d}."])


@family("code", "write_function", 3)
def write_function(c):
    def make():
        i, k = c.int(0, len(ONE_LINERS) - 1), c.int(2, 60)
        return f"wf{i},{k}", (ONE_LINERS[i], k)
    (name, args, desc, expr), k = c.draw(make)
    name = c.choice((name, name + "_" + str(k), c.choice(FUNCS[c.split])))
    e = expr.format(k=k)
    t, ask = c.phr(WRITE)
    code = f"def {name}({args}):\n    return {e}"
    tight = re.sub(r" ([-+*/%<>=]+) ", r"\1", e)
    also = [f"def {name}({args}):\n    return {tight}", f"def {name}({args}):\n    return ({e})"]
    return c.item(t, ask.format(f=name, a=args, d=desc.format(k=k)), "", f"```python\n{code}\n```", {"kind": "code", "value": code, "also": also}, "medium", max_tokens=160)


# (program with the bug, line that repairs it, wrong repairs, what is wrong)
BUGS = [
    ("def mean({v}):\n    return sum({v}) / {k}", "return sum({v}) / len({v})", ["return len({v}) / sum({v})", "return sum({v}) * len({v})", "return sum({v})"],
     "The mean of the list {v}", "The mean divides by the number of items, not by {k}."),
    ("def is_even({v}):\n    return {v} % 2 == 1", "return {v} % 2 == 0", ["return {v} / 2 == 0", "return {v} % 1 == 0", "return {v} // 2 == 1"],
     "Whether {v} is even", "An even number leaves 0 when divided by 2."),
    ("def last({v}):\n    return {v}[len({v})]", "return {v}[-1]", ["return {v}[0]", "return {v}[1]", "return {v}[len({v}) + 1]"],
     "The last item of {v}", "The last index is len - 1, which is -1."),
    ("def count_up():\n    for {v} in range({k}):\n        print({v})", "for {v} in range(1, {k} + 1):", ["for {v} in range({k} + 1):", "for {v} in range(1, {k}):", "for {v} in range({k} - 1):"],
     "Print the numbers 1 to {k}", "range(1, n + 1) runs from 1 to n."),
    ("def larger({v}, w):\n    if {v} < w:\n        return {v}\n    return w", "if {v} > w:", ["if {v} == w:", "if {v} <= w:", "if w > {v}:"],
     "The larger of {v} and w", "The first is returned when it is greater."),
    ("def total({v}):\n    out = {k}\n    for x in {v}:\n        out += x\n    return out", "out = 0", ["out = 1", "out = []", "out = len({v})"],
     "The sum of the list {v}", "A sum starts at 0."),
    ("def shout({v}):\n    return {v}.lower()", "return {v}.upper()", ["return {v}.title()", "return {v}.strip()", "return upper({v})"],
     "The string {v} in capitals", "Capitals come from upper()."),
    ("def backwards({v}):\n    return {v}[::1]", "return {v}[::-1]", ["return {v}[:-1]", "return {v}[-1]", "return {v}[1::]"],
     "The string {v} reversed", "A slice with step -1 reverses."),
    ("def area({v}, h):\n    return {v} + h", "return {v} * h", ["return {v} / h", "return 2 * ({v} + h)", "return {v} - h"],
     "The area of a rectangle {v} by h", "The area is the product of the sides."),
    ("def square({v}):\n    return {v} * 2", "return {v} ** 2", ["return {v} ^ 2", "return 2 ** {v}", "return {v} + {v}"],
     "The square of {v}", "The square is the number to the power 2."),
    ("def positive({v}):\n    return [x for x in {v} if x < 0]", "return [x for x in {v} if x > 0]", ["return [x for x in {v} if x == 0]", "return [x > 0 for x in {v}]", "return [x for x in {v}]"],
     "The positive numbers of {v}", "Positive means greater than 0."),
    ("def product({v}):\n    out = 0\n    for x in {v}:\n        out *= x\n    return out", "out = 1", ["out = -1", "out = {v}", "out = []"],
     "The product of the list {v}", "A product starts at 1, else it stays 0."),
    ("def join_words({v}):\n    return '-'.join({v})", "return ' '.join({v})", ["return join(' ', {v})", "return {v}.join(' ')", "return ''.join({v})"],
     "The words of {v} with a space between", "The separator must be a space."),
    ("def to_minutes({v}):\n    return {v} / 60", "return {v} * 60", ["return {v} + 60", "return {v} * 100", "return {v} // 60"],
     "Hours {v} as minutes", "One hour has 60 minutes, so multiply."),
    ("def first_letter({v}):\n    return {v}[1]", "return {v}[0]", ["return {v}[-1]", "return {v}[:]", "return {v}(0)"],
     "The first letter of {v}", "Indexes start at 0."),
]
FIX = Pool("fix_bug", ["This function should give: {w}. It has a bug.\n{p}\nWhich line repairs it?", "{p}\nExpected: {w}. Which change fixes the bug?",
                       "The code below is wrong. It should compute: {w}.\n{p}\nChoose the right line."],
           ["Find the repair. Wanted: {w}.\n{p}", "{p}\nThis ought to return: {w}. Which line is correct?", "Which line makes this work? Goal: {w}.\n{p}"])
BUG_VARS = {"train": "xs n items s value data text a words num lst v".split(), "slice": ["arr", "obj"], "golden": ["seq", "inp"], "week": ["row", "val"]}


@family("code", "fix_bug", 1.5)
def fix_bug(c):
    bug, right, wrong, want, why = c.choice(BUGS)
    v, k = c.choice(BUG_VARS[c.split]), c.int(2, 30)
    put = lambda s: s.replace("{v}", v).replace("{k}", str(k))
    t, ask = c.phr(FIX)
    return c.choose(t, ask.format(w=put(want), p=f"```python\n{put(bug)}\n```"), put(right), [put(w) for w in wrong], put(why), "medium")


TYPES = [("int", ["{k}", "-{k}", "{k} + 1"]), ("float", ["{k}.5", "{k} / 2", "float({k})"]), ("str", ["'{k}'", "str({k})", "'{w}'", "'{w}' + '{k}'"]),
         ("bool", ["{k} > 3", "True", "not False", "{k} == 4"]), ("list", ["[{k}, 2]", "['{w}']", "list('{w}')"]), ("dict", ["{{'{w}': {k}}}"]),
         ("tuple", ["({k}, 1)", "('{w}', {k})"]), ("set", ["{{{k}, 1}}"])]
TYPE = Pool("type_of", ["What is the type of `{e}` in Python?", "In Python, which type has the value {e}?", "type({e}) is what?"],
            ["Name the Python type of `{e}`.", "Which Python type does {e} have?", "Of what type is `{e}` in Python?"])


@family("code", "type_of", 0.8)
def type_of(c):
    def make():
        name, forms = c.choice(TYPES)
        e = c.choice(forms).format(k=c.int(2, 99), w=c.of(THINGS))
        return "ty" + e, (name, e)
    name, e = c.draw(make)
    t, ask = c.phr(TYPE)
    return c.item(t, ask.format(e=e), "", name, {"kind": "exact", "value": name})
