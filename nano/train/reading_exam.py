"""Does the model read? Made-up facts in the four forms that the daemon shows, among one, six and twenty, and questions that none answers.

Forms: `notes` (lessons in front of the question, src/lessons/note.rs), `passages` (numbered, in the question), `tool` (a call's
result) and `examples` (exchanges before the question, src/embed/show.rs). Half of the facts of a prompt are near neighbours of
others: the same of somebody with a similar name, or something else of the same one. Names, kinds of facts, wordings, frames and
tool names are none of training's. Greedy; a reply is right if it holds the value and no other value that was shown.

usage: python3 -m train.reading_exam MODEL DATA OUT.json [--n 400] [--sizes 1,6,20] [--modes think,direct] [--seed 1]
"""
import argparse
import json
import random
import re

from .chat import parse_reply, render
from .evidence import LEAD
from .facts import board

FORMS = ("notes", "passages", "tool", "examples")
FRAME = "Here is what was found.\n{s}\n\nMy question: {q}"
ALSO = ["Ask again if this is not clear.", "The paper copy is in the drawer.", "This line was typed by hand."]
TOOL = {"type": "function", "function": {"name": "query_archive", "description": "Search the archive of documents.", "parameters": {
    "type": "object", "properties": {"words": {"type": "string", "description": "Words to look for"}}, "required": ["words"]}}}
REFUSAL = re.compile(r"\b(do|does|did) not (say|tell|know|mention|state|give|have)|don't (know|say)|cannot (say|know|tell)|can't|not (stated|told|mentioned|known|there|found)|no (note|source|result|information)|unknown", re.I)


def prompt(form, rng, facts, question):
    """(messages, tools) of facts shown in a form and a question."""
    u, a = (lambda c: {"role": "user", "content": c}), (lambda c, **k: {"role": "assistant", "content": c, **k})
    end = lambda s: s if s[-1] in ".?!" else s + "."
    text = [end(f.state(rng)) + (" " + rng.choice(ALSO) if rng.random() < 0.3 else "") for f in facts]
    if form == "notes":
        return [u(f"{LEAD}\n" + "\n".join(f"Note: {f.ask(rng, question)} {f.v}" for f in facts) + f"\n\n{question}")], None
    if form == "passages":
        return [u(FRAME.format(s="\n".join(f"[{i + 1}] {t}" for i, t in enumerate(text)), q=question))], None
    if form == "tool":
        found = json.dumps([{"source": f"file {i + 1}", "text": t} for i, t in enumerate(text)], ensure_ascii=False)
        return [u(question), a("", tool_calls=[{"name": "query_archive", "arguments": {"words": question}}]), {"role": "tool", "content": found}], [TOOL]
    return [m for f in facts for m in (u(f.ask(rng, question)), a(f"That is {f.v}."))] + [u(question)], None


def items(form, size, n, seed, answered=True):
    """n items {messages, tools, want, others}; `want` is None where nothing that is shown answers."""
    rng = random.Random(f"reading {form} {size} {answered} {seed}")
    for _ in range(n):
        told, absent = board(rng, "exam", size)
        f = rng.choice(told if answered else absent)
        messages, tools = prompt(form, rng, told, f.ask(rng))
        yield {"messages": messages, "tools": tools, "want": f.v if answered else None, "others": [x.v for x in told if x is not f]}


def has(text, value):
    return re.search(r"(?<![^\W_])" + re.escape(value) + r"(?![^\W_])", text, re.I) is not None


def grade(item, answer):
    """"right", "refused" or "wrong"; a refusal that holds a shown value is none. The number of a cited passage is no value."""
    answer = re.sub(r"\[\d+\]", "", answer)
    shown = [v for v in item["others"] + [item["want"]] if v and has(answer, v)]
    if not shown and REFUSAL.search(answer):
        return "refused"
    return "right" if item["want"] and shown == [item["want"]] else "wrong"


def measure(model, tk, form, size, n, seed, answered, mode, keep):
    from .decode import generate
    from .evaluate import wilson
    its = list(items(form, size, n, seed, answered))
    out = generate(model, [tk.encode(render(i["messages"], i["tools"], mode), add_special_tokens=False).ids for i in its], 64, 1024)
    grades = []
    for it, (ids, _) in zip(its, out):
        answer = parse_reply(tk.decode(ids, skip_special_tokens=False))[1]
        grades.append(grade(it, answer))
        if len(keep) < 20000:
            keep.append({"form": form, "size": size, "mode": mode, "grade": grades[-1], "ask": it["messages"][-1]["content"][-300:], "want": it["want"], "answer": answer[:120]})
    share = lambda what: {"percent": round(100 * grades.count(what) / n, 1), "interval": wilson(grades.count(what), n), "n": n}
    return {"right": share("right"), "refused": share("refused")}


def main():
    import torch

    from .checkpoint import load_checkpoint
    from .pack import load_tokenizer
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("model")
    ap.add_argument("data")
    ap.add_argument("out")
    ap.add_argument("--n", type=int, default=400)
    ap.add_argument("--sizes", default="1,6,20")
    ap.add_argument("--modes", default="think")
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    a = ap.parse_args()
    model, tk = load_checkpoint(a.model, a.device).eval(), load_tokenizer(a.data + "/tokenizer.json")
    report, keep = {}, []
    for mode in a.modes.split(","):
        for form in FORMS:
            for size in map(int, a.sizes.split(",")):
                for answered in (True, False):
                    got = measure(model, tk, form, size, a.n, a.seed, answered, mode, keep)
                    report[f"{mode} {form} {size} {'answered' if answered else 'absent'}"] = got
                    r, f = got["right"], got["refused"]
                    print(f"{mode} {form:9s} {size:2d} " + (f"right {r['percent']:5.1f} {r['interval']}, refused {f['percent']:.1f}" if answered else f"     refused {f['percent']:5.1f} {f['interval']}"), flush=True)
    with open(a.out, "w", encoding="utf-8") as f:
        json.dump(report, f, indent=1)
    with open(a.out.replace(".json", "") + "-replies.jsonl", "w", encoding="utf-8") as f:
        f.writelines(json.dumps(k, ensure_ascii=False) + "\n" for k in keep)


if __name__ == "__main__":
    main()
