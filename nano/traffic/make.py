"""Makes, or checks, the week's traffic.

usage: python3 -m traffic.make            the file again (same seed, same bytes)
       python3 -m traffic.make --check    the file against its pin, the exams and the rules of the README
"""
import argparse
import collections
import hashlib
import json
import os
import re
import sys

import tasks
from tasks import names, reading
from tasks.core import DOMAINS, FAMILIES, SPLITS, entities
from tasks.exam import items as exam_items, load as exam, prompt_key
from tasks.leaks import Index, prompt_of
from tasks.packed import pack

from .fresh import fresh_wordings

HERE = os.path.dirname(os.path.abspath(__file__))
FILE = os.path.join(HERE, "week.jsonl.gz")
PIN = FILE + ".sha256"
GOLDEN = os.path.join(HERE, "..", "golden")
NIGHTS, EACH, SEED = 7, 490, 71         # nights, items a night (70 of each domain)
DRAWS = 120                             # candidates drawn for one item of a family
FACTS = {"capital", "capital_of", "continent", "currency", "nationality", "country_domain", "country_area", "vendor"}   # real names, known by heart


def proper_names(split):
    """People, surnames, invented places and cities that belong to a split, lower case."""
    return {e.lower() for pool in (names.PEOPLE, names.SURNAMES, names.INVENTED, names.CITIES) for e in entities(split, pool)}


def things(split):
    """Things, colours, jobs and sights that belong to a split, lower case; being common words too, they are looked for in answers only."""
    return {e.lower() for pool in (names.THINGS, names.COLOURS, reading.JOBS, reading.LANDMARKS) for e in entities(split, pool)}


def words(value):
    return set(re.findall(r"[a-z]+", json.dumps(value, ensure_ascii=False).lower()))


def foreign(item, week):
    """Entities of an exam in an item, `week` being its (proper names, things)."""
    if item["family"] in FACTS:
        return set()
    text = words([item[k] for k in ("messages", "tools", "think", "answer", "tool_calls") if k in item])
    asked = words([item["check"][k] for k in ("value", "any", "arguments") if k in item["check"]])
    return week[0] & text | week[1] & asked


def candidates(family, n, index, week):
    """Different clean items of one family, those with the least used phrasing first."""
    got, seen = [], set()
    for it in tasks.generate("train", SEED, max(400, DRAWS * n), [family]):
        key = prompt_key(it)
        if key not in seen and index.find(prompt_of(it)) is None and not foreign(it, week):
            seen.add(key)
            got.append(it)
            if len(got) >= 12 * n:
                break
    used, out = collections.Counter(), []
    while len(out) < n and got:
        k = min(range(len(got)), key=lambda j: (used[got[j]["template"]], j))
        used[got[k]["template"]] += 1
        out.append(got.pop(k))
    return out


def week_items():
    """The items in order of nights; domains evenly, the families of a domain in turn."""
    index, week, out = Index([i for s in SPLITS[1:] for i in exam(GOLDEN, s)]), (proper_names("week"), things("week")), []
    by = {d: sorted(f for f in FAMILIES if FAMILIES[f][0] == d) for d in DOMAINS}
    per = EACH // len(DOMAINS)
    with fresh_wordings():
        pool = {f: candidates(f, -(-per * NIGHTS // len(fams)) + 2, index, week) for fams in by.values() for f in fams}
    for night in range(NIGHTS):
        today = []
        for d in DOMAINS:
            turn = night * per
            while sum(i["domain"] == d for i in today) < per:
                family = by[d][turn % len(by[d])]
                turn += 1
                if pool[family]:
                    today.append(pool[family].pop(0))
        for k, it in enumerate(sorted(today, key=lambda i: hashlib.sha256(f"{night} {i['id']}".encode()).hexdigest())):
            out.append({**it, "id": f"traffic-{night}-{k:03d}", "template": "fresh." + it["template"], "night": night})
    return out


def packed(items):
    """The file's bytes: JSON lines, gzip without name and time."""
    return pack("".join(json.dumps(i, ensure_ascii=False, separators=(",", ":")) + "\n" for i in items))


def read():
    """The items of the shipped file."""
    return exam_items(FILE)


def problems(items, data):
    """What is wrong with the file, as sentences; none when all is well."""
    out, exams = [], {s: exam(GOLDEN, s) for s in SPLITS[1:]}
    with open(PIN, encoding="ascii") as f:
        pin = f.read().split()[0]
    if hashlib.sha256(data).hexdigest() != pin:
        out.append("the file differs from its pin")
    count = collections.Counter((i["night"], i["domain"]) for i in items)
    if count != {(n, d): EACH // len(DOMAINS) for n in range(NIGHTS) for d in DOMAINS}:
        out.append("nights and domains are not even")
    if {i["family"] for i in items} != set(FAMILIES):
        out.append("a family is missing")
    if len({prompt_key(i) for i in items}) != len(items) or len({i["id"] for i in items}) != len(items):
        out.append("an item occurs twice")
    week, index = (proper_names("week"), things("week")), Index([i for items in exams.values() for i in items])
    templates = {i["template"] for items in exams.values() for i in items}
    for it in items:
        hit = index.find(prompt_of(it))
        if hit:
            out.append(f"{it['id']}: {hit[1]} with {hit[0]}")
        if foreign(it, week):
            out.append(f"{it['id']}: entities of the week exam: {sorted(foreign(it, week))}")
        if it["template"].removeprefix("fresh.") in templates:
            out.append(f"{it['id']}: template of an exam: {it['template']}")
        if not tasks.check(it, it["answer"], it.get("tool_calls")):
            out.append(f"{it['id']}: the reference reply fails its own check")
    return out


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--check", action="store_true")
    if not ap.parse_args().check:
        data = packed(week_items())
        with open(FILE, "wb") as f:
            f.write(data)
        with open(PIN, "w", encoding="ascii") as f:
            f.write(f"{hashlib.sha256(data).hexdigest()}  {os.path.basename(FILE)}\n")
    with open(FILE, "rb") as f:
        data = f.read()
    wrong = problems(read(), data)
    print("\n".join(wrong) or f"{NIGHTS * EACH} items, {len(data)} bytes: all is well")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
