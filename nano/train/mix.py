"""Renders the openly licensed corpus to training documents: one domain a file, documents ended by a zero byte.

Why a step of its own: what the model reads is decided here and nowhere else, so the data can be read by eye before any training.
Conversations take the form of `chat.py`. Left out for good: GSM8K test, SVAMP 700-999, MBPP 11-510, wrong BIG-Bench-Mistake traces.

usage: python3 -m train.mix CORPUS OUT [--limit N]      (N documents a domain, for the tiny chain)
"""
import argparse
import glob
import itertools
import json
import os
import random
import re

from .chat import NO_THOUGHT, NO_THOUGHT_SPLIT, clean, render

ROOT = ""


def rows(name, file="data.jsonl"):
    with open(f"{ROOT}/{name}/{file}", encoding="utf-8") as f:
        for line in f:
            yield json.loads(line)


def blob(name):
    with open(f"{ROOT}/{name}", encoding="utf-8") as f:
        return json.load(f)


def pieces(text, cap=6000):
    return re.findall(r".{1,%d}(?:\n|$)" % cap, text, re.S)


def conversation(turns, system=None, think="", rng=random):
    """Turns alternate user, assistant. A reply without a thought is shown either as chosen so or as switched off, half and half."""
    turns = [clean(t).strip() for t in turns]
    if len(turns) % 2:
        turns = turns[:-1]
    if not turns or not all(turns):
        return ""
    ms = [{"role": "user" if i % 2 == 0 else "assistant", "content": t} for i, t in enumerate(turns)]
    ms[-1]["reasoning_content"] = clean(think)
    if system:
        ms.insert(0, {"role": "system", "content": clean(system)})
    return open_or_closed(render(ms), rng)


def open_or_closed(text, rng=random):
    return text.replace(NO_THOUGHT, NO_THOUGHT_SPLIT) if rng.random() < 0.5 else text


def lead(t, cap=2000):
    if len(t) <= cap:
        return t
    s = t[:cap]
    i = max(s.rfind(". "), s.rfind(".\n"))
    return s[:i + 1] if i > 200 else s


def sentence_end(t, cap):
    return t if len(t) <= cap else t[:cap].rsplit(". ", 1)[0] + "."


def wiki():
    for r in rows("simplewiki"):
        t = lead(clean(r["text"]))
        yield r["title"] + "\n" + t
        if r["id"] % 6 == 0:                       # questions with the opening sentences as the answer: chat needs facts in reply form
            first = re.match(r"(?:[^.]*\.){1,2}(?=\s)", t.split("\n")[0])
            if first and 40 < len(first[0]) < 400:
                q = random.choice(["What is {}?", "Tell me about {}.", "Who or what is {}?", "Can you explain {}?", "What do you know about {}?"])
                yield conversation([q.format(r["title"]), first[0]])


def books():
    for r in rows("gutenberg-simple"):
        yield from (clean(t) for t in pieces(r["text"]))
    for r in rows("african-storybook"):
        if r["lang"] == "en":
            yield clean(re.sub(r"\n\* (License|Text|Illustration|Language|Translation|Adaptation|Original).*", "", r["md"]))


def textbooks():
    for d in sorted(glob.glob(f"{ROOT}/openstax-*")):
        for r in rows(os.path.basename(d)):
            yield from (clean(t) for t in pieces(r["text"].replace("⟨math⟩", "")))


def medicine():
    for r in rows("medquad"):
        q = r["q"].replace(" ?", "?").replace("What is (are)", "What is").replace("  ", " ")
        yield conversation([q, sentence_end(re.sub(r"\s+", " ", r["a"]) if len(r["a"]) < 600 else r["a"], 1500)])
    for r in blob("pubmedqa/ori_pqal.json").values():
        ctx = sentence_end(" ".join(r["CONTEXTS"]), 1500)
        yield conversation([ctx + "\n\n" + r["QUESTION"], sentence_end(r["LONG_ANSWER"], 700) + f"\n\nAnswer: {r['final_decision']}."])


def kine():
    for r in rows("free-exercise-db"):
        prim, sec = ", ".join(r["primaryMuscles"]), ", ".join(r["secondaryMuscles"])
        steps = "\n".join(f"{k + 1}. {x}" for k, x in enumerate(r["instructions"]))
        yield conversation([f"How do I do the exercise {r['name']}?", steps])
        yield conversation([f"Which muscles does {r['name']} work?", f"{r['name']} mainly works the {prim}" + (f", and also the {sec}" if sec else "")
                            + f". It is a {r['level']} {r['category']} exercise" + (f" done with {r['equipment']}." if r["equipment"] else ".")])
    for r in rows("wger"):
        fr = r["lang"] == "fr"
        yield conversation([("Comment faire l’exercice " if fr else "How do you perform ") + r["name"] + (" ?" if fr else "?"), r["description"]])


def cyber():
    for r in rows("mitre-attack-capec"):
        yield conversation([f"What is {r['name']}" + (f" ({r['ext_id']})" if r.get("ext_id") else "") + "?", sentence_end(r["description"], 1500)])
    for r in rows("mitre-attack-capec", "relations.jsonl"):
        if r["rel"] == "mitigates" and r["description"]:
            yield conversation([f"How does {r['src'][1]} help against {r['dst'][1]}?", r["description"]])
    for n in ("owasp-cheatsheets", "owasp-wstg", "owasp-top10", "owasp-asvs", "owasp-mastg", "rustsec", "security-101"):
        for r in rows(n):
            yield from (clean(t) for t in pieces(r["text"], 5000))
    for r in rows("cisa-kev"):
        yield conversation([f"What is {r['cveID']}?", f"{r['vulnerabilityName']}. {r['shortDescription']} Required action: {r['requiredAction']}"])


def shell():
    for r in rows("tldr-pages"):
        if r["lang"] != "en":
            continue
        desc = " ".join(re.findall(r"^> ([^M].*?)$", r["md"], re.M)[:1])
        for q, c in re.findall(r"^- (.*?):\n\n`(.*?)`$", r["md"], re.M):
            yield conversation([f"With the {r['page']} command, how do I: {q[0].lower() + q[1:]}?", "```sh\n" + re.sub(r"{{|}}", "", c) + "\n```"])
        if desc:
            yield conversation([f"What does the command {r['page']} do?", desc])


def service_tools(turns):
    """Function schemas rebuilt from the calls of a dialogue: the corpus keeps calls, not schemas."""
    tools = {}
    for t in turns:
        if "call" in t:
            p = tools.setdefault(t["call"]["method"], {})
            p.update({k: {"type": "string"} for k in t["call"]["args"]})
    return [{"type": "function", "function": {"name": n, "description": re.sub(r"(?<!^)(?=[A-Z])", " ", n).capitalize(),
             "parameters": {"type": "object", "properties": p, "required": sorted(p)}}} for n, p in tools.items()]


def service_dialogue(r):
    end = random.randrange(2, len(r["turns"]) + 1)
    turns = r["turns"] if random.random() < 0.6 else r["turns"][:end]
    ms = []
    for t in turns:
        if t["s"] == "U":
            ms.append({"role": "user", "content": clean(t["t"])})
            continue
        if "call" in t:
            ms.append({"role": "assistant", "content": "", "tool_calls": [{"name": t["call"]["method"], "arguments": t["call"]["args"]}]})
            ms.append({"role": "tool", "content": json.dumps(t["results"][:1], ensure_ascii=False)})
        ms.append({"role": "assistant", "content": clean(t["t"])})
    while ms and ms[-1]["role"] != "assistant":
        ms.pop()
    if not ms or ms[0]["role"] != "user":
        return ""
    tools = service_tools(turns) if random.random() < 0.7 or any("call" in t for t in turns) else None
    return open_or_closed(render(ms, tools))


def plain_dialogue(turns):
    turns = [t for t in turns if t.strip()]
    if len(turns) > 4 and random.random() < 0.5:
        turns = turns[:random.randrange(2, len(turns))]
    return conversation(turns)


def dialogue():
    for r in rows("sgd-dialogues"):
        yield service_dialogue(r)
    for r in rows("taskmaster4"):
        t = r["turns"]
        if all(x["s"] == ("user" if i % 2 == 0 else "assistant") for i, x in enumerate(t)):
            yield plain_dialogue([x["t"] for x in t])
    for r in rows("topical-chat"):
        yield plain_dialogue([t["t"] for t in r["turns"]])
    for r in rows("synthetic-persona-chat"):
        c = [re.sub(r"^User [12]: ", "", x) for x in r["conv"].split("\n") if x.startswith("User")]
        if len(c) > 3 and "[" not in r["conv"]:
            yield plain_dialogue(c)
    for r in rows("chatterbot-corpus"):
        if r["lang"] == "english":
            yield conversation(r["turns"])
    yield from identity()


def identity():
    """Identity conversations with the names of other models replaced by this one's."""
    names = [("researchers from Large Model Systems Organization (LMSYS)", "the Chimère project"), ("Large Model Systems Organization (LMSYS) researchers", "the Chimère project"),
             ("Large Model Systems Organization (LMSYS)", "the Chimère project"), ("Large Model Systems Organization", "the Chimère project"), ("LMSYS", "the Chimère project"), ("Vicuna", "nano")]
    for r in rows("fastchat-identity"):
        turns = [t["value"] for t in r["conversations"]]
        for a, b in names:
            turns = [t.replace(a, b) for t in turns]
        yield conversation(turns)
    for r in rows("llamafactory-demo", "identity.jsonl"):
        fill = lambda t: t.replace("{{name}}", "nano").replace("{{author}}", "the Chimère project")
        yield conversation([fill(r["instruction"] + ("\n" + r["input"] if r["input"] else "")), fill(r["output"])])
    for r in rows("llamafactory-demo", "glaive_toolcall_en.jsonl"):
        yield glaive(r)


def glaive(r):
    ms = []
    for t in r["conversations"]:
        v = t["value"]
        if t["from"] == "human":
            ms.append({"role": "user", "content": clean(v)})
        elif t["from"] == "gpt":
            ms.append({"role": "assistant", "content": clean(v)})
        elif t["from"] == "observation":
            ms.append({"role": "tool", "content": clean(v)})
        else:
            try:
                call = json.loads(v)
            except ValueError:
                return ""
            if not isinstance(call.get("arguments"), dict):
                return ""
            ms.append({"role": "assistant", "content": "", "tool_calls": [call]})
    tools = [{"type": "function", "function": f} for f in json.loads(r["tools"] or "[]")]
    return open_or_closed(render(ms, tools or None))


def qa():
    for r in rows("opentriviaqa"):
        opts = "\n" + "\n".join(f"{'ABCD'[i]}. {o}" for i, o in enumerate(r["opts"])) if len(r["opts"]) == 4 else ""
        yield conversation([r["q"] + opts, r["a"]])
    for f in ("trainmodel", "devtest", "val"):
        for r in blob(f"webquestions/{f}.json"):
            yield conversation([r["qText"], ", ".join(r["answers"][:5])])
    for r in rows("nq-open", "NQ-open.dev.jsonl"):
        yield conversation([r["question"].capitalize() + "?", r["answer"][0]])
    for r in blob("strategyqa/train.json"):
        yield conversation([r["question"], "Yes." if r["answer"] else "No."], think=" ".join(r["facts"]))
    for r in rows("factbook"):
        facts = r["facts"]
        n = next((v for k, v in facts.items() if k.endswith("conventional short form")), r["code"])
        for k, v in facts.items():
            if 15 < len(v) < 500:
                yield conversation([f"What is the {k.split('/')[-1].lower()} of {n}?", v])
    for r in rows("wordnet"):
        m = (r.get("members") or ["?"])[0]
        yield conversation([f'What does "{m}" mean?', r["def"] + (". For example: " + r["ex"][0] if r.get("ex") and r["ex"][0] else "") + "."])
    for r in rows("t0-p3-clean"):
        yield conversation([r["in"], r["out"].replace("<|endoftext|>", "")])
    for f in ("ecqa", "creak", "qasc", "strategyqa"):
        for p in flan(f):
            yield p
    for r in rows("self-instruct-human", "seed_tasks.jsonl"):
        for x in r["instances"][:1]:
            yield conversation([r["instruction"] + ("\n\n" + x["input"] if x["input"] else ""), x["output"]])
    for r in rows("self-instruct-human", "user_oriented_instructions.jsonl"):
        for x in r["instances"][:1]:
            yield conversation([r["instruction"] + ("\n\n" + x["input"] if x["input"] else ""), x["output"]])


def flan(name):
    with open(f"{ROOT}/flan-cot/{name}_train.tsv", encoding="utf-8") as f:
        for line in f:
            p = [x.replace("\\n", "\n") for x in line.rstrip("\n").split("\t")]
            if len(p) == 3:
                yield conversation(p[:2], think=p[2])


def math():
    for r in rows("gsm8k", "train.jsonl"):
        a, b = r["answer"].split("####")
        yield conversation([r["question"], f"The answer is {b.strip()}."], think=re.sub(r"<<.*?>>", "", a).strip())
    yield from flan("aqua")
    for r in blob("svamp/SVAMP.json")[:700]:
        yield conversation([r["Body"] + " " + r["Question"], f"The answer is {r['Answer']}."], think=f"{r['Equation']} = {r['Answer']}")
    for p in sorted(glob.glob(f"{ROOT}/bigbench-mistake/*.jsonl")):
        for r in rows("bigbench-mistake", os.path.basename(p)):
            if r["mistake_index"] is None:
                yield conversation([r["input"], r["answer"]], think="\n".join(r["steps"]))


def code():
    for r in rows("mbpp", "mbpp.jsonl"):
        if not 11 <= r["task_id"] <= 510:
            src = r["code"].replace("\r", "").expandtabs(4)
            yield conversation([r["text"] + " Your code should pass this test: " + r["test_list"][0], f"```python\n{src}\n```"])
    for n in ("py-thealgorithms", "py-keon-algorithms", "py-geekcomputers", "py-30seconds", "rust-book"):
        for r in rows(n):
            yield from (clean(t) for t in pieces(r["text"], 5000))
    for r in rows("py-exercism"):
        if "solution" in r:
            yield conversation([(r.get("introduction", "")[:600] + "\n" + r.get("instructions", ""))[:3000], f"```python\n{r['solution']}\n```"])


DOMAINS = [wiki, books, textbooks, medicine, kine, cyber, shell, dialogue, qa, math, code]


def main():
    global ROOT
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("corpus")
    ap.add_argument("out")
    ap.add_argument("--limit", type=int, default=0)
    ap.add_argument("--seed", type=int, default=7)
    a = ap.parse_args()
    ROOT = a.corpus
    os.makedirs(a.out, exist_ok=True)
    for domain in DOMAINS:
        random.seed(f"{a.seed} {domain.__name__}")
        n = size = 0
        with open(f"{a.out}/{domain.__name__}.txt", "wb") as f:
            for t in itertools.islice(domain(), a.limit or None):
                t = t.encode()
                if len(t) >= 20:
                    f.write(t + b"\0")
                    n, size = n + 1, size + len(t)
        print(f"{domain.__name__:10s} {n:8d} documents {size / 1e6:8.2f} MB", flush=True)


if __name__ == "__main__":
    main()
