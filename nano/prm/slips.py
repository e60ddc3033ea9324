"""One wrong number, word, fact, sign, unit, choice or argument put into a right solution.

What is replaced follows into later lines and the answer, mostly: people and models carry their mistakes on. The exact check of the
task must refuse what comes out (`labels.wrong_item`).
"""
import re

from .faults import other_digit

_NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?![\w]|\.\d)")
_WORD = re.compile(r"(?<![\w])[A-Za-z][\w'-]{2,}(?![\w])")
_DULL = set("the and for with has are was were not from into that this says said text source number name what which yes but its than then are all out".split())


def _other_number(r, s):
    if "." in s:
        v = f"{max(0.0, float(s) + r.choice((-1, -0.5, 0.5, 1, 2))):.{len(s.split('.')[1])}f}"
    else:
        n = int(s)
        kinds = [n + 1, max(0, n - 1), n + 10, max(0, n - 10), n + r.randint(2, 9), n * 2]
        if len(s) > 1:
            i = r.randrange(len(s) - 1)
            kinds += [int(s[:i] + s[i + 1] + s[i] + s[i + 2:])] * 2
            i = r.randrange(len(s))
            kinds += [int(s[:i] + str(other_digit(r, int(s[i]))) + s[i + 1:])] * 3
        v = str(r.choice(kinds))
    return v


def _swap(text, old, new):
    return re.sub(r"(?<![\w.])" + re.escape(old) + r"(?![\w])", lambda _: new, text)


def text_fault(thought, answer, asked, r):
    """(thought, answer) with one number or word wrong from some line on; None when there is nothing to break."""
    lines = thought.split("\n") if thought.strip() else []
    at = r.randrange(len(lines) + 1)
    tail = [*lines[at:], answer]
    for _ in range(6):
        target = tail[0]
        numbers = _NUMBER.findall(target)
        words = [w for w in _WORD.findall(target) if w.lower() not in _DULL]
        if numbers and (not words or r.random() < 0.6):
            old = r.choice(numbers)
            near = [x for x in _NUMBER.findall(asked) if x != old]
            new = r.choice(near) if near and r.random() < 0.4 else _other_number(r, old)
        elif words:
            old = r.choice(words)
            same = [w for w in _WORD.findall(asked) if w[0].isupper() == old[0].isupper() and w != old and w.lower() not in _DULL]
            if not same:
                continue
            new = r.choice(same)
        else:
            continue
        if new == old:
            continue
        changed = [_swap(t, old, new) for t in tail] if r.random() < 0.85 else [_swap(tail[0], old, new), *tail[1:]]
        if changed != tail:
            return "\n".join([*lines[:at], *changed[:-1]]), changed[-1]
    return None


def answer_fault(item, r):
    """A wrong final answer to a right thought: another letter, a swapped, dropped or repeated element, a changed number or word."""
    answer, kind = item["answer"], item["check"]["kind"]
    asked = item["messages"][-1].get("content", "")
    if kind == "choice":
        return _swap(answer, item["check"]["value"], r.choice([x for x in item["check"]["among"] if x != item["check"]["value"]]))
    parts = answer.split(", ")
    if kind == "list" and len(parts) > 1 and r.random() < 0.8:
        i = r.randrange(len(parts))
        how = r.randrange(3)
        if how == 0 and item["check"].get("ordered", True):
            j = (i + 1) % len(parts)
            parts[i], parts[j] = parts[j], parts[i]
        elif how == 1:
            del parts[i]
        else:
            parts.insert(r.randrange(len(parts) + 1), parts[i])
        return ", ".join(parts)
    words = answer.split()
    if words and kind == "exact" and item["check"]["value"].strip(".").lower() in ("yes", "no"):
        return {"yes": "No.", "no": "Yes."}[item["check"]["value"].strip(".").lower()]
    if kind == "code" and r.random() < 0.6:
        swaps = [("+", "-"), ("-", "+"), ("*", "+"), ("<", ">"), (">", "<"), ("==", "!="), ("max", "min"), ("min", "max"), ("len", "sum"), ("0", "1"), ("1", "2"), ("True", "False"), ("False", "True")]
        r.shuffle(swaps)
        for a, b in swaps:
            if a in answer:
                return answer.replace(a, b, 1)
    if len(answer) < 24 and kind in ("exact", "code", "contains") and r.random() < 0.5 and len(answer) > 2:
        i = r.randrange(len(answer) - 1)
        return answer[:i] + answer[i + 1] + answer[i] + answer[i + 2:] if r.random() < 0.5 else answer[:i] + answer[i + 1:]
    got = text_fault("", answer, asked, r)
    return got[1] if got else None


def call_fault(item, r):
    """A wrong tool call: another function of the list, or one argument changed or left out."""
    calls = [{"name": c.get("function", c)["name"], "arguments": dict(c.get("function", c)["arguments"])} for c in item["tool_calls"]]
    call = r.choice(calls)
    names = [t["function"]["name"] for t in item.get("tools") or [] if t["function"]["name"] != call["name"]]
    if names and (r.random() < 0.4 or not call["arguments"]):
        call["name"] = r.choice(names)
        return calls
    if not call["arguments"]:
        return None
    key = r.choice(list(call["arguments"]))
    v = call["arguments"][key]
    asked = item["messages"][-1].get("content", "")
    if r.random() < 0.2:
        del call["arguments"][key]
    elif isinstance(v, bool):
        call["arguments"][key] = not v
    elif isinstance(v, (int, float)):
        new = _other_number(r, str(v))
        call["arguments"][key] = float(new) if "." in new else int(new)
    else:
        got = text_fault("", str(v), asked, r)
        words = [w for w in _WORD.findall(asked) if w != v]
        if not got and not words:
            return None
        call["arguments"][key] = got[1] if got else r.choice(words)
    return calls


def value_of(check):
    """What the exact check looks for, as text; None where it is not one piece of text."""
    if check["kind"] in ("number", "exact", "code", "choice"):
        return str(check["value"])
    return check["any"][0] if check["kind"] == "contains" else None


def fact_fault(item, other, r):
    """(thought, answer) with the value of another item of the family in the place of the right one, from the line on where it first
    stands: a wrong fact that is well said."""
    old, new = value_of(item["check"]), value_of(other["check"])
    if not old or not new or old == new:
        return None
    thought, answer = item["think"], item["answer"]
    if item["check"]["kind"] == "choice":
        wrong = r.choice([x for x in item["check"]["among"] if x != old])
        return _swap(thought, f"option {old}", f"option {wrong}"), _swap(answer, old, wrong)
    return _swap(thought, old, new), _swap(answer, old, new)


def sign_fault(item, r):
    """(thought, answer) with a sign lost or added."""
    thought, answer = item["think"], item["answer"]
    value = str(item["check"].get("value", ""))
    if not re.fullmatch(r"-?[\d.]+", value):
        return None
    if value.startswith("-"):
        return re.sub(r"(?<!\d )-(?=\d+$)", "", thought, flags=re.M) if r.random() < 0.5 else thought, answer.replace(value, value[1:])
    lines = thought.split("\n")
    if r.random() < 0.5:
        lines[-1] = re.sub(r"(?<=[=:] )" + re.escape(value) + r"$", "-" + value, lines[-1])
    return "\n".join(lines), _swap(answer, value, "-" + value)


def scale_fault(item, r):
    """(thought, answer) with a factor of ten too much or too little, carried to the result: a conversion gone wrong."""
    thought, value = item["think"], str(item["check"].get("value", ""))
    factors = [x for x in _NUMBER.findall(thought) if re.fullmatch(r"(10|60|24|7|12)0*", x) and x != value]
    if item["check"]["kind"] != "number" or not re.fullmatch(r"\d+", value):
        return None
    more = r.random() < 0.5 or int(value) % 10
    shift = lambda s: s + "0" if more else s[:-1]
    text, answer = _swap(thought, value, shift(value)), _swap(item["answer"], value, shift(value))
    factor = r.choice(factors) if factors else None
    if factor and (more or factor.endswith("0")):
        text = _swap(text, factor, shift(factor))
    return text, answer
