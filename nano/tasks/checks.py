"""The checks that decide whether a reply is right: the reference for every other implementation.

Exact definitions, in words, are in nano/golden/README.md; vectors in nano/golden/checks.jsonl.
"""

import re
from decimal import Decimal, InvalidOperation

_NUMBER = re.compile(r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?")
_BULLET = re.compile(r"^(?:[-*•]\s+|\(?\d{1,3}[.)]\s+)")
_FENCE = re.compile(r"```[^\n`]*\n(.*?)```", re.S)


def visible(reply):
    """The reply after the thought: what follows the last `</think>`."""
    return reply.rsplit("</think>", 1)[-1]


def plain(text):
    """Trimmed, white space collapsed, case folded, one final full stop dropped."""
    text = " ".join(text.split()).casefold()
    return text[:-1].rstrip() if text.endswith(".") else text


def numbers(text):
    """Every number of the text in order, as Decimal.

    Digits, with `,ddd` groups when the number starts with one to three digits, then a decimal part.
    A minus directly before counts as a sign unless a letter, digit or closing bracket stands before it.
    """
    out = []
    for m in _NUMBER.finditer(text):
        at = m.start() - 1
        negative = at >= 0 and text[at] == "-" and not (at and (text[at - 1].isalnum() or text[at - 1] in ")]"))
        out.append(Decimal(("-" if negative else "") + m[0].replace(",", "")))
    return out


def words_in(text, phrase):
    """Whether the phrase occurs with no letter or digit touching a letter or digit of its ends."""
    text, phrase = " ".join(text.split()).casefold(), " ".join(phrase.split()).casefold()
    at = text.find(phrase)
    while at >= 0 and phrase:
        end = at + len(phrase)
        left = at == 0 or not (phrase[0].isalnum() and text[at - 1].isalnum())
        right = end == len(text) or not (phrase[-1].isalnum() and text[end].isalnum())
        if left and right:
            return True
        at = text.find(phrase, at + 1)
    return False


def first_choice(text, among):
    """The first letter of `among` that stands alone; None when there is none."""
    for m in re.finditer(r"[^\W_]+", text):
        if m[0] in among:
            return m[0]
    return None


def items_of(text):
    """Items split on commas and newlines: trimmed, bullet, numbering and final full stop dropped, case folded."""
    out = []
    for line in re.split(r"[,\n]", text):
        line = _BULLET.sub("", line.strip())
        line = plain(line)
        if line:
            out.append(line)
    return out


def same_json(a, b):
    """Equality of JSON values: numbers by value, strings trimmed and case folded, objects key by key."""
    if isinstance(a, bool) or isinstance(b, bool):
        return isinstance(a, bool) and isinstance(b, bool) and a == b
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        return Decimal(str(a)) == Decimal(str(b))
    if isinstance(a, str) and isinstance(b, str):
        return " ".join(a.split()).casefold() == " ".join(b.split()).casefold()
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same_json, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same_json(v, b[k]) for k, v in a.items())
    return a is None and b is None


def code_of(text):
    """The first fenced block, or the whole text; runs of white space become one space."""
    m = _FENCE.search(text)
    return " ".join((m[1] if m else text).split())


def _number(c, text):
    found = numbers(text)
    if not found:
        return False
    try:
        return abs(found[-1] - Decimal(c["value"])) <= Decimal(c.get("tolerance", "0"))
    except InvalidOperation:
        return False


def _tool(c, calls):
    return len(calls) == 1 and calls[0]["name"] == c["name"] and same_json(calls[0]["arguments"], c["arguments"])


def _list(c, text):
    got, want = items_of(text), [plain(v) for v in c["value"]]
    return got == want if c.get("ordered", True) else sorted(got) == sorted(want)


def check(item, reply, tool_calls=None):
    """Whether the reply (thought included or not) and its tool calls pass the item's check. `item` may be the check itself."""
    c = item["check"] if isinstance(item.get("check"), dict) else item
    calls, text, kind = tool_calls or [], visible(reply or ""), c["kind"]
    if kind == "tool":
        return _tool(c, calls)
    if calls:
        return False
    if kind == "number":
        return _number(c, text)
    if kind == "exact":
        return plain(text) == plain(c["value"])
    if kind == "contains":
        return any(words_in(text, p) for p in c["any"]) and not any(words_in(text, p) for p in c.get("none", []))
    if kind == "choice":
        return first_choice(text, c["among"]) == c["value"]
    if kind == "list":
        return _list(c, text)
    if kind == "code":
        return code_of(text) in {" ".join(v.split()) for v in [c["value"], *c.get("also", [])]}
    raise ValueError(f"unknown check kind {kind!r}: use number, exact, contains, choice, list, tool or code")
